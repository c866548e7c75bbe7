"""Small blobs are kept in the ledger. Their keys are listed in the order of bytes, whatever the collation is."""


def statements(dialect: str) -> list[str]:
    key, data, real = {
        "sqlite": ("TEXT", "BLOB", "REAL"),
        "postgres": ('TEXT COLLATE "C"', "BYTEA", "DOUBLE PRECISION"),
    }[dialect]
    return [
        f"""CREATE TABLE small_blobs (
  key {key} PRIMARY KEY,
  data {data} NOT NULL,
  added_at {real} NOT NULL
)"""
    ]
