"""Re-index: the documents of a collection are made again for the next version of its index, while searches read the
current one.

A generation for the next version has `staging = 1`. When its run ends, it stays BUILDING, with `flipped_at`: it is
staged. A changed or deleted document loses its staged generation, because both retire generations that are being
built; a changed one is staged again later. The switch activates all staged generations at once, and those that they
replace become staged generations of the former version. So an undo is a re-index into the former version, which
repeats only what has changed."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import dead_letters, generations, submissions
from penstock.ledger.engine.generations import GRACE_S
from penstock.ledger.engine.runs import drop_held, hold
from penstock.ledger.engine.steps import SETTINGS
from penstock.ledger.engine.submissions import Beginning, FirstStep, Submission
from penstock.model.nouns import DocumentId, Owner, RunId

PRIORITY = -1000
"""Runs of a re-index are claimed when nothing else waits."""

State = Literal["BUILDING", "PAUSED", "CANCELLING", "DONE"]


class Recipe(msgspec.Struct, frozen=True):
    """What the runs of a version are made with: the workflow snapshot and the settings."""

    snapshot: str
    body: str
    settings: str
    first: FirstStep
    given: dict[str, str | int | float | bool] = {}
    """The values that the caller gave, by name."""

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class Reindex(msgspec.Struct, frozen=True):
    """The re-index of a collection: the one that is under way, or the last one as long as it can be undone."""

    owner: Owner
    collection: str
    version: int
    """The version that is being built; when DONE, the current one."""
    former: int
    state: State
    recipe: Recipe
    former_recipe: Recipe
    begun_at: float
    ended_at: float | None = None


_COLUMNS = "owner, collection, version, former, state, recipe, former_recipe, begun_at, ended_at"
_GET = Statement(f"SELECT {_COLUMNS} FROM reindexes WHERE owner = :owner AND collection = :collection")
_HOLD = Statement(f"SELECT {_COLUMNS} FROM reindexes WHERE owner = :owner AND collection = :collection {{hold}}")
_WORKED = Statement(
    f"SELECT {_COLUMNS} FROM reindexes WHERE state IN ('BUILDING', 'CANCELLING') ORDER BY owner, collection"
)
_EXPIRED = Statement(
    f"SELECT {_COLUMNS} FROM reindexes WHERE state = 'DONE' AND ended_at <= {{now}} - :kept_s "
    "ORDER BY owner, collection"
)


def _reindex(row: Row) -> Reindex:
    recipes = (msgspec.json.decode(text, type=Recipe) for text in row[5:7])
    return Reindex(Owner(row[0]), *row[1:5], *recipes, *row[7:])


def get(owner: Owner, connection: Connection, collection: str) -> Reindex | None:
    """The re-index of a collection."""
    rows = connection.run(_GET, owner=owner, collection=collection)
    return _reindex(rows[0]) if rows else None


def worked(connection: Connection) -> list[Reindex]:
    """The re-indexes of all owners that are to be continued or cancelled."""
    return [_reindex(row) for row in connection.run(_WORKED)]


def expired(connection: Connection, kept_s: float) -> list[Reindex]:
    """The re-indexes of all owners that ended so many seconds ago."""
    return [_reindex(row) for row in connection.run(_EXPIRED, kept_s=kept_s)]


class Counts(msgspec.Struct, frozen=True):
    documents: int
    """Documents with text in the current version."""
    staged: int
    working: int
    failed: int
    """Documents whose run for the next version failed or was cancelled."""
    others: int
    """Other documents that are being worked on, for the current version."""


_DOCUMENTS = Statement(
    "SELECT count(*) FROM documents d JOIN generations a ON a.document_id = d.id AND a.state = 'ACTIVE' "
    "AND a.chunks > 0 WHERE d.owner = :owner AND d.collection = :collection AND d.deleted_at IS NULL"
)
_STAGED = Statement(
    "SELECT count(*) FROM generations g WHERE g.owner = :owner AND g.collection = :collection "
    "AND g.index_version = :version AND g.staging = 1 AND g.state = 'BUILDING' AND g.flipped_at IS NOT NULL"
)
_UNSTAGED = Statement(
    "SELECT x.status, count(*) FROM generations g JOIN runs x ON x.generation_id = g.id WHERE g.owner = :owner "
    "AND g.collection = :collection AND g.index_version = :version AND g.staging = 1 AND g.state = 'BUILDING' "
    "AND g.flipped_at IS NULL GROUP BY x.status"
)
_OTHERS = Statement(
    "SELECT count(*) FROM documents d JOIN runs x ON x.document_id = d.id AND x.status = 'OPEN' "
    "JOIN generations g ON g.id = x.generation_id AND g.staging = 0 "
    "WHERE d.owner = :owner AND d.collection = :collection AND d.deleted_at IS NULL"
)


def counts(owner: Owner, connection: Connection, collection: str, version: int) -> Counts:
    """How far a re-index into this version is. This reads each document."""
    where = {"owner": owner, "collection": collection}
    [(documents,)] = connection.run(_DOCUMENTS, **where)
    [(staged,)] = connection.run(_STAGED, version=version, **where)
    unstaged = _unstaged(owner, connection, collection, version)
    [(others,)] = connection.run(_OTHERS, **where)
    working = unstaged.pop("OPEN", 0)
    return Counts(documents, staged, working, sum(unstaged.values()), others)


def working(owner: Owner, connection: Connection, collection: str, version: int) -> int:
    """The number of open runs for this version."""
    return _unstaged(owner, connection, collection, version).get("OPEN", 0)


def _unstaged(owner: Owner, connection: Connection, collection: str, version: int) -> dict[str, int]:
    rows = connection.run(_UNSTAGED, owner=owner, collection=collection, version=version)
    return {row[0]: row[1] for row in rows}


# Documents with text that are neither in the next version nor on their way. A run that failed for it stays failed:
# a retry continues it.
LACKING = (
    "FROM documents d JOIN generations a ON a.document_id = d.id AND a.state = 'ACTIVE' AND a.chunks > 0 "
    "AND a.index_version <> :version LEFT JOIN generations b ON b.document_id = d.id AND b.state = 'BUILDING' "
    "WHERE d.owner = :owner AND d.collection = :collection AND d.deleted_at IS NULL "
)
_WANTED_HERE = "AND (b.id IS NULL OR b.staging = 0 OR b.index_version <> :version) "
_NOT_OPEN = "AND NOT EXISTS (SELECT 1 FROM runs x WHERE x.document_id = d.id AND x.status = 'OPEN') "
_WANTED = Statement(f"SELECT d.id {LACKING}AND d.id > :after {_WANTED_HERE}{_NOT_OPEN}ORDER BY d.id LIMIT :count")
_WANTED_AGAIN = Statement(
    "SELECT d.id, n.raw_key, d.size, d.sha256 FROM {rows} JOIN documents d ON d.id = r.document AND {d.owner} "
    "AND d.deleted_at IS NULL AND d.collection = :collection "
    "JOIN generations a ON a.document_id = d.id AND a.state = 'ACTIVE' AND a.chunks > 0 "
    "AND a.index_version <> :version LEFT JOIN generations b ON b.document_id = d.id AND b.state = 'BUILDING' "
    "JOIN generations n ON n.id = (SELECT max(m.generation_id) FROM runs m WHERE m.document_id = d.id) "
    f"WHERE true {_WANTED_HERE}{_NOT_OPEN}",
    rows="document text",
    plan_anew=True,
)


def wanted(owner: Owner, connection: Connection, one: Reindex, after: str, count: int) -> list[DocumentId]:
    """Documents that a run must be started for, in the order of their ids."""
    where = {"owner": owner, "collection": one.collection, "version": one.version}
    return [DocumentId(row[0]) for row in connection.run(_WANTED, after=after, count=count, **where)]


class Begin(msgspec.Struct, frozen=True):
    owner: Owner
    collection: str
    recipe: Recipe
    embedder: str
    dimensions: int
    setting: str | None
    store: str | None = None
    """The index of the next version."""
    usual: str | None = None
    """That of the settings. If the next version is elsewhere, the versions that were in the index of the settings stay
    there, whatever the settings say later."""


_CURRENT = Statement(
    "SELECT version FROM index_versions WHERE owner = :owner AND collection = :collection AND state = 'CURRENT'"
)
_NEXT = Statement("SELECT max(version) + 1 FROM index_versions WHERE owner = :owner AND collection = :collection")
_MADE_WITH = Statement(
    f"SELECT x.snapshot, s.body, {SETTINGS}, t.name, t.kind, t.pool, t.resource_key FROM generations g "
    "JOIN documents d ON d.id = g.document_id AND d.deleted_at IS NULL JOIN runs x ON x.generation_id = g.id "
    "JOIN snapshots s ON s.hash = x.snapshot JOIN steps t ON t.run_id = x.id AND t.position = 0 "
    "WHERE g.owner = :owner AND g.collection = :collection AND g.state = 'ACTIVE' AND g.chunks > 0 "
    "ORDER BY g.id DESC LIMIT 1"
)
_ADD_VERSION = Statement(
    "INSERT INTO index_versions (owner, collection, version, state, embedder, dimensions, setting, store, "
    "created_at) SELECT :owner, :collection, :version, 'BUILDING', :embedder, :dimensions, :setting, "
    "CASE WHEN EXISTS (SELECT 1 FROM index_versions WHERE store IS NOT NULL) THEN CAST(:store AS TEXT) END, {now}"
)
# Of all owners: they share the index of the settings.
_STAY = Statement("UPDATE index_versions SET store = :usual WHERE store IS NULL")
_ADD = Statement(
    "INSERT INTO reindexes (owner, collection, version, former, state, recipe, former_recipe, begun_at) "
    "VALUES (:owner, :collection, :version, :former, 'BUILDING', :recipe, :former_recipe, {now})"
)
REMOVE = Statement("DELETE FROM reindexes WHERE owner = :owner AND collection = :collection")


def newest(owner: Owner, connection: Connection, collection: str) -> str | None:
    """The workflow snapshot that the newest searchable document was made with."""
    rows = connection.run(_MADE_WITH, owner=owner, collection=collection)
    return rows[0][1] if rows else None


def held(owner: Owner, connection: Connection, collection: str) -> Reindex | None:
    """The re-index of a collection. On PostgreSQL no other transaction changes it until this one ends."""
    rows = connection.run(_HOLD, owner=owner, collection=collection)
    return _reindex(rows[0]) if rows else None


def _begin(connection: Connection, requests: Sequence[Begin]) -> list[Reindex | None]:
    return [_begin_one(connection, request) for request in requests]


def _begin_one(connection: Connection, b: Begin) -> Reindex | None:
    """One that is under way is returned as it is. None: nothing is indexed. A new one ends the undo of the last."""
    where = {"owner": b.owner, "collection": b.collection}
    there = held(b.owner, connection, b.collection)
    if there is not None and there.state != "DONE":
        return there
    current, made = connection.run(_CURRENT, **where), connection.run(_MADE_WITH, **where)
    if not current or not made:
        return None
    if there is not None:
        connection.run(REMOVE, **where)
    former_recipe = there.recipe if there is not None else _made_with(made[0])
    [(version,)] = connection.run(_NEXT, **where)
    if b.store != b.usual:
        connection.run(_STAY, usual=b.usual)
    connection.run(
        _ADD_VERSION,
        version=version,
        embedder=b.embedder,
        dimensions=b.dimensions,
        setting=b.setting,
        store=b.store,
        **where,
    )
    recipes = {"recipe": b.recipe.text, "former_recipe": former_recipe.text}
    connection.run(_ADD, version=version, former=current[0][0], **recipes, **where)
    return held(b.owner, connection, b.collection)


def _made_with(row: Row) -> Recipe:
    snapshot, body, settings, *first = row
    return Recipe(snapshot, body, settings, FirstStep(*first))


class Change(msgspec.Struct, frozen=True):
    """A state that a user asks for."""

    owner: Owner
    collection: str
    state: State


_SET = Statement(
    "UPDATE reindexes SET state = :state WHERE owner = :owner AND collection = :collection AND state <> 'DONE' "
    "AND state <> 'CANCELLING'"
)


def _change(connection: Connection, requests: Sequence[Change]) -> list[Reindex | None]:
    """Pause, continue or cancel. What has ended, and what is being cancelled, stays as it is."""
    answers = []
    for r in requests:
        connection.run(_SET, owner=r.owner, collection=r.collection, state=r.state)
        answers.append(get(r.owner, connection, r.collection))
    return answers


class Start(msgspec.Struct, frozen=True):
    """Start runs for the next version, each with the id of a new run."""

    owner: Owner
    collection: str
    version: int
    documents: tuple[tuple[DocumentId, RunId], ...]


_PENDING = Statement(
    "UPDATE documents SET status = 'PENDING', error = NULL, updated_at = {now} FROM {rows} "
    "WHERE {documents.id = r.document} AND documents.status <> 'PENDING'",
    rows="document text",
)
_STAGING = Statement(
    "UPDATE generations SET staging = 1, index_version = :version FROM {rows} "
    "WHERE {generations.document_id = r.document} AND generations.state = 'BUILDING'",
    rows="document text",
)


def _start(connection: Connection, requests: Sequence[Start]) -> list[int]:
    """The number of runs that were started: for documents that still lack one."""
    return [_start_one(connection, request) for request in requests]


def _start_one(connection: Connection, r: Start) -> int:
    one, names = held(r.owner, connection, r.collection), dict(r.documents)
    if one is None or one.state != "BUILDING" or one.version != r.version:
        return 0
    hold(r.owner, connection, list(names))
    where = {"owner": r.owner, "collection": r.collection, "version": r.version}
    rows = connection.run(_WANTED_AGAIN, [(document,) for document in names], **where)
    if not rows:
        return 0
    ids = [DocumentId(row[0]) for row in rows]
    # Of a run that failed for the current version: the run for the next one replaces it.
    drop_held(connection, ids)
    generations.retire(connection, ids, GRACE_S)
    dead_letters.close(r.owner, connection, ids, "REPLAYED")
    connection.run(_PENDING, [(document,) for document in ids])
    recipe = one.recipe
    s = Submission(
        r.owner, r.collection, (), recipe.snapshot, recipe.body, recipe.settings, recipe.first, priority=PRIORITY
    )
    submissions.begin(connection, s, [Beginning(names[DocumentId(row[0])], *row) for row in rows])
    connection.run(_STAGING, [(document,) for document in ids], version=r.version)
    return len(ids)


BEGIN_REINDEX = Verb("begin_reindex", _begin)
CHANGE_REINDEX = Verb("change_reindex", _change)
START_REINDEX = Verb("start_reindex", _start, notifies=any, counts=True)
