"""Re-indexes: the next index version of a collection, and the generations that are built for it while those of the
current version stay searchable."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    return [
        f"""CREATE TABLE reindexes (
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  version INTEGER NOT NULL,
  former INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('BUILDING', 'PAUSED', 'CANCELLING', 'DONE')),
  recipe TEXT NOT NULL,
  former_recipe TEXT NOT NULL,
  begun_at {real} NOT NULL,
  ended_at {real},
  PRIMARY KEY (owner, collection),
  FOREIGN KEY (owner, collection) REFERENCES collections (owner, name)
)""",
        "ALTER TABLE generations ADD COLUMN staging INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX generations_staging ON generations (owner, collection, index_version, flipped_at) "
        "WHERE staging = 1",
    ]
