"""The change feed's index, resumable uploads with their parts, and bulk actions with the items that they chose."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    # Ids are compared by their bytes, whatever the collation of the database.
    in_bytes = {"sqlite": "", "postgres": ' COLLATE "C"'}[dialect]
    return [
        # Deleted documents too: their deletion is a change.
        f"CREATE INDEX documents_changed ON documents (owner, updated_at, id{in_bytes})",
        f"""CREATE TABLE uploads (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('tus', 'presigned')),
  state TEXT NOT NULL CHECK (state IN ('OPEN', 'ACCEPTED', 'REFUSED')),
  size BIGINT NOT NULL CHECK (size >= 0),
  received BIGINT NOT NULL CHECK (received BETWEEN 0 AND size),
  request TEXT NOT NULL,
  document_id TEXT,
  answer TEXT,
  token TEXT,
  lease_until {real} NOT NULL,
  created_at {real} NOT NULL,
  expires_at {real} NOT NULL
)""",
        "CREATE INDEX uploads_owner ON uploads (owner, id)",
        "CREATE INDEX uploads_expiring ON uploads (expires_at)",
        "CREATE INDEX uploads_whole ON uploads (id) WHERE state = 'OPEN' AND received = size",
        """CREATE TABLE upload_parts (
  upload_id TEXT NOT NULL REFERENCES uploads (id),
  first BIGINT NOT NULL,
  size BIGINT NOT NULL,
  key TEXT NOT NULL UNIQUE,
  PRIMARY KEY (upload_id, first)
)""",
        *_of_actions(real),
    ]


def _of_actions(real: str) -> list[str]:
    return [
        f"""CREATE TABLE actions (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  verb TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('CHOOSING', 'WORKING', 'DONE', 'CANCELLED', 'FAILED')),
  request TEXT NOT NULL,
  place TEXT NOT NULL,
  total BIGINT NOT NULL DEFAULT 0,
  changed BIGINT NOT NULL DEFAULT 0,
  unchanged BIGINT NOT NULL DEFAULT 0,
  failed BIGINT NOT NULL DEFAULT 0,
  error TEXT,
  token TEXT,
  lease_until {real} NOT NULL,
  created_at {real} NOT NULL,
  finished_at {real}
)""",
        "CREATE INDEX actions_owner ON actions (owner, id)",
        "CREATE INDEX actions_open ON actions (id) WHERE state IN ('CHOOSING', 'WORKING')",
        """CREATE TABLE action_items (
  action_id TEXT NOT NULL REFERENCES actions (id),
  ordinal BIGINT NOT NULL,
  item TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('WAITING', 'CHANGED', 'UNCHANGED', 'FAILED')),
  error TEXT,
  PRIMARY KEY (action_id, ordinal)
)""",
        "CREATE INDEX action_items_waiting ON action_items (action_id, ordinal) WHERE state = 'WAITING'",
        "CREATE INDEX action_items_failed ON action_items (action_id, ordinal) WHERE state = 'FAILED'",
    ]
