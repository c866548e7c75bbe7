"""Artifacts that were dropped on purpose, and what finds rows whose time is over without a look at the others."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    return [
        f"ALTER TABLE generations ADD COLUMN artifacts_dropped_at {real}",
        "CREATE INDEX generations_kept ON generations (collection, flipped_at, id) "
        "WHERE state = 'ACTIVE' AND artifacts_dropped_at IS NULL",
        "CREATE INDEX generations_purged ON generations (id) WHERE state = 'PURGED'",
        # A row that goes is looked for in the tables that may refer to it.
        "CREATE INDEX runs_generation ON runs (generation_id)",
        "CREATE INDEX dead_letters_run ON dead_letters (run_id)",
        "CREATE INDEX dead_letters_closed ON dead_letters (id) WHERE state <> 'OPEN'",
        "DROP INDEX dead_letters_document",
        "CREATE INDEX dead_letters_document ON dead_letters (document_id)",
    ]
