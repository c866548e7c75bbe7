"""Sources are ordered by their bytes, so that a range of them is found by an index whatever the collation of the
database. SQLite does this anyway."""


def statements(dialect: str) -> list[str]:
    if dialect == "sqlite":
        return []
    # Both, because a comparison of two columns needs indexes of the same collation.
    return [f'ALTER TABLE {table} ALTER COLUMN source TYPE TEXT COLLATE "C"' for table in ("documents", "forgotten")]
