"""How often a target failed for a step while it answered another call."""


def statements(dialect: str) -> list[str]:
    return ["ALTER TABLE steps ADD COLUMN refused INTEGER NOT NULL DEFAULT 0"]
