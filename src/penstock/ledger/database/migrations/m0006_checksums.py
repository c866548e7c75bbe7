"""What the files of an index were when vacuum left them."""


def statements(dialect: str) -> list[str]:
    integer, real = {"sqlite": ("INTEGER", "REAL"), "postgres": ("BIGINT", "DOUBLE PRECISION")}[dialect]
    return [
        f"""CREATE TABLE index_checksums (
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  version INTEGER NOT NULL,
  table_version {integer} NOT NULL,
  sha256 TEXT NOT NULL,
  sealed_at {real} NOT NULL,
  PRIMARY KEY (owner, collection, version)
)"""
    ]
