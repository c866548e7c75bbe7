"""The settings of runs are stored once. A run has their fingerprint; runs of earlier versions keep their text."""


def statements(dialect: str) -> list[str]:
    return ["CREATE TABLE run_settings (\n  fingerprint TEXT PRIMARY KEY,\n  body TEXT NOT NULL\n)"]
