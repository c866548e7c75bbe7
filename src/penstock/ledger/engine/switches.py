"""The ends of a re-index: the switch to the next version of the index, its undo, and what is given up."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import generations
from penstock.ledger.engine.generations import GRACE_S
from penstock.ledger.engine.reindexes import LACKING, REMOVE, Recipe, Reindex, get, held
from penstock.ledger.engine.runs import hold, stop_runs
from penstock.model.nouns import DocumentId, GenerationId, Owner

# On PostgreSQL, a submit that has read the current version must be visible before the switch looks.
_SETTLE = Statement("LOCK TABLE generations IN SHARE ROW EXCLUSIVE MODE")
_MISSING = Statement(
    f"SELECT count(*) {LACKING}AND (b.id IS NULL OR b.index_version <> :version OR b.flipped_at IS NULL)"
)
_OPEN = Statement(
    "SELECT count(*) FROM documents d JOIN runs x ON x.document_id = d.id AND x.status = 'OPEN' "
    "WHERE d.owner = :owner AND d.collection = :collection AND d.deleted_at IS NULL"
)
_STAGED_NOW = (
    "owner = :owner AND collection = :collection AND index_version = :version AND staging = 1 "
    "AND flipped_at IS NOT NULL AND state = "
)
# In three steps, because no document has two generations that are active, or two that are being built.
_REPLACE = Statement(
    "UPDATE generations SET state = 'SUPERSEDED', staging = 1 WHERE owner = :owner AND collection = :collection "
    "AND index_version = :former AND state = 'ACTIVE' AND EXISTS (SELECT 1 FROM generations b "
    "WHERE b.document_id = generations.document_id AND b.state = 'BUILDING' AND b.staging = 1 "
    "AND b.index_version = :version AND b.flipped_at IS NOT NULL)"
)
_ACTIVATE = Statement(f"UPDATE generations SET state = 'ACTIVE', staging = 0 WHERE {_STAGED_NOW}'BUILDING'")
_KEEP = Statement(f"UPDATE generations SET state = 'BUILDING' WHERE {_STAGED_NOW}'SUPERSEDED'")
_VERSION = Statement(
    "UPDATE index_versions SET state = :state WHERE owner = :owner AND collection = :collection AND version = :version"
)
_END = Statement(
    "UPDATE reindexes SET state = 'DONE', ended_at = {now} WHERE owner = :owner AND collection = :collection"
)
# A document may have had no text with the settings of one of the two versions. Its state machine needs two steps.
_TEXT_AGAIN = tuple(
    Statement(
        f"UPDATE documents SET status = '{after}' WHERE owner = :owner AND collection = :collection "
        f"AND deleted_at IS NULL AND status = '{before}' AND EXISTS (SELECT 1 FROM generations g "
        "WHERE g.document_id = documents.id AND g.state = 'ACTIVE' AND g.chunks > 0)"
    )
    for before, after in (("NOT_INDEXABLE", "PENDING"), ("UNSUPPORTED", "PENDING"), ("PENDING", "COMPLETED"))
)


class Switch(msgspec.Struct, frozen=True):
    owner: Owner
    collection: str
    version: int


def _switch(connection: Connection, requests: Sequence[Switch]) -> list[bool]:
    return [_switch_one(connection, request) for request in requests]


def _switch_one(connection: Connection, r: Switch) -> bool:
    """Make the next version the current one, if all documents are in it as they are now (I5). Searches that have begun
    read the former version, which stays."""
    if connection.dialect == "postgres":
        connection.run(_SETTLE)
    one = held(r.owner, connection, r.collection)
    if one is None or one.state != "BUILDING" or one.version != r.version:
        return False
    where = {"owner": r.owner, "collection": r.collection}
    if connection.run(_OPEN, **where)[0][0] or connection.run(_MISSING, version=r.version, **where)[0][0]:
        return False
    connection.run(_REPLACE, version=one.version, former=one.former, **where)
    connection.run(_ACTIVATE, version=one.version, **where)
    connection.run(_KEEP, version=one.former, **where)
    connection.run(_VERSION, version=one.former, state="RETIRED", **where)
    connection.run(_VERSION, version=one.version, state="CURRENT", **where)
    connection.run(_END, **where)
    for statement in _TEXT_AGAIN:
        connection.run(statement, **where)
    return True


class Undo(msgspec.Struct, frozen=True):
    owner: Owner
    collection: str
    recipe: Recipe
    """Of the former version."""


_UNDO = Statement(
    "UPDATE reindexes SET version = former, former = version, recipe = :recipe, former_recipe = recipe, "
    "state = 'BUILDING', begun_at = {now}, ended_at = NULL WHERE owner = :owner AND collection = :collection "
    "AND state = 'DONE'"
)


def _undo(connection: Connection, requests: Sequence[Undo]) -> list[Reindex | None]:
    """Begin a re-index into the former version. None: there is nothing to undo."""
    answers = []
    for r in requests:
        one, where = held(r.owner, connection, r.collection), {"owner": r.owner, "collection": r.collection}
        if one is not None and one.state == "DONE":
            connection.run(_UNDO, recipe=r.recipe.text, **where)
            connection.run(_VERSION, version=one.former, state="BUILDING", **where)
        answers.append(get(r.owner, connection, r.collection))
    return answers


class Clear(msgspec.Struct, frozen=True):
    """Give up generations of a version that is not the current one: up to `count` documents."""

    owner: Owner
    collection: str
    version: int
    count: int


_STAGING_OF = Statement(
    "SELECT g.document_id FROM generations g WHERE g.owner = :owner AND g.collection = :collection "
    "AND g.index_version = :version AND g.staging = 1 AND g.state = 'BUILDING' LIMIT :count"
)
_IS_CURRENT = (
    "EXISTS (SELECT 1 FROM generations g WHERE g.document_id = documents.id AND g.state = 'ACTIVE' "
    "AND g.chunks > 0 AND g.sha256 = documents.sha256)"
)
# Searchable at its newest content: COMPLETED. Otherwise a retry makes it so.
_AS_BEFORE = tuple(
    Statement(
        f"UPDATE documents SET status = '{status}', error = NULL FROM {{rows}} WHERE {{documents.id = r.document}} "
        f"AND {condition}",
        rows="document text",
    )
    for status, condition in (
        ("PENDING", "documents.status IN ('COMPLETED', 'NOT_INDEXABLE', 'UNSUPPORTED', 'FAILED', 'CANCELLED')"),
        ("COMPLETED", _IS_CURRENT),
        ("CANCELLED", f"NOT {_IS_CURRENT}"),
    )
)
_RETIRE = Statement(
    "UPDATE generations SET state = 'SUPERSEDED', staging = 0 FROM {rows} "
    "WHERE {generations.document_id = r.document} AND generations.state = 'BUILDING' AND generations.staging = 1 "
    "AND generations.index_version = :version RETURNING id",
    rows="document text",
)
_OWN_LETTERS = Statement(
    "UPDATE dead_letters SET state = 'DISCARDED', closed_at = {now} WHERE state = 'OPEN' AND run_id IN "
    "(SELECT x.id FROM {rows} JOIN runs x ON x.generation_id = r.generation)",
    rows="generation bigint",
)
_OPEN_OF = Statement(
    "SELECT x.document_id FROM {rows} JOIN runs x ON x.document_id = r.document AND x.status = 'OPEN' "
    "JOIN generations g ON g.id = x.generation_id AND g.staging = 1 AND g.index_version = :version",
    rows="document text",
)


def _clear(connection: Connection, requests: Sequence[Clear]) -> list[int]:
    """Stop the runs, retire the generations, and give the documents the status that they had. Returns how many
    documents were found; 0: the version is empty, and it is retired with its re-index."""
    return [_clear_one(connection, request) for request in requests]


def _clear_one(connection: Connection, r: Clear) -> int:
    where = {"owner": r.owner, "collection": r.collection, "version": r.version}
    one = held(r.owner, connection, r.collection)
    if one is None or r.version not in (one.version, one.former) or one.state in ("BUILDING", "PAUSED"):
        return 0
    found = [DocumentId(row[0]) for row in connection.run(_STAGING_OF, count=r.count, **where)]
    if not found:
        connection.run(_VERSION, state="RETIRED", **where)
        connection.run(REMOVE, owner=r.owner, collection=r.collection)
        return 0
    hold(r.owner, connection, found)
    rows = [(document,) for document in found]
    mine = [DocumentId(row[0]) for row in connection.run(_OPEN_OF, rows, version=r.version)]
    stop_runs(connection, mine)
    gone = connection.run(_RETIRE, rows, version=r.version)
    connection.run(_OWN_LETTERS, gone)
    generations.schedule_purge(connection, [GenerationId(row[0]) for row in gone], GRACE_S)
    if one.state == "CANCELLING":
        for statement in _AS_BEFORE:
            connection.run(statement, rows)
    return len(found)


SWITCH = Verb("switch", _switch, counts=True)
UNDO = Verb("undo", _undo)
CLEAR_REINDEX = Verb("clear_reindex", _clear, counts=True)
