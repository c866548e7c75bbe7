"""The revision that a source reported for the bytes of a document: unchanged documents are not fetched again."""


def statements(dialect: str) -> list[str]:
    return ["ALTER TABLE documents ADD COLUMN revision TEXT"]
