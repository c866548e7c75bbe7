"""Documents of one status are listed newest first: their index goes on by id. Snapshots say when they came, so that
workers ask for the new ones alone. Steps that failed or were cancelled are few, and are counted by an index of their
own."""


def statements(dialect: str) -> list[str]:
    moment = "REAL" if dialect == "sqlite" else "float8"
    return [
        "DROP INDEX documents_status",
        "CREATE INDEX documents_status ON documents (owner, status, id) WHERE deleted_at IS NULL",
        "CREATE INDEX steps_failed ON steps (owner, status) WHERE status IN ('FAILED', 'CANCELLED')",
        f"ALTER TABLE snapshots ADD COLUMN added_at {moment} NOT NULL DEFAULT 0",
        "CREATE INDEX snapshots_added ON snapshots (added_at)",
    ]
