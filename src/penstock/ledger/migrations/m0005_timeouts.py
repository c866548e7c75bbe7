"""Steps that hang: until when a step may work without progress, and when it last had any."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    return [
        f"ALTER TABLE steps ADD COLUMN timeout_at {real}",
        f"ALTER TABLE steps ADD COLUMN progress_at {real}",
        # Only steps whose workflow names a timeout are in it.
        """CREATE INDEX steps_timed ON steps (timeout_at)
  WHERE status = 'RUNNING' AND timeout_at IS NOT NULL""",
    ]
