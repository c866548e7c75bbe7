"""How often progress has reset the failure counters of a step: that is limited."""


def statements(dialect: str) -> list[str]:
    return ["ALTER TABLE steps ADD COLUMN forgiven INTEGER NOT NULL DEFAULT 0"]
