"""The names of collections that were made as vector stores, and batches of files that were added to one at once."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    return [
        f"""CREATE TABLE vector_stores (
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  name TEXT NOT NULL,
  metadata TEXT NOT NULL,
  created_at {real} NOT NULL,
  PRIMARY KEY (owner, collection)
)""",
        f"""CREATE TABLE file_batches (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  documents TEXT NOT NULL,
  cancelled INTEGER NOT NULL DEFAULT 0 CHECK (cancelled IN (0, 1)),
  created_at {real} NOT NULL
)""",
        "CREATE INDEX file_batches_store ON file_batches (owner, collection, created_at)",
    ]
