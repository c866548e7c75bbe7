"""The store of an index version, so that a re-index can move a collection to another one."""


def statements(dialect: str) -> list[str]:
    return ["ALTER TABLE index_versions ADD COLUMN store TEXT"]
