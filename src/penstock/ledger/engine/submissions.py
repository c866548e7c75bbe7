"""How runs come into being: generation, run, first step, rank and group, with the document itself where it is new. One
statement on PostgreSQL, several on SQLite."""

import json
from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import groups, outbox, postgres_statements, small_blobs
from penstock.ledger.engine.admission import Quota
from penstock.ledger.engine.children import Parent
from penstock.ledger.engine.collections import VERSION_HERE
from penstock.ledger.engine.resource_keys import ready
from penstock.model import settings
from penstock.model.events import EventKind
from penstock.model.nouns import DocumentId, Json, Owner, RunId


class NewDocument(msgspec.Struct, frozen=True):
    """A file whose bytes are safe, or that is known to be unchanged (`raw_key` is None)."""

    id: DocumentId
    run_id: RunId
    source: str
    name: str
    sha256: str
    size: int
    raw_key: str | None
    metadata: Json
    key: str | None = None
    data: bytes | None = None
    """The bytes of a small file. They are stored together with the rows."""


class FirstStep(msgspec.Struct, frozen=True):
    name: str
    kind: str
    pool: str | None = None
    resource_key: str | None = None


class Submission(msgspec.Struct, frozen=True):
    """Documents of one owner and collection that are submitted together."""

    owner: Owner
    collection: str
    documents: tuple[NewDocument, ...]
    snapshot: str
    body: str
    settings: str
    """What decides the outcome besides the bytes: `model.settings`."""
    first: FirstStep
    priority: int = 0
    batch: str | None = None
    retry: bool = False
    password: str | None = None
    """What unlocks them; a failed one is tried again with it."""
    group: groups.GroupStart | None = None
    """The group that new runs belong to; None: that of the run before."""
    parent: Parent | None = None
    """The document that contains them. Their runs belong to the group of its run."""
    held: bool = False
    """Their runs wait, without steps and without a group, until a user starts them."""
    quota: Quota = Quota()
    """What the owner may have with them."""

    @property
    def entry_status(self) -> str:
        """The status of the documents that get a run."""
        return "HELD" if self.held else "PENDING"


class Beginning(msgspec.Struct, frozen=True):
    """A run that is to begin, of a document that is there."""

    run_id: RunId
    document_id: DocumentId
    raw_key: str
    size: int
    sha256: str
    group_id: str | None = None
    """Of the run before; where the submission has a group, that counts."""
    data: bytes | None = None


_COLLECTION = Statement(
    "INSERT INTO collections (owner, name, created_at) VALUES (:owner, :collection, {now}) ON CONFLICT DO NOTHING"
)
_SNAPSHOT = Statement(
    "INSERT INTO snapshots (hash, body, added_at) VALUES (:snapshot, :body, {now}) ON CONFLICT DO NOTHING"
)
_SETTINGS = Statement(
    "INSERT INTO run_settings (fingerprint, body) VALUES (:settings, :settings_body) ON CONFLICT DO NOTHING"
)
_ENTER = Statement(
    "INSERT INTO documents (id, owner, collection, source, name, size, sha256, metadata, status, batch, created_at, "
    "updated_at) SELECT r.document, :owner, :collection, r.source, r.name, r.size, r.sha256, r.metadata, :entry, "
    ":batch, {now}, {now} FROM {rows} WHERE true "
    "ON CONFLICT (source, owner, collection) WHERE deleted_at IS NULL DO NOTHING RETURNING id",
    rows="document text, size bigint, sha256 text, source text, name text, metadata text",
)
_GENERATION = Statement(
    "INSERT INTO generations (document_id, owner, collection, index_version, state, raw_key, size, sha256, created_at) "
    f"SELECT r.document, :owner, :collection, {VERSION_HERE}, "
    "'BUILDING', r.raw_key, r.size, r.sha256, {now} "
    "FROM {rows} WHERE true RETURNING document_id, id",
    rows="document text, raw_key text, size bigint, sha256 text",
)
_RUN = Statement(
    "INSERT INTO runs (id, document_id, generation_id, owner, snapshot, settings, status, priority, rank, group_id, "
    "created_at) SELECT r.run, r.document, r.generation, :owner, :snapshot, :settings, :run_status, :priority, r.rank, "
    "r.family, {now} FROM {rows} WHERE true",
    rows="run text, document text, generation bigint, rank bigint, family text",
)
_STEP = Statement(
    "INSERT INTO steps (run_id, position, document_id, generation_id, owner, snapshot, name, kind, pool, "
    "resource_key, status, priority, rank, created_at) SELECT r.run, 0, r.document, r.generation, :owner, :snapshot, "
    ":step, :kind, :pool, :key, 'PENDING', :priority, r.rank, {now} FROM {rows} WHERE true",
    rows="run text, document text, generation bigint, rank bigint",
)
# Start-time fair queuing: an owner starts at the front of what has not begun, never before it.
_FRONT = Statement(
    "SELECT coalesce((SELECT min(rank) FROM steps WHERE status = 'PENDING' AND epoch = 0 AND priority = :priority), "
    "(SELECT max(last_rank) FROM ranks WHERE priority = :priority), 0) AS front, "
    "coalesce((SELECT last_rank FROM ranks WHERE priority = :priority AND owner = :owner), 0) AS own"
)
_LAST_RANK = Statement(
    "INSERT INTO ranks (owner, priority, last_rank) VALUES (:owner, :priority, :rank) "
    "ON CONFLICT (priority, owner) DO UPDATE SET last_rank = excluded.last_rank"
)


def is_one_statement(s: Submission) -> bool:
    """All there is to do for it, if it is new."""
    if s.first.resource_key is not None or s.password is not None or len(s.documents) != 1 or s.parent is not None:
        return False
    if s.quota.is_limited:
        return False
    if s.group is not None:
        outbox.learn(s.snapshot, s.body)
    told = s.group is not None and outbox.has_handlers(s.snapshot, EventKind.GROUP_START)
    return not told and all(d.raw_key is not None and d.key is None for d in s.documents)


def enter(connection: Connection, s: Submission, documents: Sequence[NewDocument], *, seal: bool) -> set[DocumentId]:
    """Documents with their bytes, and their runs: of those whose source was not submitted before. `seal`: the group
    may be sealed with them."""
    if not documents:
        return set()
    group = s.parent.group_id if s.parent is not None else None
    new = [(d, Beginning(d.run_id, d.id, d.raw_key or "", d.size, d.sha256, group, d.data)) for d in documents]
    if connection.dialect == "postgres":
        texts = [(d.source, d.name, json.dumps(d.metadata)) for d, _ in new]
        begun = _begin_single(connection, s, [beginning for _, beginning in new], seal, texts)
        if s.group is None:
            groups.reopen(connection, [group] * len(begun), new=True)
        return begun
    values = _values(s, seal)
    connection.run(_COLLECTION, **values)
    rows = [(d.id, d.size, d.sha256, d.source, d.name, json.dumps(d.metadata)) for d, _ in new]
    entered = {DocumentId(row[0]) for row in connection.run(_ENTER, rows, **values)}
    begin(connection, s, [beginning for d, beginning in new if d.id in entered], seal=seal)
    return entered


def begin(connection: Connection, s: Submission, runs: Sequence[Beginning], *, seal: bool = False) -> None:
    if not runs:
        return
    if connection.dialect == "postgres":
        _begin_single(connection, s, runs, seal)
    else:
        _begin(connection, s, runs, seal)
    if s.group is None:
        groups.reopen(connection, [run.group_id for run in runs], new=True)


def _begin(connection: Connection, s: Submission, runs: Sequence[Beginning], seal: bool) -> None:
    values = _values(s, seal)
    connection.run(_SNAPSHOT, **values)
    connection.run(_SETTINGS, **values)
    contents = [(run.document_id, run.raw_key, run.size, run.sha256) for run in runs]
    made: dict[DocumentId, int] = dict(connection.run(_GENERATION, contents, **values))
    small_blobs.keep(connection, [(run.raw_key, run.data) for run in runs if run.data is not None])
    [(front, own)] = connection.run(_FRONT, **values)
    first = max(front, own) + 1
    if not s.held:
        connection.run(_LAST_RANK, rank=first + len(runs) - 1, **values)
    rows = [(run.run_id, run.document_id, made[run.document_id], first + i) for i, run in enumerate(runs)]
    in_groups = [(*row, s.group.id if s.group else run.group_id) for row, run in zip(rows, runs, strict=True)]
    connection.run(_RUN, in_groups, **values)
    if s.held:
        return
    connection.run(_STEP, rows, **values)
    _wait_behind_key(connection, s.first)
    # Last: a transaction that ends a run of the group waits for this one from here on.
    if s.group is not None:
        [(total,)] = connection.run(groups.ADD, count=len(runs), **values)
        _tell_begun(connection, s, total, len(runs))


def _wait_behind_key(connection: Connection, first: FirstStep) -> None:
    if first.resource_key is not None:
        ready(connection, [(first.resource_key, first.pool or first.kind)])


def _tell_begun(connection: Connection, s: Submission, total: int, count: int) -> None:
    if s.group is not None and total == count:
        groups.tell_started(s.owner, connection, s.snapshot, s.group.id)


def _values(s: Submission, seal: bool) -> dict[str, object]:
    """All that the statements ask for besides their rows."""
    if s.body:
        outbox.learn(s.snapshot, s.body)
    values: dict[str, object] = {
        "owner": s.owner,
        "collection": s.collection,
        "snapshot": s.snapshot,
        "body": s.body,
        "settings": settings.whole(s.settings),
        "settings_body": s.settings,
        "priority": s.priority,
        "batch": s.batch,
        "step": s.first.name,
        "kind": s.first.kind,
        "pool": s.first.pool,
        "key": s.first.resource_key,
        "entry": s.entry_status,
        "run_status": "HELD" if s.held else "OPEN",
    }
    return values if s.group is None else values | groups.values(s.group, s.snapshot, seal)


def _begin_single(
    connection: Connection,
    s: Submission,
    runs: Sequence[Beginning],
    seal: bool,
    texts: Sequence[tuple[str, ...]] | None = None,
) -> set[DocumentId]:
    """`texts`: what documents have besides, if they are to be entered along with their runs."""
    small = any(run.data is not None for run in runs)
    rows = [
        (
            run.run_id,
            run.document_id,
            run.raw_key,
            run.size,
            run.sha256,
            s.group.id if s.group else run.group_id,
            *((run.data,) if small else ()),
            *text,
        )
        for run, text in zip(runs, texts or [()] * len(runs), strict=True)
    ]
    statement = postgres_statements.submit(texts is not None, s.group is not None, small, s.held)
    begun = connection.run(statement, rows, notifies=connection.notifies, **_values(s, seal))
    if begun and not s.held:
        _wait_behind_key(connection, s.first)
        _tell_begun(connection, s, begun[0][1], len(begun))
    return {DocumentId(row[0]) for row in begun}
