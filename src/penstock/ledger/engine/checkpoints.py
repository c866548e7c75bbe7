"""Artifacts and how far their builders are. The checkpoint belongs to the artifact: the next builder, in any
run, goes on from the same cursor. Every write is gated on the lease of the step that builds it (I3)."""

import json
from collections.abc import Iterable, Sequence

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import small_blobs, usage
from penstock.model.nouns import Artifact, ArtifactId, GenerationId, Json, Segment, Step, StepId
from penstock.model.usage import Booking

FORGIVEN = 200
"""How often progress resets the counters of a step that failed (I7). The ledger cannot tell a cursor that moves forward
from one that merely changes, so a step that fails for ever must end by this limit."""


class Open(msgspec.Struct, frozen=True):
    """A step asks for its artifact: made already, being made by another, or its own to make."""

    step: Step
    fingerprint: str


class Opened(msgspec.Struct, frozen=True):
    artifact: Artifact
    mine: bool


class Progress(msgspec.Struct, frozen=True):
    """A flush: the segments written since the last one, and the cursor behind them."""

    step: Step
    artifact_id: ArtifactId
    cursor: str
    items: int
    segments: tuple[Segment, ...]
    lease_s: float
    timeout_s: float | None = None
    """Seconds until the step is reaped, if it makes no further progress."""
    advances: bool = True
    """The cursor is one that this artifact has not had before."""
    usage: tuple[Booking, ...] = ()
    """What was saved for the items of this flush."""


class Output(msgspec.Struct, frozen=True):
    """The last flush, which completes the artifact together with its step."""

    artifact_id: ArtifactId
    cursor: str
    items: int
    count: int
    meta: str
    segments: tuple[Segment, ...]


_ARTIFACT = "a.id, a.fingerprint, a.state, a.cursor, a.items, a.segments, a.meta"


def artifact(row: Row) -> Artifact:
    return Artifact(
        ArtifactId(row[0]), row[1], row[2] == "COMPLETE", json.loads(row[3]), row[4], row[5], json.loads(row[6])
    )


_OPEN = Statement(
    "INSERT INTO artifacts (owner, fingerprint, kind, state, builder, token, created_at, updated_at) "
    "SELECT r.owner, r.fingerprint, r.kind, 'BUILDING', r.step, r.lease, {now}, {now} FROM {rows} WHERE true "
    # Touched, an old one is held against prune until we refer to it.
    "ON CONFLICT (owner, fingerprint) DO UPDATE SET updated_at = excluded.updated_at",
    rows="owner text, fingerprint text, kind text, step bigint, lease text",
)
# An artifact whose builder no longer runs is taken over, cursor and all.
_TAKE_OVER = Statement(
    "UPDATE artifacts SET builder = r.step, token = r.lease, updated_at = {now} FROM {rows} "
    "WHERE artifacts.owner = r.owner AND artifacts.fingerprint = r.fp AND artifacts.state = 'BUILDING' "
    "AND (artifacts.builder IS NULL OR NOT EXISTS (SELECT 1 FROM steps s WHERE s.id = artifacts.builder "
    "AND s.lease_token = artifacts.token))",
    rows="owner text, fp text, step bigint, lease text",
)
# A step that outlived its generation keeps nothing: what it refers to would be kept for ever.
_REFER = Statement(
    "INSERT INTO artifact_refs (artifact_id, generation_id, step) SELECT a.id, r.generation, r.name FROM {rows} "
    "JOIN artifacts a ON a.owner = r.owner AND a.fingerprint = r.fp "
    "WHERE (SELECT g.state FROM generations g WHERE g.id = r.generation) = 'BUILDING' "
    "ON CONFLICT (generation_id, step) DO UPDATE SET artifact_id = excluded.artifact_id",
    rows="owner text, fp text, generation bigint, name text",
)
_OPENED = Statement(
    f"SELECT r.step, a.builder, a.token, {_ARTIFACT} FROM {{rows}} "
    "JOIN artifacts a ON a.owner = r.owner AND a.fingerprint = r.fp",
    rows="owner text, fp text, step bigint",
)


def open_many(connection: Connection, requests: Sequence[Open]) -> list[Opened]:
    keys = [(x.step.owner, x.fingerprint, x.step.lease.step_id, x.step.lease.token) for x in requests]
    connection.run(_OPEN, [(o, f, x.step.kind, s, t) for (o, f, s, t), x in zip(keys, requests, strict=True)])
    connection.run(_TAKE_OVER, keys)
    connection.run(_REFER, [(x.step.owner, x.fingerprint, x.step.generation_id, x.step.name) for x in requests])
    rows = {row[0]: row for row in connection.run(_OPENED, [(o, f, s) for o, f, s, _ in keys])}
    answers = []
    for _, _, step, token in keys:
        row = rows[step]
        answers.append(Opened(artifact(row[3:]), mine=row[1] == step and row[2] == token))
    return answers


_FORGIVES = "r.advances = 1 AND forgiven < :limit"
_FORGIVE = Statement(
    "UPDATE steps SET lease_until = {now} + :lease_s, progress_at = {now}, timeout_at = {now} + r.timeout, "
    f"attempts = CASE WHEN {_FORGIVES} THEN 0 ELSE attempts END, "
    f"crashes = CASE WHEN {_FORGIVES} THEN 0 ELSE crashes END, "
    f"errors = CASE WHEN {_FORGIVES} THEN 0 ELSE errors END, "
    f"alone = CASE WHEN {_FORGIVES} THEN 0 ELSE alone END, "
    f"forgiven = forgiven + CASE WHEN {_FORGIVES} AND (crashes > 0 OR errors > 0) THEN 1 ELSE 0 END "
    "FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.lease RETURNING id",
    rows="step bigint, lease text, timeout float8, advances int",
)
_ADVANCE = Statement(
    "UPDATE artifacts SET cursor = r.pos, items = r.total, segments = segments + r.more, updated_at = {now} "
    "FROM {rows} WHERE {artifacts.id = r.artifact} AND artifacts.token = r.lease",
    rows="artifact bigint, pos text, total bigint, more int, lease text",
)
SEGMENT_COLUMNS = (
    "artifact bigint, ordinal int, key text, sha256 text, size bigint, items int, first bigint, cursor text, data bytea"
)
_SEGMENT = Statement(
    "INSERT INTO segments (artifact_id, ordinal, key, sha256, size, items, first, cursor) "
    "SELECT r.artifact, r.ordinal, r.key, r.sha256, r.size, r.items, r.first, r.cursor FROM {rows} WHERE true",
    rows=SEGMENT_COLUMNS,
)


def _checkpoint(connection: Connection, flushes: Sequence[Progress]) -> list[bool]:
    """Progress resets the counters of I7, `FORGIVEN` times at most."""
    rows = [(p.step.lease.step_id, p.step.lease.token, p.timeout_s, int(p.advances)) for p in flushes]
    took: set[StepId] = {row[0] for row in connection.run(_FORGIVE, rows, lease_s=flushes[0].lease_s, limit=FORGIVEN)}
    done = [p for p in flushes if p.step.lease.step_id in took]
    if done:
        connection.run(
            _ADVANCE, [(p.artifact_id, p.cursor, p.items, len(p.segments), p.step.lease.token) for p in done]
        )
        _name_segments(connection, [(p.artifact_id, segment) for p in done for segment in p.segments])
        usage.book(connection, [booking for p in done for booking in p.usage])
    return [p.step.lease.step_id in took for p in flushes]


def _name_segments(connection: Connection, segments: Sequence[tuple[ArtifactId, Segment]]) -> None:
    """A segment counts from here on."""
    if segments:
        connection.run(_SEGMENT, segment_rows(segments))
        small_blobs.keep(connection, [(s.key, s.data) for _, s in segments if s.data is not None])


def output_row(output: Output | None) -> tuple[object, ...]:
    """artifact, cursor, items, segments, meta: as columns of a statement that completes steps."""
    if output is None:
        return (None, None, None, None, None)
    return (output.artifact_id, output.cursor, output.items, output.count, output.meta)


def output_segments(output: Output | None) -> list[tuple[object, ...]]:
    return [] if output is None else segment_rows([(output.artifact_id, segment) for segment in output.segments])


def are_small(outputs: Iterable[Output | None]) -> bool:
    """Whether some segments bring their bytes."""
    return any(segment.data is not None for output in outputs if output is not None for segment in output.segments)


def segment_rows(segments: Sequence[tuple[ArtifactId, Segment]]) -> list[tuple[object, ...]]:
    return [
        (artifact_id, s.ordinal, s.key, s.sha256, s.size, s.items, s.first, json.dumps(s.cursor), s.data)
        for artifact_id, s in segments
    ]


_COMPLETE = Statement(
    "UPDATE artifacts SET state = 'COMPLETE', token = NULL, cursor = r.pos, items = r.total, segments = r.count, "
    "meta = r.info, updated_at = {now} FROM {rows} WHERE {artifacts.id = r.artifact} AND artifacts.state = 'BUILDING'",
    rows="artifact bigint, pos text, total bigint, count int, info text",
)


def finish(connection: Connection, outputs: Sequence[Output]) -> None:
    """Complete artifacts in the gated transaction that completes their steps."""
    if outputs:
        connection.run(_COMPLETE, [output_row(o) for o in outputs])
        _name_segments(connection, [(o.artifact_id, segment) for o in outputs for segment in o.segments])


class Rewind(msgspec.Struct, frozen=True):
    """A reader met a torn segment: its producer goes back to where that segment began."""

    step: Step
    artifact_id: ArtifactId
    ordinal: int


_HELD = Statement("SELECT 1 FROM steps WHERE id = :step AND lease_token = :token {hold}")
_PRODUCER = Statement(
    "SELECT p.id, p.position FROM artifact_refs f JOIN steps p ON p.run_id = :run AND p.name = f.step "
    "WHERE f.generation_id = :generation AND f.artifact_id = :artifact ORDER BY p.position LIMIT 1"
)
# Where the segment's own row is missing, the one before it is made again.
_TORN = Statement(
    "SELECT cursor, first, ordinal FROM segments WHERE artifact_id = :artifact AND ordinal <= :ordinal "
    "ORDER BY ordinal DESC LIMIT 1"
)
_CUT = Statement("DELETE FROM segments WHERE artifact_id = :artifact AND ordinal >= :ordinal")
_BACK = Statement(
    "UPDATE artifacts SET state = 'BUILDING', builder = NULL, token = NULL, cursor = :cursor, items = :items, "
    "segments = :ordinal, updated_at = {now} WHERE id = :artifact AND state = 'COMPLETE' RETURNING id"
)
_UNDO = Statement("DELETE FROM steps WHERE run_id = :run AND position > :position")
_AGAIN = Statement(
    "UPDATE steps SET status = 'PENDING', finished_at = NULL, attempts = 0 WHERE id = :step AND status = 'COMPLETED'"
)
# The last claim behind its lock may have found nothing there.
_READY = Statement(
    "UPDATE locks SET ready = 1, kind = (SELECT coalesce(s.pool, s.kind) FROM steps s WHERE s.id = :step) "
    "WHERE resource_key = (SELECT resource_key FROM steps WHERE id = :step)"
)


def _rewind(connection: Connection, rewinds: Sequence[Rewind]) -> list[bool]:
    return [_rewind_one(connection, rewind) for rewind in rewinds]


def _rewind_one(connection: Connection, rewind: Rewind) -> bool:
    """One that another reader has sent back already is left to its builder: the producer waits for it."""
    step, artifact_id = rewind.step, rewind.artifact_id
    if not connection.run(_HELD, step=step.lease.step_id, token=step.lease.token):
        return False
    producer = connection.run(_PRODUCER, run=step.run_id, generation=step.generation_id, artifact=artifact_id)
    if not producer:
        return False
    torn = connection.run(_TORN, artifact=artifact_id, ordinal=rewind.ordinal)
    cursor, items, ordinal = torn[0] if torn else ("{}", 0, 0)
    if connection.run(_BACK, artifact=artifact_id, cursor=cursor, items=items, ordinal=ordinal):
        connection.run(_CUT, artifact=artifact_id, ordinal=ordinal)
    connection.run(_UNDO, run=step.run_id, position=producer[0][1])
    connection.run(_AGAIN, step=producer[0][0])
    connection.run(_READY, step=producer[0][0])
    return True


_SEGMENTS = Statement(
    "SELECT ordinal, key, sha256, size, items, first, cursor FROM segments "
    "WHERE artifact_id = :artifact AND ordinal >= :start ORDER BY ordinal LIMIT :count"
)
_INPUTS = Statement(
    f"SELECT f.generation_id, f.step, {_ARTIFACT} FROM {{rows}} JOIN artifact_refs f ON f.generation_id = r.generation "
    "JOIN artifacts a ON a.id = f.artifact_id",
    rows="generation bigint",
)
_BUILDER = Statement(
    f"SELECT {_ARTIFACT}, EXISTS (SELECT 1 FROM steps s WHERE s.id = a.builder AND s.lease_token = a.token) "
    "FROM artifacts a WHERE a.id = :artifact"
)


def segments(connection: Connection, artifact_id: ArtifactId, start: int, count: int) -> list[Segment]:
    """Some segments of an artifact, in order: long lists are paged, never read whole."""
    rows = connection.run(_SEGMENTS, artifact=artifact_id, start=start, count=count)
    return [Segment(row[0], row[1], row[2], row[3], row[4], row[5], json.loads(row[6])) for row in rows]


def of_generations(
    connection: Connection, generations: Sequence[GenerationId]
) -> dict[GenerationId, dict[str, Artifact]]:
    """What the steps of these generations made so far, by step name."""
    made: dict[GenerationId, dict[str, Artifact]] = {generation: {} for generation in generations}
    for row in connection.run(_INPUTS, [(generation,) for generation in generations]):
        made[row[0]][row[1]] = artifact(row[2:])
    return made


_CURSORS = Statement("SELECT cursor FROM segments WHERE artifact_id = :artifact")


def cursors(connection: Connection, artifact_id: ArtifactId) -> list[Json]:
    """The cursors at which the segments of an artifact begin."""
    return [json.loads(row[0]) for row in connection.run(_CURSORS, artifact=artifact_id)]


def being_built(connection: Connection, artifact_id: ArtifactId) -> bool:
    """Another run builds it now."""
    rows = connection.run(_BUILDER, artifact=artifact_id)
    return bool(rows) and rows[0][2] != "COMPLETE" and bool(rows[0][7])


OPEN = Verb("open", open_many)
CHECKPOINT = Verb("checkpoint", _checkpoint, of=lambda flush: flush.step.lease.step_id)
REWIND = Verb("rewind", _rewind)
