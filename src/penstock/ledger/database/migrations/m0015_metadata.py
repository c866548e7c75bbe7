"""Metadata by origin. `found` is what the steps of a generation found in the document. `submitted` keeps the submitted
metadata of a searchable generation while a newer version, submitted with other metadata, is being built."""


def statements(dialect: str) -> list[str]:
    return [
        "ALTER TABLE generations ADD COLUMN found TEXT",
        "ALTER TABLE generations ADD COLUMN submitted TEXT",
    ]
