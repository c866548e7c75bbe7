-- What the migrations add up to, on SQLite; PostgreSQL differs only in the types of ids and times. These statements
-- make a new ledger on SQLite. Written by `python scripts/schema.py`; a test compares them with the migrations.

CREATE TABLE collections (
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  created_at REAL NOT NULL, drop_to TEXT, dropped_at REAL,
  PRIMARY KEY (owner, name)
);

CREATE TABLE snapshots (
  hash TEXT PRIMARY KEY,
  body TEXT NOT NULL
, added_at REAL NOT NULL DEFAULT 0);

CREATE TABLE documents (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  source TEXT NOT NULL,
  name TEXT NOT NULL,
  media_type TEXT,
  size BIGINT NOT NULL CHECK (size >= 0),
  sha256 TEXT NOT NULL,
  metadata TEXT NOT NULL DEFAULT '{}',
  retry_count INTEGER NOT NULL DEFAULT 0,
  error TEXT,
  batch TEXT,
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  deleted_at REAL, password TEXT, revision TEXT, parent_id TEXT, root_id TEXT, depth INTEGER NOT NULL DEFAULT 0, parent_generation BIGINT, unpacked_members BIGINT NOT NULL DEFAULT 0, unpacked_bytes BIGINT NOT NULL DEFAULT 0, status TEXT NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'EXTRACTING', 'CHUNKING', 'EMBEDDING', 'INDEXING', 'COMPLETED', 'NOT_INDEXABLE', 'UNSUPPORTED', 'FAILED', 'CANCELLED', 'HELD')),
  FOREIGN KEY (owner, collection) REFERENCES collections (owner, name)
);

CREATE INDEX documents_newest ON documents (owner, id) WHERE deleted_at IS NULL;

CREATE TABLE generations (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
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
  created_at REAL NOT NULL,
  flipped_at REAL
, artifacts_dropped_at REAL, found TEXT, submitted TEXT, staging INTEGER NOT NULL DEFAULT 0);

CREATE UNIQUE INDEX generations_active ON generations (document_id) WHERE state = 'ACTIVE';

CREATE UNIQUE INDEX generations_building ON generations (document_id) WHERE state = 'BUILDING';

CREATE INDEX generations_document ON generations (document_id);

CREATE INDEX generations_raw ON generations (raw_key);

CREATE INDEX generations_hidden ON generations (owner, collection, index_version)
  WHERE written = 1 AND state <> 'ACTIVE';

CREATE TABLE runs (
  id TEXT PRIMARY KEY,
  document_id TEXT NOT NULL REFERENCES documents (id),
  generation_id BIGINT NOT NULL REFERENCES generations (id),
  owner TEXT NOT NULL,
  snapshot TEXT NOT NULL REFERENCES snapshots (hash),
  settings TEXT NOT NULL,
  priority INTEGER NOT NULL,
  rank BIGINT NOT NULL,
  created_at REAL NOT NULL,
  finished_at REAL
, group_id TEXT, status TEXT NOT NULL DEFAULT 'OPEN' CHECK (status IN ('OPEN', 'HELD', 'COMPLETED', 'FAILED', 'CANCELLED')));

CREATE UNIQUE INDEX runs_document ON runs (document_id, generation_id);

CREATE TABLE steps (
  id INTEGER PRIMARY KEY,
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
  lease_until REAL,
  worker_id TEXT,
  not_before REAL,
  waiting_on TEXT,
  error TEXT,
  meta TEXT NOT NULL DEFAULT '{}',
  created_at REAL NOT NULL,
  started_at REAL,
  finished_at REAL, timeout_at REAL, progress_at REAL, pool TEXT, forgiven INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
  UNIQUE (run_id, position),
  CHECK ((status = 'RUNNING') = (lease_token IS NOT NULL)),
  CHECK (status <> 'ERROR' OR not_before IS NOT NULL)
);

CREATE INDEX steps_unclaimed ON steps (priority, rank) WHERE status = 'PENDING' AND epoch = 0;

CREATE INDEX steps_running ON steps (lease_until) WHERE status = 'RUNNING';

CREATE INDEX steps_backed_off ON steps (not_before) WHERE status = 'ERROR';

CREATE INDEX steps_document ON steps (document_id);

CREATE TABLE ranks (
  owner TEXT NOT NULL,
  priority INTEGER NOT NULL,
  last_rank BIGINT NOT NULL,
  PRIMARY KEY (priority, owner)
);

CREATE INDEX ranks_last ON ranks (priority, last_rank);

CREATE TABLE artifacts (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('BUILDING', 'COMPLETE')),
  builder BIGINT,
  token TEXT,
  cursor TEXT NOT NULL DEFAULT '{}',
  items BIGINT NOT NULL DEFAULT 0,
  segments INTEGER NOT NULL DEFAULT 0,
  meta TEXT NOT NULL DEFAULT '{}',
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  UNIQUE (owner, fingerprint),
  CHECK (state = 'BUILDING' OR token IS NULL)
);

CREATE TABLE segments (
  artifact_id BIGINT NOT NULL REFERENCES artifacts (id),
  ordinal INTEGER NOT NULL,
  key TEXT NOT NULL UNIQUE,
  sha256 TEXT NOT NULL,
  size BIGINT NOT NULL,
  items INTEGER NOT NULL,
  first BIGINT NOT NULL,
  cursor TEXT NOT NULL,
  PRIMARY KEY (artifact_id, ordinal)
);

CREATE TABLE artifact_refs (
  artifact_id BIGINT NOT NULL REFERENCES artifacts (id),
  generation_id BIGINT NOT NULL REFERENCES generations (id),
  step TEXT NOT NULL,
  PRIMARY KEY (generation_id, step)
);

CREATE INDEX artifact_refs_artifact ON artifact_refs (artifact_id);

CREATE TABLE locks (
  resource_key TEXT PRIMARY KEY,
  kind TEXT,
  ready INTEGER NOT NULL DEFAULT 0 CHECK (ready IN (0, 1)),
  token TEXT,
  worker_id TEXT,
  purpose TEXT,
  lease_until REAL,
  released_at REAL NOT NULL DEFAULT 0, wanted_until REAL, paused_until REAL,
  CHECK ((token IS NULL) = (lease_until IS NULL))
);

CREATE INDEX locks_free ON locks (kind, released_at) WHERE ready = 1 AND token IS NULL;

CREATE INDEX locks_held ON locks (lease_until) WHERE token IS NOT NULL;

CREATE TABLE purges (
  generation_id BIGINT PRIMARY KEY REFERENCES generations (id),
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  index_version INTEGER NOT NULL,
  not_before REAL NOT NULL
);

CREATE INDEX purges_due ON purges (not_before);

CREATE TABLE workers (
  id TEXT PRIMARY KEY,
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  started_at REAL NOT NULL,
  seen_at REAL NOT NULL
);

CREATE TABLE idempotency_keys (
  owner TEXT NOT NULL,
  key TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  document_id TEXT NOT NULL REFERENCES documents (id),
  created_at REAL NOT NULL,
  PRIMARY KEY (owner, key)
);

CREATE INDEX idempotency_keys_document ON idempotency_keys (document_id);

CREATE TABLE paces (
  kind TEXT PRIMARY KEY,
  seconds REAL NOT NULL
);

CREATE TRIGGER steps_transition BEFORE UPDATE OF status ON steps FOR EACH ROW WHEN OLD.status <> NEW.status AND (OLD.status || '>' || NEW.status) NOT IN ('PENDING>RUNNING', 'RUNNING>COMPLETED', 'RUNNING>ERROR', 'RUNNING>FAILED', 'RUNNING>CANCELLED', 'RUNNING>PENDING', 'ERROR>PENDING', 'PENDING>CANCELLED', 'ERROR>CANCELLED', 'FAILED>PENDING', 'CANCELLED>PENDING', 'COMPLETED>PENDING') BEGIN SELECT RAISE(ABORT, 'illegal transition of steps'); END;

CREATE TABLE lock_releases (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  resource_key TEXT NOT NULL,
  worker_id TEXT NOT NULL,
  purpose TEXT NOT NULL,
  lease_until REAL NOT NULL,
  steps INTEGER NOT NULL,
  released_by TEXT NOT NULL,
  released_at REAL NOT NULL
);

CREATE INDEX lock_releases_owner ON lock_releases (owner, id);

CREATE TABLE groups (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  batch TEXT,
  workflow TEXT NOT NULL,
  params TEXT,
  snapshot TEXT NOT NULL REFERENCES snapshots (hash),
  tells_end INTEGER NOT NULL CHECK (tells_end IN (0, 1)),
  sealed INTEGER NOT NULL CHECK (sealed IN (0, 1)),
  submitting_until REAL NOT NULL,
  total_runs INTEGER NOT NULL,
  open_runs INTEGER NOT NULL CHECK (open_runs >= 0),
  completions INTEGER NOT NULL DEFAULT 0,
  created_at REAL NOT NULL,
  finished_at REAL
);

CREATE INDEX groups_owner ON groups (owner, id);

CREATE INDEX groups_unsealed ON groups (submitting_until) WHERE sealed = 0;

CREATE UNIQUE INDEX documents_source ON documents (source, owner, collection) WHERE deleted_at IS NULL;

CREATE INDEX documents_batch ON documents (owner, batch) WHERE batch IS NOT NULL AND deleted_at IS NULL;

CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL,
  owner TEXT NOT NULL,
  snapshot TEXT NOT NULL,
  group_id TEXT,
  completion INTEGER,
  run_id TEXT,
  document_id TEXT,
  step TEXT,
  step_kind TEXT,
  attempt INTEGER NOT NULL DEFAULT 0,
  status TEXT,
  body TEXT NOT NULL DEFAULT '{}',
  at REAL NOT NULL,
  dispatched INTEGER NOT NULL DEFAULT 0 CHECK (dispatched IN (0, 1))
);

CREATE INDEX events_new ON events (id) WHERE dispatched = 0;

CREATE UNIQUE INDEX events_group ON events (group_id, kind, completion) WHERE completion IS NOT NULL;

CREATE TABLE deliveries (
  event_id BIGINT NOT NULL REFERENCES events (id),
  handler INTEGER NOT NULL,
  name TEXT NOT NULL,
  owner TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('PENDING', 'DELIVERED', 'FAILED')),
  attempts INTEGER NOT NULL DEFAULT 0,
  not_before REAL NOT NULL,
  token TEXT,
  worker_id TEXT,
  error TEXT,
  finished_at REAL,
  PRIMARY KEY (event_id, handler),
  CHECK (status = 'PENDING' OR token IS NULL)
);

CREATE INDEX deliveries_due ON deliveries (not_before) WHERE status = 'PENDING';

CREATE INDEX steps_timed ON steps (timeout_at)
  WHERE status = 'RUNNING' AND timeout_at IS NOT NULL;

CREATE INDEX steps_claim ON steps (coalesce(pool, kind), priority DESC, rank)
  WHERE status = 'PENDING' AND resource_key IS NULL;

CREATE INDEX steps_claim_keyed ON steps (resource_key, priority DESC, rank)
  WHERE status = 'PENDING' AND resource_key IS NOT NULL;

CREATE TABLE index_checksums (
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  version INTEGER NOT NULL,
  table_version INTEGER NOT NULL,
  sha256 TEXT NOT NULL,
  sealed_at REAL NOT NULL,
  PRIMARY KEY (owner, collection, version)
);

CREATE INDEX generations_kept ON generations (collection, flipped_at, id) WHERE state = 'ACTIVE' AND artifacts_dropped_at IS NULL;

CREATE INDEX generations_purged ON generations (id) WHERE state = 'PURGED';

CREATE INDEX runs_generation ON runs (generation_id);

CREATE TABLE histories (
  first_generation BIGINT PRIMARY KEY,
  last_before BIGINT NOT NULL,
  reason TEXT NOT NULL CHECK (reason IN ('restored', 'set_back')),
  missing BIGINT NOT NULL DEFAULT 0,
  begun_at REAL NOT NULL,
  settled_at REAL
);

CREATE TABLE positions (position BIGINT NOT NULL);

CREATE INDEX steps_failed ON steps (owner, status) WHERE status IN ('FAILED', 'CANCELLED');

CREATE INDEX snapshots_added ON snapshots (added_at);

CREATE TABLE targets (
  name TEXT PRIMARY KEY,
  state TEXT NOT NULL CHECK (state IN ('away', 'limited', 'unauthorized')),
  error TEXT NOT NULL,
  setting TEXT,
  owner TEXT,
  since REAL NOT NULL,
  failures INTEGER NOT NULL,
  held_until REAL NOT NULL,
  probe_token TEXT,
  probe_step BIGINT
);

CREATE INDEX steps_held ON steps (waiting_on, not_before) WHERE status = 'ERROR' AND waiting_on IS NOT NULL;

CREATE TABLE index_versions (
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version >= 1),
  state TEXT NOT NULL CHECK (state IN ('BUILDING', 'CURRENT', 'RETIRED')),
  embedder TEXT NOT NULL,
  dimensions INTEGER NOT NULL,
  created_at REAL NOT NULL, setting TEXT, store TEXT,
  PRIMARY KEY (owner, collection, version),
  FOREIGN KEY (owner, collection) REFERENCES collections (owner, name)
);

CREATE UNIQUE INDEX index_versions_current ON index_versions (owner, collection) WHERE state = 'CURRENT';

CREATE TABLE placements (
  generation_id BIGINT NOT NULL,
  version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('BUILDING', 'READY')),
  PRIMARY KEY (generation_id, version)
);

CREATE TABLE limits (
  name TEXT PRIMARY KEY,
  stated_requests REAL,
  stated_tokens REAL,
  next_at REAL NOT NULL DEFAULT 0,
  tokens_at REAL NOT NULL DEFAULT 0,
  held_until REAL NOT NULL DEFAULT 0,
  learnt REAL,
  ceiling REAL,
  throttles INTEGER NOT NULL DEFAULT 0,
  counted_from REAL NOT NULL DEFAULT 0,
  counted INTEGER NOT NULL DEFAULT 0,
  before_that INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE limit_slots (
  name TEXT NOT NULL,
  worker_id TEXT NOT NULL,
  slots INTEGER NOT NULL,
  wanted INTEGER NOT NULL,
  since REAL NOT NULL,
  lease_until REAL NOT NULL,
  PRIMARY KEY (name, worker_id)
);

CREATE INDEX limit_slots_worker ON limit_slots (worker_id);

CREATE TABLE small_blobs (
  key TEXT PRIMARY KEY,
  data BLOB NOT NULL,
  added_at REAL NOT NULL
);

CREATE INDEX collections_dropping ON collections (owner, name) WHERE drop_to IS NOT NULL;

CREATE INDEX documents_collection ON documents (owner, collection, id) WHERE deleted_at IS NULL;

CREATE INDEX documents_deleted ON documents (source, owner, collection) WHERE deleted_at IS NOT NULL;

CREATE TABLE forgotten (
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  source TEXT NOT NULL,
  forgotten_at REAL NOT NULL,
  PRIMARY KEY (owner, collection, source)
);

CREATE TABLE answer_segments (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  key TEXT NOT NULL UNIQUE,
  sha256 TEXT NOT NULL,
  size BIGINT NOT NULL,
  used_at REAL NOT NULL
);

CREATE INDEX answer_segments_used ON answer_segments (used_at, id);

CREATE TABLE answers (
  owner TEXT NOT NULL,
  digest TEXT NOT NULL,
  segment_id BIGINT NOT NULL,
  position BIGINT NOT NULL,
  size BIGINT NOT NULL, tokens BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (owner, digest)
);

CREATE INDEX answers_segment ON answers (segment_id);

CREATE TABLE operations (
  owner TEXT NOT NULL,
  digest TEXT NOT NULL,
  operation TEXT NOT NULL,
  started_at REAL NOT NULL,
  PRIMARY KEY (owner, digest)
);

CREATE INDEX operations_started ON operations (started_at);

CREATE INDEX documents_parent ON documents (parent_id, id) WHERE parent_id IS NOT NULL AND deleted_at IS NULL;

CREATE TABLE run_settings (
  fingerprint TEXT PRIMARY KEY,
  body TEXT NOT NULL
);

CREATE TABLE usage (
  owner TEXT NOT NULL,
  model TEXT NOT NULL,
  day TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('bought', 'query', 'cached', 'resumed')),
  texts BIGINT NOT NULL,
  characters BIGINT NOT NULL,
  tokens BIGINT NOT NULL,
  cost BIGINT NOT NULL,
  unpriced BIGINT NOT NULL,
  PRIMARY KEY (owner, model, day, kind)
);

CREATE TABLE run_usage (
  run_id TEXT NOT NULL,
  model TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('bought', 'query', 'cached', 'resumed')),
  owner TEXT NOT NULL,
  texts BIGINT NOT NULL,
  characters BIGINT NOT NULL,
  tokens BIGINT NOT NULL,
  cost BIGINT NOT NULL,
  unpriced BIGINT NOT NULL,
  PRIMARY KEY (run_id, model, kind)
);

CREATE TABLE reindexes (
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  version INTEGER NOT NULL,
  former INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('BUILDING', 'PAUSED', 'CANCELLING', 'DONE')),
  recipe TEXT NOT NULL,
  former_recipe TEXT NOT NULL,
  begun_at REAL NOT NULL,
  ended_at REAL,
  PRIMARY KEY (owner, collection),
  FOREIGN KEY (owner, collection) REFERENCES collections (owner, name)
);

CREATE INDEX generations_staging ON generations (owner, collection, index_version, flipped_at) WHERE staging = 1;

CREATE TABLE api_keys (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  parent TEXT,
  sha256 TEXT NOT NULL,
  signing TEXT NOT NULL,
  scopes TEXT NOT NULL,
  collections TEXT,
  created_at REAL NOT NULL,
  created_by TEXT NOT NULL,
  expires_at REAL,
  revoked_at REAL,
  used_at REAL
);

CREATE INDEX api_keys_owner ON api_keys (owner, id) WHERE parent IS NULL;

CREATE INDEX api_keys_parent ON api_keys (parent) WHERE parent IS NOT NULL;

CREATE TABLE audit_log (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  given TEXT NOT NULL,
  former TEXT NOT NULL,
  at REAL NOT NULL
);

CREATE INDEX audit_log_owner ON audit_log (owner, id);

CREATE INDEX audit_log_at ON audit_log (at);

CREATE TABLE requests (
  owner TEXT NOT NULL,
  key TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  token TEXT,
  lease_until REAL NOT NULL,
  status INTEGER,
  headers TEXT,
  body BLOB,
  created_at REAL NOT NULL,
  PRIMARY KEY (owner, key),
  CHECK ((token IS NULL) = (status IS NOT NULL))
);

CREATE INDEX requests_created ON requests (created_at);

CREATE INDEX deliveries_handler ON deliveries (owner, name, event_id);

CREATE TABLE numbers (
  owner TEXT NOT NULL,
  kind TEXT NOT NULL,
  n BIGINT NOT NULL,
  id TEXT NOT NULL,
  PRIMARY KEY (owner, kind, n),
  UNIQUE (owner, kind, id)
);

CREATE TABLE batches (
  owner TEXT NOT NULL,
  batch TEXT NOT NULL,
  source TEXT NOT NULL,
  name TEXT NOT NULL,
  created_at REAL NOT NULL,
  PRIMARY KEY (owner, batch)
);

CREATE TABLE sync_states (
  owner TEXT NOT NULL,
  source TEXT NOT NULL,
  body TEXT NOT NULL,
  updated_at REAL NOT NULL,
  PRIMARY KEY (owner, source)
);

CREATE INDEX documents_sha256 ON documents (owner, sha256) WHERE deleted_at IS NULL;

CREATE INDEX documents_changed ON documents (owner, updated_at, id);

CREATE TABLE uploads (
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
  lease_until REAL NOT NULL,
  created_at REAL NOT NULL,
  expires_at REAL NOT NULL
);

CREATE INDEX uploads_owner ON uploads (owner, id);

CREATE INDEX uploads_expiring ON uploads (expires_at);

CREATE INDEX uploads_whole ON uploads (id) WHERE state = 'OPEN' AND received = size;

CREATE TABLE upload_parts (
  upload_id TEXT NOT NULL REFERENCES uploads (id),
  first BIGINT NOT NULL,
  size BIGINT NOT NULL,
  key TEXT NOT NULL UNIQUE,
  PRIMARY KEY (upload_id, first)
);

CREATE TABLE actions (
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
  lease_until REAL NOT NULL,
  created_at REAL NOT NULL,
  finished_at REAL
);

CREATE INDEX actions_owner ON actions (owner, id);

CREATE INDEX actions_open ON actions (id) WHERE state IN ('CHOOSING', 'WORKING');

CREATE TABLE action_items (
  action_id TEXT NOT NULL REFERENCES actions (id),
  ordinal BIGINT NOT NULL,
  item TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('WAITING', 'CHANGED', 'UNCHANGED', 'FAILED')),
  error TEXT,
  PRIMARY KEY (action_id, ordinal)
);

CREATE INDEX action_items_waiting ON action_items (action_id, ordinal) WHERE state = 'WAITING';

CREATE INDEX action_items_failed ON action_items (action_id, ordinal) WHERE state = 'FAILED';

CREATE INDEX documents_status ON documents (owner, status, id) WHERE deleted_at IS NULL;

CREATE TRIGGER documents_transition BEFORE UPDATE OF status ON documents FOR EACH ROW WHEN OLD.status <> NEW.status AND (OLD.status || '>' || NEW.status) NOT IN ('PENDING>EXTRACTING', 'PENDING>CHUNKING', 'PENDING>EMBEDDING', 'PENDING>INDEXING', 'PENDING>COMPLETED', 'PENDING>NOT_INDEXABLE', 'PENDING>FAILED', 'PENDING>CANCELLED', 'EXTRACTING>CHUNKING', 'EXTRACTING>EMBEDDING', 'EXTRACTING>INDEXING', 'CHUNKING>EXTRACTING', 'CHUNKING>EMBEDDING', 'CHUNKING>INDEXING', 'EMBEDDING>EXTRACTING', 'EMBEDDING>CHUNKING', 'EMBEDDING>INDEXING', 'INDEXING>EXTRACTING', 'INDEXING>CHUNKING', 'INDEXING>EMBEDDING', 'EXTRACTING>COMPLETED', 'CHUNKING>COMPLETED', 'EMBEDDING>COMPLETED', 'INDEXING>COMPLETED', 'EXTRACTING>NOT_INDEXABLE', 'CHUNKING>NOT_INDEXABLE', 'EMBEDDING>NOT_INDEXABLE', 'INDEXING>NOT_INDEXABLE', 'EXTRACTING>FAILED', 'CHUNKING>FAILED', 'EMBEDDING>FAILED', 'INDEXING>FAILED', 'EXTRACTING>CANCELLED', 'CHUNKING>CANCELLED', 'EMBEDDING>CANCELLED', 'INDEXING>CANCELLED', 'FAILED>PENDING', 'CANCELLED>PENDING', 'NOT_INDEXABLE>PENDING', 'COMPLETED>PENDING', 'PENDING>UNSUPPORTED', 'EXTRACTING>UNSUPPORTED', 'CHUNKING>UNSUPPORTED', 'EMBEDDING>UNSUPPORTED', 'INDEXING>UNSUPPORTED', 'UNSUPPORTED>PENDING', 'PENDING>HELD', 'EXTRACTING>HELD', 'CHUNKING>HELD', 'EMBEDDING>HELD', 'INDEXING>HELD', 'COMPLETED>HELD', 'NOT_INDEXABLE>HELD', 'UNSUPPORTED>HELD', 'FAILED>HELD', 'CANCELLED>HELD', 'HELD>PENDING', 'HELD>CANCELLED') BEGIN SELECT RAISE(ABORT, 'illegal transition of documents'); END;

CREATE UNIQUE INDEX runs_open ON runs (document_id) WHERE status = 'OPEN';

CREATE INDEX runs_group ON runs (group_id, status) WHERE group_id IS NOT NULL;

CREATE TABLE webhooks (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  url TEXT NOT NULL,
  secret TEXT NOT NULL,
  events TEXT NOT NULL,
  collections TEXT,
  state TEXT NOT NULL CHECK (state IN ('ACTIVE', 'DISABLED')),
  reason TEXT,
  failures INTEGER NOT NULL DEFAULT 0,
  failing_since REAL,
  held_until REAL,
  taken_at REAL,
  token TEXT,
  worker_id TEXT,
  lease_until REAL,
  created_at REAL NOT NULL,
  created_by TEXT NOT NULL
);

CREATE INDEX webhooks_owner ON webhooks (owner, id);

CREATE TABLE webhook_deliveries (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  webhook_id TEXT NOT NULL,
  owner TEXT NOT NULL,
  kind TEXT NOT NULL,
  run_id TEXT,
  document_id TEXT,
  group_id TEXT,
  completion INTEGER,
  outcome TEXT,
  status TEXT NOT NULL CHECK (status IN ('PENDING', 'DELIVERED', 'FAILED')),
  attempts INTEGER NOT NULL DEFAULT 0,
  not_before REAL NOT NULL,
  since REAL NOT NULL,
  error TEXT,
  answer_status INTEGER,
  answer TEXT,
  created_at REAL NOT NULL,
  finished_at REAL
);

CREATE INDEX webhook_deliveries_due ON webhook_deliveries (webhook_id, not_before) WHERE status = 'PENDING';

CREATE INDEX webhook_deliveries_listed ON webhook_deliveries (webhook_id, id);

CREATE TRIGGER runs_webhooks AFTER UPDATE OF status ON runs FOR EACH ROW WHEN (NEW.status IN ('COMPLETED', 'FAILED', 'CANCELLED') AND OLD.status IN ('OPEN', 'HELD')) BEGIN INSERT INTO webhook_deliveries (webhook_id, owner, kind, run_id, document_id, outcome, status, not_before, created_at, since) SELECT w.id, w.owner, CASE NEW.status WHEN 'FAILED' THEN 'ITEM_FAILED' ELSE 'ITEM_END' END, NEW.id, NEW.document_id, CASE NEW.status WHEN 'COMPLETED' THEN (SELECT d.status FROM documents d WHERE d.id = NEW.document_id) ELSE NEW.status END, 'PENDING', NEW.finished_at, NEW.finished_at, NEW.finished_at FROM webhooks w WHERE w.owner = NEW.owner AND w.state = 'ACTIVE' AND instr(w.events, '"' || CASE NEW.status WHEN 'FAILED' THEN 'ITEM_FAILED' ELSE 'ITEM_END' END || '"') > 0 AND (w.collections IS NULL OR instr(w.collections, '"' || (SELECT d.collection FROM documents d WHERE d.id = NEW.document_id) || '"') > 0); END;

CREATE TRIGGER groups_webhooks AFTER UPDATE OF completions ON groups FOR EACH ROW WHEN (NEW.completions > OLD.completions AND NEW.finished_at IS NOT NULL) BEGIN INSERT INTO webhook_deliveries (webhook_id, owner, kind, group_id, completion, status, not_before, created_at, since) SELECT w.id, w.owner, 'GROUP_END', NEW.id, NEW.completions, 'PENDING', NEW.finished_at, NEW.finished_at, NEW.finished_at FROM webhooks w WHERE w.owner = NEW.owner AND w.state = 'ACTIVE' AND instr(w.events, '"' || 'GROUP_END' || '"') > 0 AND (w.collections IS NULL OR instr(w.collections, '"' || NEW.collection || '"') > 0); END;

CREATE TABLE intake_pauses (
  owner TEXT PRIMARY KEY,
  reason TEXT NOT NULL,
  paused_at REAL NOT NULL,
  paused_by TEXT NOT NULL
);

CREATE TABLE quotas (
  owner TEXT PRIMARY KEY,
  documents BIGINT,
  bytes BIGINT,
  requests_per_s REAL,
  changed_at REAL NOT NULL,
  changed_by TEXT NOT NULL
);

CREATE TABLE holdings (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  documents BIGINT NOT NULL,
  bytes BIGINT NOT NULL
);

CREATE INDEX holdings_owner ON holdings (owner);

CREATE TRIGGER holdings_added AFTER INSERT ON documents FOR EACH ROW WHEN NEW.deleted_at IS NULL BEGIN INSERT INTO holdings (owner, documents, bytes) SELECT NEW.owner, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM holdings h WHERE h.owner = NEW.owner); UPDATE holdings SET documents = documents + 1, bytes = bytes + NEW.size WHERE id = (SELECT h.id FROM holdings h WHERE h.owner = NEW.owner LIMIT 1); END;

CREATE TRIGGER holdings_changed AFTER UPDATE OF size, deleted_at ON documents FOR EACH ROW WHEN (OLD.size <> NEW.size OR (OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL)) BEGIN INSERT INTO holdings (owner, documents, bytes) SELECT NEW.owner, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM holdings h WHERE h.owner = NEW.owner); UPDATE holdings SET documents = documents + (CASE WHEN NEW.deleted_at IS NULL THEN 1 ELSE 0 END - CASE WHEN OLD.deleted_at IS NULL THEN 1 ELSE 0 END), bytes = bytes + (CASE WHEN NEW.deleted_at IS NULL THEN NEW.size ELSE 0 END - CASE WHEN OLD.deleted_at IS NULL THEN OLD.size ELSE 0 END) WHERE id = (SELECT h.id FROM holdings h WHERE h.owner = NEW.owner LIMIT 1); END;

CREATE TABLE vector_stores (
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  name TEXT NOT NULL,
  metadata TEXT NOT NULL,
  created_at REAL NOT NULL,
  PRIMARY KEY (owner, collection)
);

CREATE TABLE file_batches (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  collection TEXT NOT NULL,
  documents TEXT NOT NULL,
  cancelled INTEGER NOT NULL DEFAULT 0 CHECK (cancelled IN (0, 1)),
  created_at REAL NOT NULL
);

CREATE INDEX file_batches_store ON file_batches (owner, collection, created_at);

CREATE TABLE step_samples (
  owner TEXT NOT NULL,
  width INTEGER NOT NULL,
  slot BIGINT NOT NULL,
  kind TEXT NOT NULL,
  completed BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  items BIGINT NOT NULL,
  seconds REAL NOT NULL,
  slowest REAL NOT NULL,
  PRIMARY KEY (owner, width, slot, kind)
);

CREATE TABLE queue_samples (
  owner TEXT NOT NULL,
  width INTEGER NOT NULL,
  slot BIGINT NOT NULL,
  waiting BIGINT NOT NULL,
  working BIGINT NOT NULL,
  most BIGINT NOT NULL,
  spent BIGINT NOT NULL,
  saved BIGINT NOT NULL,
  PRIMARY KEY (owner, width, slot)
);

CREATE TABLE "dead_letters" (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  document_id TEXT REFERENCES documents (id),
  run_id TEXT REFERENCES runs (id),
  step TEXT NOT NULL,
  kind TEXT NOT NULL,
  reason TEXT NOT NULL,
  error TEXT NOT NULL,
  traceback TEXT,
  page INTEGER,
  attempts INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('OPEN', 'REPLAYED', 'DISCARDED')),
  created_at REAL NOT NULL,
  closed_at REAL,
  event_id BIGINT REFERENCES events (id),
  handler INTEGER,
  place TEXT,
  body TEXT,
  CHECK ((run_id IS NOT NULL AND event_id IS NULL AND place IS NULL) OR (run_id IS NULL AND event_id IS NOT NULL AND place IS NULL) OR (run_id IS NULL AND event_id IS NULL AND place IS NOT NULL))
);

CREATE UNIQUE INDEX dead_letters_open ON dead_letters (run_id) WHERE state = 'OPEN';

CREATE INDEX dead_letters_owner ON dead_letters (owner, id) WHERE state = 'OPEN';

CREATE INDEX dead_letters_event ON dead_letters (event_id) WHERE event_id IS NOT NULL;

CREATE UNIQUE INDEX dead_letters_open_event ON dead_letters (event_id, handler) WHERE state = 'OPEN' AND event_id IS NOT NULL;

CREATE INDEX dead_letters_run ON dead_letters (run_id);

CREATE INDEX dead_letters_closed ON dead_letters (id) WHERE state <> 'OPEN';

CREATE INDEX dead_letters_document ON dead_letters (document_id);

CREATE UNIQUE INDEX dead_letters_place ON dead_letters (owner, place) WHERE place IS NOT NULL;

INSERT INTO positions VALUES (0);
