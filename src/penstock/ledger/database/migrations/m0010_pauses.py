"""An index table that cannot be used is left alone for a while, by all workers: how long, since how often, and why."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    return [
        f"ALTER TABLE locks ADD COLUMN paused_until {real}",
        "ALTER TABLE locks ADD COLUMN failures INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE locks ADD COLUMN error TEXT",
    ]
