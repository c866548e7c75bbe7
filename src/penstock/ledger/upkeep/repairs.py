"""What `check --repair` and `prune` change in the ledger. Each verb checks its finding again in its own transaction,
because the finding may be seconds old. A repair only puts steps back into the queue; it never does their work.

These statements cross owners (I10)."""

from collections.abc import Sequence

import msgspec

from penstock.blobs.small import is_small
from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import backup_guard, deletions, generations, groups, small_blobs
from penstock.ledger.engine.collections import VERSION_OF_G
from penstock.ledger.engine.generations import GRACE_S
from penstock.ledger.engine.resource_keys import FREED, ready, ready_steps
from penstock.ledger.upkeep.audit import question
from penstock.ledger.upkeep.audit_index import TablePlace
from penstock.model.nouns import DocumentId, GenerationId, StepId


def _wake(connection: Connection, keys: Sequence[tuple[str, str]]) -> list[bool]:
    ready(connection, list(keys))
    return [True for _ in keys]


# The holder of an expired lease can neither commit to the index nor flip.
_FREE = Statement(
    f"UPDATE locks SET {FREED} WHERE resource_key = :key AND lease_until < {{now}} RETURNING resource_key"
)


def _free(connection: Connection, keys: Sequence[str]) -> list[bool]:
    return [bool(connection.run(_FREE, key=key)) for key in keys]


_RETIRE = Statement(
    "UPDATE generations SET state = 'SUPERSEDED', staging = 0 WHERE id = :generation AND (state = 'SUPERSEDED' OR "
    "(state IN ('ACTIVE', 'BUILDING') AND EXISTS (SELECT 1 FROM documents d WHERE d.id = generations.document_id "
    "AND d.deleted_at IS NOT NULL))) RETURNING id"
)
_UNPURGE = Statement(
    "DELETE FROM purges WHERE generation_id = :generation AND EXISTS (SELECT 1 FROM generations g "
    "JOIN documents d ON d.id = g.document_id WHERE g.id = :generation AND g.state IN ('ACTIVE', 'BUILDING') "
    "AND d.deleted_at IS NULL) RETURNING generation_id"
)


def _retire(connection: Connection, wanted: Sequence[GenerationId]) -> list[bool]:
    """Add the purge rows of replaced or deleted generations that have none."""
    taken = [bool(connection.run(_RETIRE, generation=generation)) for generation in wanted]
    leaving = [generation for generation, took in zip(wanted, taken, strict=True) if took]
    generations.schedule_purge(connection, leaving, GRACE_S)
    return taken


def _unpurge(connection: Connection, wanted: Sequence[GenerationId]) -> list[bool]:
    return [bool(connection.run(_UNPURGE, generation=generation)) for generation in wanted]


_PLACE = Statement(
    f"INSERT INTO placements (generation_id, version, state) SELECT g.id, {VERSION_OF_G}, "
    "'READY' FROM generations g WHERE g.id = :generation AND g.state = 'ACTIVE' "
    "ON CONFLICT (generation_id, version) DO UPDATE SET state = 'READY' RETURNING generation_id"
)


def _place(connection: Connection, wanted: Sequence[GenerationId]) -> list[bool]:
    """Add placements in the current version for searchable generations without one. The next round of the repair finds
    the missing rows and writes them."""
    return [bool(connection.run(_PLACE, generation=generation)) for generation in wanted]


_LAST_STEP = question(
    "SELECT x.id, s.id FROM documents d JOIN runs x ON x.document_id = d.id AND <newest> "
    "JOIN generations g ON g.id = x.generation_id AND g.state = 'BUILDING' JOIN steps s ON s.run_id = x.id AND <last> "
    "WHERE d.id = :document AND d.deleted_at IS NULL AND d.status NOT IN <ends> "
    "AND s.status IN ('COMPLETED', 'FAILED', 'CANCELLED') AND NOT EXISTS (SELECT 1 FROM runs o "
    "WHERE o.document_id = d.id AND o.status = 'OPEN' AND o.id <> x.id)"
)
_REOPEN = Statement(
    "UPDATE runs SET status = 'OPEN', finished_at = NULL WHERE id = :run AND status <> 'OPEN' RETURNING group_id"
)
_REQUEUE = Statement(
    "UPDATE steps SET status = 'PENDING', attempts = 0, crashes = 0, errors = 0, not_before = NULL, finished_at = NULL "
    "WHERE id = :step AND status IN ('COMPLETED', 'FAILED', 'CANCELLED')"
)


def _requeue(connection: Connection, documents: Sequence[str]) -> list[bool]:
    """Put the last step of an unfinished run back into the queue. The step finds its artifact by the fingerprint, and
    its completion inserts the next step."""
    answers = []
    for document in documents:
        rows = connection.run(_LAST_STEP, document=document)
        for run, step in rows:
            groups.reopen(connection, [row[0] for row in connection.run(_REOPEN, run=run)])
            connection.run(_REQUEUE, step=step)
            ready_steps(connection, [StepId(step)])
        answers.append(bool(rows))
    return answers


_ADD_LETTERS = question(
    "INSERT INTO dead_letters (owner, document_id, run_id, step, kind, reason, error, attempts, state, created_at) "
    "SELECT d.owner, d.id, x.id, s.name, s.kind, 'unknown', "
    "coalesce(d.error, s.error, 'it failed, and why was not kept: try it once more'), s.attempts, 'OPEN', {now} "
    "FROM documents d JOIN runs x ON x.document_id = d.id AND <newest> JOIN steps s ON s.run_id = x.id AND <last> "
    "WHERE d.id = :document AND d.deleted_at IS NULL AND d.status = 'FAILED' AND NOT EXISTS "
    "(SELECT 1 FROM dead_letters l WHERE l.run_id = x.id AND l.state IN ('OPEN', 'DISCARDED')) RETURNING id"
)


def _add_dead_letter(connection: Connection, documents: Sequence[str]) -> list[bool]:
    return [bool(connection.run(_ADD_LETTERS, document=document)) for document in documents]


_ORPHAN = Statement(
    "SELECT d.owner FROM documents d WHERE d.id = :document AND d.deleted_at IS NULL AND d.parent_id IS NOT NULL "
    "AND NOT EXISTS (SELECT 1 FROM documents p WHERE p.id = d.parent_id AND p.deleted_at IS NULL)"
)


def _delete_orphan(connection: Connection, documents: Sequence[DocumentId]) -> list[bool]:
    """Delete children whose parent no longer exists, with everything inside them."""
    answers = []
    for document in documents:
        owners = connection.run(_ORPHAN, document=document)
        answers.append(bool(owners and deletions.delete_trees(owners[0][0], connection, [document])))
    return answers


class Cut(msgspec.Struct, frozen=True):
    """Truncate an artifact before this segment."""

    artifact: int
    ordinal: int


_CURSOR = Statement("SELECT cursor, first FROM segments WHERE artifact_id = :artifact AND ordinal = :ordinal")
_BACK = question(
    "UPDATE artifacts AS a SET state = 'BUILDING', builder = NULL, token = NULL, cursor = :cursor, items = :items, "
    "segments = :ordinal, updated_at = {now} WHERE a.id = :artifact AND NOT <built> RETURNING id"
)
_DROP = Statement("DELETE FROM segments WHERE artifact_id = :artifact AND ordinal >= :ordinal")


def _cut(connection: Connection, cuts: Sequence[Cut]) -> list[bool]:
    """Truncate artifacts before a damaged segment. The next step that needs the artifact continues there. An artifact
    that a running step is building is not changed."""
    answers = []
    for cut in cuts:
        torn = connection.run(_CURSOR, artifact=cut.artifact, ordinal=cut.ordinal)
        cursor, items = torn[0] if torn and cut.ordinal else ("{}", 0)
        where = {"artifact": cut.artifact, "ordinal": cut.ordinal if torn else 0}
        took = bool(connection.run(_BACK, cursor=cursor, items=items, **where))
        if took:
            connection.run(_DROP, **where)
        answers.append(took)
    return answers


# The cursors of index steps are reset, because the rows that they wrote are lost with the table.
_RESTART = Statement(
    "UPDATE artifacts SET cursor = '{}', builder = NULL, token = NULL, updated_at = {now} WHERE kind = 'index' "
    "AND state = 'BUILDING' AND id IN (SELECT f.artifact_id FROM artifact_refs f JOIN generations g "
    "ON g.id = f.generation_id WHERE g.owner = :owner AND g.collection = :collection AND g.index_version = :version "
    "AND g.state = 'BUILDING')"
)


def _restart(connection: Connection, places: Sequence[TablePlace]) -> list[None]:
    for place in places:
        connection.run(_RESTART, owner=place.owner, collection=place.collection, version=place.version)
    return [None for _ in places]


class Forget(msgspec.Struct, frozen=True):
    """Remove those of these artifacts that have no references and were not changed for `older_than_s` seconds."""

    artifacts: tuple[int, ...]
    older_than_s: float


class Forgotten(msgspec.Struct, frozen=True):
    """The number of removed artifacts, and the blobs that they named, which can be removed now."""

    artifacts: int
    blobs: tuple[tuple[str, int], ...]


_OLD = "<unused> AND NOT <built> AND a.updated_at < {now} - :older ORDER BY a.id"
_FORGETTABLE = question(f"SELECT a.id FROM artifacts a WHERE a.id > :after AND a.id <= :until AND {_OLD}")
_HELD = question(
    f"SELECT a.id FROM artifacts a WHERE a.id IN (SELECT r.id FROM {{rows}}) AND {_OLD} {{skip}}", rows="id bigint"
)
# On PostgreSQL a reference may have been added since the rows were read. Check again now that the rows are locked.
_STILL = question("SELECT a.id FROM {rows} JOIN artifacts a ON a.id = r.id WHERE <unused>", rows="id bigint")
_DROP_SEGMENTS = Statement(
    "DELETE FROM segments WHERE artifact_id IN (SELECT r.id FROM {rows}) RETURNING key, size", rows="id bigint"
)
_DROP_ARTIFACTS = Statement("DELETE FROM artifacts WHERE id IN (SELECT r.id FROM {rows})", rows="id bigint")


def forgettable(connection: Connection, after: int, until: int, older_than_s: float) -> list[int]:
    """The artifacts of a range that can probably be removed. Only these are checked again in a write transaction."""
    return [row[0] for row in connection.run(_FORGETTABLE, after=after, until=until, older=older_than_s)]


def _forget(connection: Connection, requests: Sequence[Forget]) -> list[Forgotten]:
    answers = []
    if backup_guard.holds_prune(connection):
        return [Forgotten(0, ()) for _ in requests]
    for request in requests:
        held = connection.run(_HELD, [(one,) for one in request.artifacts], older=request.older_than_s)
        answers.append(Forgotten(*remove_artifacts(connection, held)))
    return answers


def remove_artifacts(connection: Connection, held: Sequence[Row]) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Remove artifacts whose rows are locked, with their segments, unless they are referenced now. Returns the number
    of removed artifacts, and the keys and sizes of the blobs that they named. Those in the ledger are gone already."""
    still = connection.run(_STILL, held) if held else []
    blobs = connection.run(_DROP_SEGMENTS, still) if still else []
    if still:
        connection.run(_DROP_ARTIFACTS, still)
        small_blobs.remove(connection, [row[0] for row in blobs if is_small(row[0])])
    return len(still), tuple((row[0], row[1]) for row in blobs)


WAKE = Verb("wake", _wake)
FREE = Verb("free_lock", _free)
RETIRE = Verb("retire", _retire)
UNPURGE = Verb("unpurge", _unpurge)
PLACE = Verb("place", _place)
REQUEUE = Verb("requeue", _requeue)
ADD_DEAD_LETTER = Verb("add_dead_letter", _add_dead_letter)
DELETE_ORPHAN = Verb("delete_orphan", _delete_orphan)
CUT = Verb("cut", _cut)
RESTART = Verb("restart_index", _restart)
FORGET = Verb("forget", _forget)
