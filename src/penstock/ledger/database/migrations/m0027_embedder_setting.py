"""The setting of the embedder of an index version, so that a search can make the embedder that made its vectors."""


def statements(dialect: str) -> list[str]:
    return ["ALTER TABLE index_versions ADD COLUMN setting TEXT"]
