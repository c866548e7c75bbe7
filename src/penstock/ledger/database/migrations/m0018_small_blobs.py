"""Small blobs are kept in the ledger."""


def statements(dialect: str) -> list[str]:
    data, real = {"sqlite": ("BLOB", "REAL"), "postgres": ("BYTEA", "DOUBLE PRECISION")}[dialect]
    return [
        f"""CREATE TABLE small_blobs (
  key TEXT PRIMARY KEY,
  data {data} NOT NULL,
  added_at {real} NOT NULL
)"""
    ]
