"""Versions of an index, and where generations are placed. The embedder moves from the collection to the version of its
index; a placement is made for each generation whose rows may be in the index."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    return [
        f"""CREATE TABLE index_versions (
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version >= 1),
  state TEXT NOT NULL CHECK (state IN ('BUILDING', 'CURRENT', 'RETIRED')),
  embedder TEXT NOT NULL,
  dimensions INTEGER NOT NULL,
  created_at {real} NOT NULL,
  PRIMARY KEY (owner, collection, version),
  FOREIGN KEY (owner, collection) REFERENCES collections (owner, name)
)""",
        "CREATE UNIQUE INDEX index_versions_current ON index_versions (owner, collection) WHERE state = 'CURRENT'",
        """CREATE TABLE placements (
  generation_id BIGINT NOT NULL,
  version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('BUILDING', 'READY')),
  PRIMARY KEY (generation_id, version)
)""",
        "INSERT INTO index_versions (owner, collection, version, state, embedder, dimensions, created_at) "
        "SELECT owner, name, index_version, 'CURRENT', embedder, coalesce(dimensions, 0), created_at FROM collections "
        "WHERE embedder IS NOT NULL",
        "INSERT INTO placements (generation_id, version, state) SELECT id, index_version, "
        "CASE WHEN flipped_at IS NULL THEN 'BUILDING' ELSE 'READY' END FROM generations WHERE written = 1",
        "ALTER TABLE collections DROP COLUMN index_version",
        "ALTER TABLE collections DROP COLUMN embedder",
        "ALTER TABLE collections DROP COLUMN dimensions",
    ]
