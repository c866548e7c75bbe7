"""What unlocks a document, if its submitter gave it."""


def statements(dialect: str) -> list[str]:
    return ["ALTER TABLE documents ADD COLUMN password TEXT"]
