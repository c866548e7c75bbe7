"""Passwords of documents that were read long ago."""


def statements(dialect: str) -> list[str]:
    return [
        "UPDATE documents SET password = NULL WHERE password IS NOT NULL "
        "AND (status IN ('COMPLETED', 'NOT_INDEXABLE') OR deleted_at IS NOT NULL)"
    ]
