"""The verbs that PostgreSQL runs as one data-modifying statement: submit, claim, complete and flip.

A single statement takes a third of the time of its parts, and alone it needs no transaction around it. Each is written
here as a whole. `{if part}…{else}…{end}` marks what only some calls need: a part costs time even if it has nothing to
do. SQLite runs the same verbs as several statements: `enter` and `_begin` in submissions.py, `_claim_statement` in
claims.py, `_complete` in completions.py, `_flip` in flips.py. A change of one form needs the same change of the other.

Besides the macros of `Statement` there are `{live}`, the statuses of documents that have not ended, and
`{status of KIND}`, the status that a document shows while a step of that kind runs. `{version}` is the index version of
new generations.

These statements cross owners (I10)."""

import re
from functools import cache

from penstock.ledger.database.statements import Statement
from penstock.ledger.engine.checkpoints import SEGMENT_COLUMNS
from penstock.ledger.engine.collections import VERSION_HERE
from penstock.ledger.engine.steps import LIVE
from penstock.model.states import SHOWN_AS

_PART = re.compile(r"\{if (\w+)\}(.*?)(?:\{else\}(.*?))?\{end\}", re.DOTALL)
_STATUS_OF = re.compile(r"\{status of ([\w.]+)\}")
_WHENS = " ".join(f"WHEN '{kind}' THEN '{status}'" for kind, status in SHOWN_AS.items())


def _text(whole: str, **parts: bool) -> str:
    """The text with the parts that are wanted, on one line."""
    text = _PART.sub(lambda match: match[2] if parts[match[1]] else match[3] or "", whole)
    text = _STATUS_OF.sub(rf"CASE \1 {_WHENS} END", text).replace("{live}", LIVE)
    text = text.replace("{version}", VERSION_HERE)
    return " ".join(text.split())


# `front`: start-time fair queuing. An owner starts at the front of what has not begun, never before it.
# `begun` has all that the rows need: nothing is joined, and `IS TRUE` keeps the planner from making a join of it.
_SUBMIT = """
WITH front AS MATERIALIZED (
  SELECT
    coalesce(
      (SELECT min(rank) FROM steps WHERE status = 'PENDING' AND epoch = 0 AND priority = :priority),
      (SELECT max(last_rank) FROM ranks WHERE priority = :priority),
      0
    ) AS front,
    coalesce((SELECT last_rank FROM ranks WHERE priority = :priority AND owner = :owner), 0) AS own
),
{if entering}
entered AS (
  INSERT INTO documents (id, owner, collection, source, name, size, sha256, metadata, status, batch, created_at,
    updated_at)
  SELECT r.document, :owner, :collection, r.source, r.name, r.size, r.sha256, r.metadata, :entry, :batch, {now},
    {now}
  FROM {rows}
  WHERE true
  ON CONFLICT (source, owner, collection) WHERE deleted_at IS NULL DO NOTHING
  RETURNING id
),
{end}
begun AS MATERIALIZED (
  SELECT n.*, nextval('generations_id_seq') AS generation,
    n.place + (SELECT greatest(front, own) FROM front) AS rank
  FROM (
    SELECT r.*, row_number() OVER () AS place
    FROM {rows}
    {if entering} WHERE (r.document IN (SELECT id FROM entered)) IS TRUE {end}
  ) AS n
),
named AS (
  INSERT INTO collections (owner, name, created_at) VALUES (:owner, :collection, {now}) ON CONFLICT DO NOTHING
),
kept AS (
  INSERT INTO snapshots (hash, body, added_at) VALUES (:snapshot, :body, {now}) ON CONFLICT DO NOTHING
),
settled AS (
  INSERT INTO run_settings (fingerprint, body) VALUES (:settings, :settings_body) ON CONFLICT DO NOTHING
),
made AS (
  INSERT INTO generations (id, document_id, owner, collection, index_version, state, raw_key, size, sha256, created_at)
  SELECT r.generation, r.document, :owner, :collection,
    {version},
    'BUILDING', r.raw_key, r.size, r.sha256, {now}
  FROM begun r
  WHERE true
),
{if small}
small AS (
  INSERT INTO small_blobs (key, data, added_at)
  SELECT r.raw_key, r.data, {now} FROM begun r WHERE r.data IS NOT NULL
),
{end}
{if started}
ranked AS (
  INSERT INTO ranks (owner, priority, last_rank)
  SELECT :owner, :priority, max(rank) FROM begun HAVING count(*) > 0
  ON CONFLICT (priority, owner) DO UPDATE SET last_rank = greatest(ranks.last_rank, excluded.last_rank)
),
{end}
ran AS (
  INSERT INTO runs (id, document_id, generation_id, owner, snapshot, settings, status, priority, rank, group_id,
    created_at)
  SELECT r.run, r.document, r.generation, :owner, :snapshot, :settings, :run_status, :priority, r.rank, r.family, {now}
  FROM begun r
  WHERE true
)
{if started}
, first AS (
  INSERT INTO steps (run_id, position, document_id, generation_id, owner, snapshot, name, kind, pool, resource_key,
    status, priority, rank, created_at)
  SELECT r.run, 0, r.document, r.generation, :owner, :snapshot, :step, :kind, :pool, :key, 'PENDING', :priority, r.rank,
    {now}
  FROM begun r
  WHERE true
)
{end}
{if grouped}
, grouped AS (
  INSERT INTO groups (id, owner, collection, batch, workflow, params, snapshot, tells_end, sealed, submitting_until,
    total_runs, open_runs, created_at)
  SELECT :family, :owner, :collection, :batch, :workflow, :params, :snapshot, :tells_end, :sealed, {now} + :submit_s,
    count(*), count(*), {now}
  FROM begun
  HAVING count(*) > 0
  ON CONFLICT (id) DO UPDATE SET
    sealed = excluded.sealed,
    submitting_until = excluded.submitting_until,
    total_runs = groups.total_runs + excluded.total_runs,
    open_runs = groups.open_runs + excluded.open_runs,
    finished_at = NULL
  RETURNING total_runs
)
{end}
SELECT document, {if grouped} (SELECT total_runs FROM grouped) {else} 0 {end}
  {if entering} , CASE WHEN :notifies THEN pg_notify('penstock', '') END {end}
FROM begun
"""


@cache
def submit(entering: bool, grouped: bool, small: bool, held: bool) -> Statement:
    """`entering`: with new documents; `grouped`: the runs belong to a group; `small`: some bring their bytes; `held`:
    they are not started."""
    columns = "run text, document text, raw_key text, size bigint, sha256 text, family text"
    columns += ", data bytea" * small
    return Statement(
        _text(
            _SUBMIT.replace("{version}", VERSION_HERE),
            entering=entering,
            grouped=grouped,
            small=small,
            started=not held,
        ),
        rows=columns + ", source text, name text, metadata text" * entering,
    )


# One candidate list a kind, each with its own order and limit, so that the planner walks the left end of the index
# (I11). The documents are read as they were before the statement: their new status is computed.
_CLAIM = """
WITH claimed AS (
  UPDATE steps SET
    status = 'RUNNING',
    lease_token = :token,
    epoch = epoch + 1,
    attempts = attempts + 1,
    lease_until = {now} + :lease_s,
    worker_id = :worker,
    started_at = coalesce(started_at, {now}),
    waiting_on = NULL,
    timeout_at = NULL
  WHERE id IN (
    SELECT id FROM ({candidates}) AS candidates ORDER BY priority DESC, rank LIMIT :count
  )
  RETURNING id, lease_token, epoch, resource_key, run_id, document_id, generation_id, owner, snapshot, position, kind,
    name, priority, rank, attempts, crashes, errors, pool, forgiven, refused
),
shown AS (
  UPDATE documents SET
    status = {status of c.kind},
    password = CASE WHEN {status of c.kind} IN ('PENDING', 'EXTRACTING') THEN documents.password END,
    updated_at = {now}
  FROM claimed c
  WHERE documents.id = c.document_id AND documents.status <> {status of c.kind} AND documents.status IN ({live})
)
SELECT c.*, d.id, d.owner, d.collection, d.source, d.name, d.media_type, d.size, d.sha256, d.metadata,
  CASE WHEN d.status IN ({live}) THEN coalesce({status of c.kind}, d.status) ELSE d.status END,
  d.retry_count, d.error, NULL, NULL, d.created_at, d.updated_at, g.id, g.document_id, g.index_version, g.raw_key,
  g.size, g.sha256, g.staging, (SELECT i.store FROM index_versions i WHERE i.owner = g.owner
    AND i.collection = g.collection AND i.version = g.index_version)
FROM claimed c
LEFT JOIN documents d ON d.id = c.document_id AND d.deleted_at IS NULL
LEFT JOIN generations g ON g.id = c.generation_id
"""
_CANDIDATES = """
SELECT * FROM (
  SELECT id, priority, rank FROM steps
  WHERE status = 'PENDING' AND resource_key IS NULL AND coalesce(pool, kind) = :kind{i}
  ORDER BY priority DESC, rank LIMIT :count {skip}
) AS k{i}
"""


@cache
def claim(kinds: int) -> Statement:
    """For so many kinds, or pools. Its columns are `steps.STEP`, then `documents.LIVE_COLUMNS`."""
    candidates = " UNION ALL ".join(_CANDIDATES.replace("{i}", str(i)) for i in range(kinds))
    return Statement(_text(_CLAIM.replace("{candidates}", candidates)))


# The next step is claimed as well if it comes with a token, unless something more urgent waits.
_COMPLETE = """
WITH done AS (
  UPDATE steps SET
    status = 'COMPLETED',
    lease_token = NULL,
    finished_at = {now},
    meta = r.meta,
    error = NULL,
    waiting_on = NULL
  FROM {rows}
  WHERE {steps.id = r.step} AND steps.lease_token = r.token
  RETURNING steps.id, steps.run_id, steps.document_id, steps.generation_id, steps.owner, steps.snapshot,
    steps.priority, steps.rank, r.next_position, r.next_name, r.next_kind, r.next_pool, r.next_key, r.next_token
    {if shown} , r.shown, r.media {end}
    {if made} , r.artifact, r.pos, r.total, r.count, r.info {end}
),
following AS (
  INSERT INTO steps (run_id, position, document_id, generation_id, owner, snapshot, name, kind, pool, status, priority,
    rank, resource_key, attempts, epoch, lease_token, lease_until, worker_id, created_at, started_at)
  SELECT run_id, next_position, document_id, generation_id, owner, snapshot, next_name, next_kind, next_pool,
    CASE WHEN token IS NULL THEN 'PENDING' ELSE 'RUNNING' END,
    priority, rank, next_key,
    CASE WHEN token IS NULL THEN 0 ELSE 1 END,
    CASE WHEN token IS NULL THEN 0 ELSE 1 END,
    token,
    CASE WHEN token IS NOT NULL THEN {now} + :lease_s END,
    CASE WHEN token IS NOT NULL THEN :worker END,
    {now},
    CASE WHEN token IS NOT NULL THEN {now} END
  FROM (
    SELECT done.*,
      CASE WHEN priority >= coalesce((
        SELECT s.priority FROM steps s WHERE s.status = 'PENDING' AND s.epoch = 0 ORDER BY s.priority DESC LIMIT 1
      ), priority) THEN next_token END AS token
    FROM done
    OFFSET 0
  ) AS n
  RETURNING id, run_id, lease_token
)
{if shown}
, shown AS (
  UPDATE documents SET
    status = CASE WHEN f.lease_token IS NULL THEN documents.status ELSE coalesce(done.shown, documents.status) END,
    password = CASE
      WHEN CASE WHEN f.lease_token IS NULL THEN documents.status ELSE coalesce(done.shown, documents.status) END
        IN ('PENDING', 'EXTRACTING') THEN documents.password
    END,
    media_type = coalesce(done.media, documents.media_type),
    updated_at = {now}
  FROM done JOIN following f ON f.run_id = done.run_id
  WHERE documents.id = done.document_id AND documents.status IN ({live})
    AND (done.shown IS NOT NULL OR done.media IS NOT NULL)
)
{end}
{if made}
, made AS (
  UPDATE artifacts SET
    state = 'COMPLETE',
    token = NULL,
    cursor = done.pos,
    items = done.total,
    segments = done.count,
    meta = done.info,
    updated_at = {now}
  FROM done
  WHERE artifacts.id = done.artifact AND artifacts.state = 'BUILDING'
),
named AS (
  INSERT INTO segments (artifact_id, ordinal, key, sha256, size, items, first, cursor)
  SELECT m.artifact, m.ordinal, m.key, m.sha256, m.size, m.items, m.first, m.cursor
  FROM {more} JOIN done ON done.artifact = m.artifact
)
{end}
{if small}
, small AS (
  INSERT INTO small_blobs (key, data, added_at)
  SELECT m.key, m.data, {now}
  FROM {more} JOIN done ON done.artifact = m.artifact
  WHERE m.data IS NOT NULL
)
{end}
{if keyed}
, ready AS (
  INSERT INTO locks (resource_key, kind, ready)
  SELECT next_key, min(coalesce(next_pool, next_kind)), 1
  FROM done
  WHERE next_key IS NOT NULL
  GROUP BY next_key
  ORDER BY next_key {bytes}
  ON CONFLICT (resource_key) DO UPDATE SET ready = 1, kind = excluded.kind
)
{end}
SELECT done.id, f.id, f.lease_token FROM done JOIN following f ON f.run_id = done.run_id
"""


@cache
def complete(shown: bool, made: bool, keyed: bool, small: bool) -> Statement:
    """`shown`: some documents change their status or media type; `made`: some steps made an artifact, whose segments
    are the second set of rows; `keyed`: some next steps have a resource key; `small`: some segments bring their
    bytes."""
    columns = (
        "step bigint, token text, meta text, next_position int, next_name text, next_kind text, next_pool text, "
        "next_key text, next_token text"
    )
    columns += ", shown text, media text" * shown
    columns += ", artifact bigint, pos text, total bigint, count int, info text" * made
    text = _text(_COMPLETE, shown=shown, made=made, keyed=keyed, small=small)
    return Statement(text, rows=columns, more=SEGMENT_COLUMNS if made else "")


# The five conditions of I5 are those of `_FLIP` in flips.py. Scalar subqueries, not EXISTS: PostgreSQL turns the latter
# into joins, whose plan goes bad as the tables grow. `coming` reads `going`, so that the old generation is out before
# the new one comes in.
_FLIP = """
WITH done AS (
  UPDATE steps SET
    status = 'COMPLETED',
    lease_token = NULL,
    finished_at = {now},
    meta = r.meta,
    error = NULL,
    waiting_on = NULL
  FROM {rows}
  WHERE {steps.id = r.step} AND steps.lease_token = r.token
    AND (steps.resource_key IS NULL OR (
      SELECT locks.lease_until FROM locks WHERE locks.resource_key = steps.resource_key AND locks.token = r.token
    ) > {now})
    AND (SELECT runs.status FROM runs WHERE runs.id = steps.run_id) = 'OPEN'
    AND (SELECT documents.deleted_at IS NULL FROM documents WHERE documents.id = steps.document_id)
    AND (SELECT g.state FROM generations g WHERE g.id = steps.generation_id) = 'BUILDING'
    AND coalesce((
      SELECT a.id FROM generations a WHERE a.document_id = steps.document_id AND a.state = 'ACTIVE'
    ), 0) < steps.generation_id
  RETURNING steps.*, r.shown, r.page_count, r.chunk_count, r.found, r.artifact, r.pos, r.total, r.count, r.info
),
going AS (
  UPDATE generations SET state = 'SUPERSEDED'
  FROM done
  WHERE generations.document_id = done.document_id AND generations.state = 'ACTIVE'
  RETURNING generations.*
),
purging AS (
  INSERT INTO purges (generation_id, owner, collection, index_version, not_before)
  SELECT id, owner, collection, index_version, {now} + :grace FROM going
  ON CONFLICT (generation_id) DO NOTHING
),
coming AS (
  UPDATE generations SET state = 'ACTIVE', flipped_at = {now}, pages = done.page_count, chunks = done.chunk_count,
    found = done.found
  FROM done
  WHERE generations.id = done.generation_id AND (SELECT count(*) FROM going) >= 0
),
ended AS (
  UPDATE documents SET status = done.shown, error = NULL, password = NULL, updated_at = {now}
  FROM done
  WHERE documents.id = done.document_id
),
closed AS (
  UPDATE runs SET status = 'COMPLETED', finished_at = {now}
  FROM done
  WHERE runs.id = done.run_id
  RETURNING runs.group_id
),
counted AS (
  UPDATE groups SET
    open_runs = open_runs - r.n,
    completions = completions + CASE WHEN sealed = 1 AND open_runs = r.n THEN 1 ELSE 0 END,
    finished_at = CASE WHEN sealed = 1 AND open_runs = r.n THEN {now} END
  FROM (
    SELECT group_id, count(*)::int AS n FROM closed
    WHERE group_id IS NOT NULL GROUP BY group_id ORDER BY group_id
  ) AS r
  WHERE groups.id = r.group_id
  RETURNING groups.*
),
told AS (
  INSERT INTO events (kind, owner, snapshot, group_id, completion, at)
  SELECT 'GROUP_END', owner, snapshot, id, completions, {now} FROM counted
  WHERE finished_at IS NOT NULL AND tells_end = 1
)
{if made}
, made AS (
  UPDATE artifacts SET
    state = 'COMPLETE',
    token = NULL,
    cursor = done.pos,
    items = done.total,
    segments = done.count,
    meta = done.info,
    updated_at = {now}
  FROM done
  WHERE artifacts.id = done.artifact AND artifacts.state = 'BUILDING'
),
named AS (
  INSERT INTO segments (artifact_id, ordinal, key, sha256, size, items, first, cursor)
  SELECT m.artifact, m.ordinal, m.key, m.sha256, m.size, m.items, m.first, m.cursor
  FROM {more} JOIN done ON done.artifact = m.artifact
)
{end}
{if small}
, small AS (
  INSERT INTO small_blobs (key, data, added_at)
  SELECT m.key, m.data, {now}
  FROM {more} JOIN done ON done.artifact = m.artifact
  WHERE m.data IS NOT NULL
)
{end}
{if placed}
, placed AS (
  UPDATE placements SET state = 'READY'
  FROM done
  WHERE placements.generation_id = done.generation_id
)
{end}
SELECT id FROM done
"""


@cache
def flip(made: bool, placed: bool, small: bool) -> Statement:
    """`made`: some steps made an artifact, whose segments are the second set of rows; `placed`: some index steps;
    `small`: some segments bring their bytes."""
    return Statement(
        _text(_FLIP, made=made, placed=placed, small=small),
        rows="step bigint, token text, meta text, shown text, page_count int, chunk_count int, found text, "
        "artifact bigint, pos text, total bigint, count int, info text",
        more=SEGMENT_COLUMNS if made else "",
    )
