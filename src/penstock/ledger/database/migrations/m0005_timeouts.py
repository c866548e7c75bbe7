"""Steps that hang: until when a step may work without progress, and when it last had any. Steps with a pool of their
own, and different ones behind one key."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    return [
        f"ALTER TABLE steps ADD COLUMN timeout_at {real}",
        f"ALTER TABLE steps ADD COLUMN progress_at {real}",
        # Only steps whose workflow names a timeout are in it.
        """CREATE INDEX steps_timed ON steps (timeout_at)
  WHERE status = 'RUNNING' AND timeout_at IS NOT NULL""",
        "ALTER TABLE steps ADD COLUMN pool TEXT",
        "DROP INDEX steps_claim",
        # The claim walks this one from its left end, a lane at a time: the pool that a step names, else its kind.
        """CREATE INDEX steps_claim ON steps (coalesce(pool, kind), priority DESC, rank)
  WHERE status = 'PENDING' AND resource_key IS NULL""",
        "DROP INDEX steps_claim_keyed",
        """CREATE INDEX steps_claim_keyed ON steps (resource_key, priority DESC, rank)
  WHERE status = 'PENDING' AND resource_key IS NOT NULL""",
    ]
