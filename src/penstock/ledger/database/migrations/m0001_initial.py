"""The first ledger. A released migration is never changed; `schema.sql` is what they add up to."""

DOCUMENT_TRANSITIONS = [
    "PENDING>EXTRACTING",
    "PENDING>CHUNKING",
    "PENDING>EMBEDDING",
    "PENDING>INDEXING",
    "PENDING>COMPLETED",
    "PENDING>NOT_INDEXABLE",
    "PENDING>FAILED",
    "PENDING>CANCELLED",
    "EXTRACTING>CHUNKING",
    "EXTRACTING>EMBEDDING",
    "EXTRACTING>INDEXING",
    "CHUNKING>EXTRACTING",
    "CHUNKING>EMBEDDING",
    "CHUNKING>INDEXING",
    "EMBEDDING>EXTRACTING",
    "EMBEDDING>CHUNKING",
    "EMBEDDING>INDEXING",
    "INDEXING>EXTRACTING",
    "INDEXING>CHUNKING",
    "INDEXING>EMBEDDING",
    "EXTRACTING>COMPLETED",
    "CHUNKING>COMPLETED",
    "EMBEDDING>COMPLETED",
    "INDEXING>COMPLETED",
    "EXTRACTING>NOT_INDEXABLE",
    "CHUNKING>NOT_INDEXABLE",
    "EMBEDDING>NOT_INDEXABLE",
    "INDEXING>NOT_INDEXABLE",
    "EXTRACTING>FAILED",
    "CHUNKING>FAILED",
    "EMBEDDING>FAILED",
    "INDEXING>FAILED",
    "EXTRACTING>CANCELLED",
    "CHUNKING>CANCELLED",
    "EMBEDDING>CANCELLED",
    "INDEXING>CANCELLED",
    "FAILED>PENDING",
    "CANCELLED>PENDING",
    "NOT_INDEXABLE>PENDING",
    "COMPLETED>PENDING",
]

STEP_TRANSITIONS = [
    "PENDING>RUNNING",
    "RUNNING>COMPLETED",
    "RUNNING>ERROR",
    "RUNNING>FAILED",
    "RUNNING>CANCELLED",
    "RUNNING>PENDING",
    "ERROR>PENDING",
    "PENDING>CANCELLED",
    "ERROR>CANCELLED",
    "FAILED>PENDING",
    "CANCELLED>PENDING",
    "COMPLETED>PENDING",
]

TABLES = (
    """CREATE TABLE collections (
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  index_version INTEGER NOT NULL DEFAULT 1 CHECK (index_version >= 1),
  embedder TEXT,
  dimensions INTEGER,
  created_at {real} NOT NULL,
  PRIMARY KEY (owner, name)
)""",
    """CREATE TABLE snapshots (
  hash TEXT PRIMARY KEY,
  body TEXT NOT NULL
)""",
    """CREATE TABLE documents (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  source TEXT NOT NULL,
  name TEXT NOT NULL,
  media_type TEXT,
  size BIGINT NOT NULL CHECK (size >= 0),
  sha256 TEXT NOT NULL,
  metadata TEXT NOT NULL DEFAULT '{{}}',
  status TEXT NOT NULL CHECK (status IN ('PENDING', 'EXTRACTING', 'CHUNKING', 'EMBEDDING', 'INDEXING',
    'COMPLETED', 'NOT_INDEXABLE', 'FAILED', 'CANCELLED')),
  retry_count INTEGER NOT NULL DEFAULT 0,
  error TEXT,
  batch TEXT,
  created_at {real} NOT NULL,
  updated_at {real} NOT NULL,
  deleted_at {real},
  FOREIGN KEY (owner, collection) REFERENCES collections (owner, name)
)""",
    # One live document for each source: what makes a second submit of a file find the first.
    """CREATE UNIQUE INDEX documents_source ON documents (owner, collection, source) WHERE deleted_at IS NULL""",
    """CREATE INDEX documents_newest ON documents (owner, id) WHERE deleted_at IS NULL""",
    """CREATE INDEX documents_status ON documents (owner, status) WHERE deleted_at IS NULL""",
    """CREATE TABLE generations (
  id {identity},
  document_id TEXT NOT NULL REFERENCES documents (id),
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  index_version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('BUILDING', 'ACTIVE', 'SUPERSEDED', 'PURGED')),
  written INTEGER NOT NULL DEFAULT 0 CHECK (written IN (0, 1)),
  raw_key TEXT NOT NULL,
  size BIGINT NOT NULL,
  sha256 TEXT NOT NULL,
  pages INTEGER,
  chunks INTEGER,
  created_at {real} NOT NULL,
  flipped_at {real}
)""",
    # One is active, at most one is being built.
    """CREATE UNIQUE INDEX generations_active ON generations (document_id) WHERE state = 'ACTIVE'""",
    """CREATE UNIQUE INDEX generations_building ON generations (document_id) WHERE state = 'BUILDING'""",
    """CREATE INDEX generations_document ON generations (document_id)""",
    """CREATE INDEX generations_raw ON generations (raw_key)""",
    # The few that search has to leave out: they have rows in the index and are not the active ones.
    """CREATE INDEX generations_hidden ON generations (owner, collection, index_version)
  WHERE written = 1 AND state <> 'ACTIVE'""",
    """CREATE TABLE runs (
  id TEXT PRIMARY KEY,
  document_id TEXT NOT NULL REFERENCES documents (id),
  generation_id BIGINT NOT NULL REFERENCES generations (id),
  owner TEXT NOT NULL,
  snapshot TEXT NOT NULL REFERENCES snapshots (hash),
  settings TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('OPEN', 'COMPLETED', 'FAILED', 'CANCELLED')),
  priority INTEGER NOT NULL,
  rank BIGINT NOT NULL,
  created_at {real} NOT NULL,
  finished_at {real}
)""",
    """CREATE UNIQUE INDEX runs_document ON runs (document_id, generation_id)""",
    """CREATE UNIQUE INDEX runs_open ON runs (document_id) WHERE status = 'OPEN'""",
    # No foreign key here: steps are inserted thousands of times a second, and only ever from their run's row.
    """CREATE TABLE steps (
  id {row_id},
  run_id TEXT NOT NULL,
  position INTEGER NOT NULL,
  document_id TEXT NOT NULL,
  generation_id BIGINT NOT NULL,
  owner TEXT NOT NULL,
  snapshot TEXT NOT NULL,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('PENDING', 'RUNNING', 'COMPLETED', 'ERROR', 'FAILED', 'CANCELLED')),
  priority INTEGER NOT NULL,
  rank BIGINT NOT NULL,
  resource_key TEXT,
  attempts INTEGER NOT NULL DEFAULT 0,
  crashes INTEGER NOT NULL DEFAULT 0,
  errors INTEGER NOT NULL DEFAULT 0,
  alone INTEGER NOT NULL DEFAULT 0 CHECK (alone IN (0, 1)),
  epoch INTEGER NOT NULL DEFAULT 0,
  lease_token TEXT,
  lease_until {real},
  worker_id TEXT,
  not_before {real},
  waiting_on TEXT,
  error TEXT,
  meta TEXT NOT NULL DEFAULT '{{}}',
  created_at {real} NOT NULL,
  started_at {real},
  finished_at {real},
  UNIQUE (run_id, position),
  CHECK ((status = 'RUNNING') = (lease_token IS NOT NULL)),
  CHECK (status <> 'ERROR' OR not_before IS NOT NULL)
)""",
    # The claim walks this one from its left end, a kind at a time; backed-off and keyed steps are outside it.
    """CREATE INDEX steps_claim ON steps (kind, priority DESC, rank)
  WHERE status = 'PENDING' AND resource_key IS NULL""",
    """CREATE INDEX steps_claim_keyed ON steps (kind, resource_key, priority DESC, rank)
  WHERE status = 'PENDING' AND resource_key IS NOT NULL""",
    # The fair rank looks at what was never claimed; `epoch = 0` keeps PostgreSQL from using it for claims.
    """CREATE INDEX steps_unclaimed ON steps (priority, rank) WHERE status = 'PENDING' AND epoch = 0""",
    """CREATE INDEX steps_running ON steps (lease_until) WHERE status = 'RUNNING'""",
    """CREATE INDEX steps_backed_off ON steps (not_before) WHERE status = 'ERROR'""",
    """CREATE INDEX steps_document ON steps (document_id)""",
    """CREATE TABLE ranks (
  owner TEXT NOT NULL,
  priority INTEGER NOT NULL,
  last_rank BIGINT NOT NULL,
  PRIMARY KEY (priority, owner)
)""",
    """CREATE INDEX ranks_last ON ranks (priority, last_rank)""",
    """CREATE TABLE artifacts (
  id {identity},
  owner TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('BUILDING', 'COMPLETE')),
  builder BIGINT,
  token TEXT,
  cursor TEXT NOT NULL DEFAULT '{{}}',
  items BIGINT NOT NULL DEFAULT 0,
  segments INTEGER NOT NULL DEFAULT 0,
  meta TEXT NOT NULL DEFAULT '{{}}',
  created_at {real} NOT NULL,
  updated_at {real} NOT NULL,
  UNIQUE (owner, fingerprint),
  CHECK (state = 'BUILDING' OR token IS NULL)
)""",
    """CREATE TABLE segments (
  artifact_id BIGINT NOT NULL REFERENCES artifacts (id),
  ordinal INTEGER NOT NULL,
  key TEXT NOT NULL UNIQUE,
  sha256 TEXT NOT NULL,
  size BIGINT NOT NULL,
  items INTEGER NOT NULL,
  first BIGINT NOT NULL,
  cursor TEXT NOT NULL,
  PRIMARY KEY (artifact_id, ordinal)
)""",
    """CREATE TABLE artifact_refs (
  artifact_id BIGINT NOT NULL REFERENCES artifacts (id),
  generation_id BIGINT NOT NULL REFERENCES generations (id),
  step TEXT NOT NULL,
  PRIMARY KEY (generation_id, step)
)""",
    """CREATE INDEX artifact_refs_artifact ON artifact_refs (artifact_id)""",
    """CREATE TABLE locks (
  resource_key TEXT PRIMARY KEY,
  kind TEXT,
  ready INTEGER NOT NULL DEFAULT 0 CHECK (ready IN (0, 1)),
  token TEXT,
  worker_id TEXT,
  purpose TEXT,
  lease_until {real},
  released_at {real} NOT NULL DEFAULT 0,
  CHECK ((token IS NULL) = (lease_until IS NULL))
)""",
    """CREATE INDEX locks_free ON locks (kind, released_at) WHERE ready = 1 AND token IS NULL""",
    """CREATE INDEX locks_held ON locks (lease_until) WHERE token IS NOT NULL""",
    """CREATE TABLE dead_letters (
  id {identity},
  owner TEXT NOT NULL,
  document_id TEXT NOT NULL REFERENCES documents (id),
  run_id TEXT NOT NULL REFERENCES runs (id),
  step TEXT NOT NULL,
  kind TEXT NOT NULL,
  reason TEXT NOT NULL,
  error TEXT NOT NULL,
  traceback TEXT,
  page INTEGER,
  attempts INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('OPEN', 'REPLAYED', 'DISCARDED')),
  created_at {real} NOT NULL,
  closed_at {real}
)""",
    """CREATE UNIQUE INDEX dead_letters_open ON dead_letters (run_id) WHERE state = 'OPEN'""",
    """CREATE INDEX dead_letters_document ON dead_letters (document_id) WHERE state = 'OPEN'""",
    """CREATE INDEX dead_letters_owner ON dead_letters (owner, id) WHERE state = 'OPEN'""",
    """CREATE TABLE purges (
  generation_id BIGINT PRIMARY KEY REFERENCES generations (id),
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  index_version INTEGER NOT NULL,
  not_before {real} NOT NULL
)""",
    """CREATE INDEX purges_due ON purges (not_before)""",
    """CREATE TABLE workers (
  id TEXT PRIMARY KEY,
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  started_at {real} NOT NULL,
  seen_at {real} NOT NULL
)""",
    """CREATE TABLE idempotency_keys (
  owner TEXT NOT NULL,
  key TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  document_id TEXT NOT NULL REFERENCES documents (id),
  created_at {real} NOT NULL,
  PRIMARY KEY (owner, key)
)""",
    """CREATE INDEX idempotency_keys_document ON idempotency_keys (document_id)""",
    """CREATE TABLE paces (
  kind TEXT PRIMARY KEY,
  seconds {real} NOT NULL
)""",
)


def _pairs(transitions: list[str]) -> str:
    return ", ".join(f"'{pair}'" for pair in transitions)


def statements(dialect: str) -> list[str]:
    types = {
        "sqlite": {
            "identity": "INTEGER PRIMARY KEY AUTOINCREMENT",
            "row_id": "INTEGER PRIMARY KEY",
            "real": "REAL",
        },
        "postgres": {
            "identity": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
            "row_id": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
            "real": "DOUBLE PRECISION",
        },
    }[dialect]
    out = [text.format(**types) for text in TABLES]
    if dialect == "postgres":
        out.append(
            "CREATE FUNCTION refuse_transition() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'illegal transition of %: % to %', TG_TABLE_NAME, OLD.status, NEW.status; END $$"
        )
    for table, transitions in (("documents", DOCUMENT_TRANSITIONS), ("steps", STEP_TRANSITIONS)):
        guard = f"OLD.status <> NEW.status AND (OLD.status || '>' || NEW.status) NOT IN ({_pairs(transitions)})"
        if dialect == "postgres":
            out.append(
                f"CREATE TRIGGER {table}_transition BEFORE UPDATE OF status ON {table} FOR EACH ROW "
                f"WHEN ({guard}) EXECUTE FUNCTION refuse_transition()"
            )
        else:
            out.append(
                f"CREATE TRIGGER {table}_transition BEFORE UPDATE OF status ON {table} FOR EACH ROW "
                f"WHEN {guard} BEGIN SELECT RAISE(ABORT, 'illegal transition of {table}'); END"
            )
    return out
