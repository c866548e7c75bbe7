"""The life of a lease after its claim: heartbeat, complete (chain), flip, error, fail, release, reap, due.

Every verb works on a set. Every write of a step is gated on its lease token (I3) and says whether it took.
These statements are the engine's own: they cross owners (I10)."""

import json
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from penstock.ledger import checkpoints, dead_letters, generations, groups, outbox
from penstock.ledger.database import Connection, Row, Statement
from penstock.ledger.outbox import News
from penstock.ledger.writer import Verb
from penstock.model.events import EventKind
from penstock.model.nouns import DocumentId, GenerationId, Lease, Owner, RunId, Step, StepId, Token, WorkerId
from penstock.model.states import SHOWN_AS, WORKING, DocumentStatus

REAP_BATCH = 1000
SUSPECT = 2
"""Crashes without progress after which a step runs alone."""
ROOM = "room"
"""What a step waits on that has not begun, because its worker is full."""
UNBEGUN = 20
"""Claims without progress up to which a step that had not begun when its worker died goes unsuspected."""
OWN_KEYS = "step:"
"""What the keys begin with that workflows name for steps of their own: behind one of them runs one step at a time."""
FREED = "token = NULL, worker_id = NULL, purpose = NULL, lease_until = NULL, released_at = {now}"
"""What a lock is set to when nobody holds it any more."""
GRACE_S = 60.0
"""How long a replaced generation stays for readers whose snapshot still shows it."""


class NextStep(msgspec.Struct, frozen=True):
    """What follows a completed step. With a token it is claimed in the same transaction."""

    position: int
    name: str
    kind: str
    resource_key: str | None
    token: Token | None
    fingerprint: str | None = None
    """Of the artifact that it makes: opened along, if the step is claimed along."""
    pool: str | None = None

    @property
    def lane(self) -> str:
        return self.pool or self.kind


class Completion(msgspec.Struct, frozen=True):
    step: Step
    worker: WorkerId
    lease_s: float
    meta: str
    next: NextStep
    output: checkpoints.Output | None = None
    media_type: str | None = None
    """What the step found the document to be."""


class Flip(msgspec.Struct, frozen=True):
    """The end of a run: the generation becomes the searchable one in the transaction of COMPLETED (I5)."""

    step: Step
    status: DocumentStatus
    pages: int | None
    chunks: int
    meta: str
    output: checkpoints.Output | None = None


class StepFailure(msgspec.Struct, frozen=True):
    step: Step
    reason: str
    error: str
    traceback: str | None = None
    page: int | None = None
    retry_in: float | None = None
    """Seconds until the next attempt; None: it ends as a dead letter."""


class Release(msgspec.Struct, frozen=True):
    step: Step
    give_back: bool
    """The attempt is given back: the cursor moved, or no batch was begun (I7)."""


class Sign(msgspec.Struct, frozen=True):
    """What is new about a step that its worker holds."""

    step: StepId
    waiting_on: str | None
    moved: bool
    """It made progress."""
    timeout_s: float | None = None
    """From now on so long until others take it away; None: as it was."""


class Beat(msgspec.Struct, frozen=True):
    worker: WorkerId
    leases: tuple[Lease, ...]
    locks: tuple[tuple[str, Token], ...]
    signs: tuple[Sign, ...]
    """Of those leases about which there is something to say."""
    lease_s: float


class Reap(msgspec.Struct, frozen=True):
    held: frozenset[StepId]
    """What the reaper itself works on: it never reaps its own."""
    dead: tuple[WorkerId, ...]
    """Workers known to be dead, whatever their leases say."""
    crashes: int


class Reaped(msgspec.Struct, frozen=True):
    reset: tuple[str, ...]
    """Kinds of the steps that wait again."""
    failed: tuple[str, ...]
    """Kinds of those that took their worker down once too often."""
    workers: int
    locks: int

    @property
    def steps(self) -> int:
        return len(self.reset) + len(self.failed)


STEP = (
    "id, lease_token, epoch, resource_key, run_id, document_id, generation_id, owner, snapshot, position, "
    "kind, name, priority, rank, attempts, crashes, errors, pool"
)


def step_of(row: Row) -> Step:
    return Step(
        lease=Lease(StepId(row[0]), Token(row[1]), row[2], row[3]),
        run_id=RunId(row[4]),
        document_id=DocumentId(row[5]),
        generation_id=GenerationId(row[6]),
        owner=Owner(row[7]),
        snapshot=row[8],
        position=row[9],
        kind=row[10],
        name=row[11],
        priority=row[12],
        rank=row[13],
        attempts=row[14],
        crashes=row[15],
        errors=row[16],
        pool=row[17],
    )


# A document that has ended is never changed by a step that outlived its run.
LIVE = ", ".join(f"'{status}'" for status in (DocumentStatus.PENDING, *WORKING))
_SHOW = Statement(
    "UPDATE documents SET status = r.status, updated_at = {now} FROM {rows} "
    f"WHERE {{documents.id = r.id}} AND documents.status <> r.status AND documents.status IN ({LIVE})",
    rows="id text, status text",
)


def show(connection: Connection, steps: Sequence[tuple[DocumentId, str]]) -> None:
    """A document shows what its running step does; custom kinds leave it as it is."""
    shown = [(document, SHOWN_AS[kind]) for document, kind in steps if kind in SHOWN_AS]
    if shown:
        connection.run(_SHOW, shown)


_COMPLETE = Statement(
    "UPDATE steps SET status = 'COMPLETED', lease_token = NULL, finished_at = {now}, meta = r.meta, error = NULL, "
    "waiting_on = NULL FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, meta text",
)
# The next step is claimed along, unless something more urgent waits.
_NEXT = Statement(
    "INSERT INTO steps (run_id, position, document_id, generation_id, owner, snapshot, name, kind, pool, status, "
    "priority, rank, resource_key, attempts, epoch, lease_token, lease_until, worker_id, created_at, started_at) "
    "SELECT run_id, position, document_id, generation_id, owner, snapshot, name, kind, pool, "
    "CASE WHEN token IS NULL THEN 'PENDING' ELSE 'RUNNING' END, priority, rank, resource_key, "
    "CASE WHEN token IS NULL THEN 0 ELSE 1 END, CASE WHEN token IS NULL THEN 0 ELSE 1 END, token, "
    "CASE WHEN token IS NOT NULL THEN {now} + :lease_s END, "
    "CASE WHEN token IS NOT NULL THEN :worker END, {now}, CASE WHEN token IS NOT NULL THEN {now} END "
    "FROM (SELECT r.run_id, r.position, r.document_id, r.generation_id, r.owner, r.snapshot, r.name, r.kind, r.pool, "
    "r.priority, r.rank, r.resource_key, CASE WHEN r.priority >= coalesce((SELECT s.priority FROM steps s "
    "WHERE s.status = 'PENDING' AND s.epoch = 0 ORDER BY s.priority DESC LIMIT 1), r.priority) THEN r.token END "
    "AS token FROM {rows}) AS n WHERE true RETURNING id, run_id, lease_token",
    rows="run_id text, position int, document_id text, generation_id bigint, owner text, snapshot text, name text, "
    "kind text, pool text, priority int, rank bigint, resource_key text, token text",
)
_MEDIA_TYPE = Statement(
    "UPDATE documents SET media_type = r.media FROM {rows} WHERE {documents.id = r.document}",
    rows="document text, media text",
)


class Completed(msgspec.Struct, frozen=True):
    took: bool
    next: Step | None
    """The following step, claimed in the same transaction where that was asked for and nothing more urgent waits."""
    opened: checkpoints.Opened | None = None
    """Its artifact."""


def _following(done: Completion, step: int) -> Step:
    """The next step of a run as it was just claimed."""
    assert done.next.token is not None
    return msgspec.structs.replace(
        done.step,
        lease=Lease(StepId(step), done.next.token, 1, None),
        position=done.next.position,
        kind=done.next.kind,
        name=done.next.name,
        attempts=1,
        crashes=0,
        errors=0,
        pool=done.next.pool,
    )


def _complete(connection: Connection, completions: Sequence[Completion]) -> list[Completed]:
    if connection.dialect == "postgres":
        answers = _open_next(connection, completions, _complete_at_once(connection, completions))
        outbox.tell(connection, _completed(completions, answers))
        return answers
    took = _finish(connection, [(c.step.lease.step_id, c.step.lease.token, c.meta) for c in completions])
    done = [c for c in completions if c.step.lease.step_id in took]
    checkpoints.finish(connection, [c.output for c in done if c.output is not None])
    detected = [(c.step.document_id, c.media_type) for c in done if c.media_type is not None]
    if detected:
        connection.run(_MEDIA_TYPE, detected)
    following = _insert_next(connection, done)
    answers = [Completed(c.step.lease.step_id in took, following.get(c.step.run_id)) for c in completions]
    outbox.tell(connection, _completed(completions, answers))
    return _open_next(connection, completions, answers)


def _completed(completions: Sequence[Completion], answers: Sequence[Completed]) -> Iterator[News]:
    for c, answer in zip(completions, answers, strict=True):
        if answer.took:
            yield _step_end(c.step, c.meta)
        if answer.next is not None:
            yield News(EventKind.STEP_START, answer.next, "RUNNING")


def _step_end(step: Step, meta: str) -> News:
    return News(EventKind.STEP_END, step, "COMPLETED", f'{{"meta":{meta}}}')


def _open_next(connection: Connection, completions: Sequence[Completion], answers: list[Completed]) -> list[Completed]:
    """The artifacts of the steps that were claimed along."""
    wanted = [
        (i, checkpoints.Open(answer.next, c.next.fingerprint))
        for i, (c, answer) in enumerate(zip(completions, answers, strict=True))
        if answer.next is not None and c.next.fingerprint is not None
    ]
    if wanted:
        for (i, _), opened in zip(wanted, checkpoints.open_many(connection, [x for _, x in wanted]), strict=True):
            answers[i] = msgspec.structs.replace(answers[i], opened=opened)
    return answers


def _is_one_statement(completions: Sequence[Completion]) -> bool:
    return all(c.next.fingerprint is None for c in completions) and outbox.is_silent(
        c.step.snapshot for c in completions
    )


def _finish(connection: Connection, rows: Sequence[tuple[StepId, Token, str]]) -> set[StepId]:
    return {row[0] for row in connection.run(_COMPLETE, rows)}


def _insert_next(connection: Connection, done: Sequence[Completion]) -> dict[RunId, Step]:
    if not done:
        return {}
    rows = [
        (
            c.step.run_id,
            c.next.position,
            c.step.document_id,
            c.step.generation_id,
            c.step.owner,
            c.step.snapshot,
            c.next.name,
            c.next.kind,
            c.next.pool,
            c.step.priority,
            c.step.rank,
            c.next.resource_key,
            c.next.token,
        )
        for c in done
    ]
    inserted = connection.run(_NEXT, rows, lease_s=done[0].lease_s, worker=done[0].worker)
    by_run = {c.step.run_id: c for c in done}
    claimed = {RunId(row[1]): _following(by_run[row[1]], row[0]) for row in inserted if row[2] is not None}
    ready(connection, [(c.next.resource_key, c.next.lane) for c in done if c.next.resource_key is not None])
    before = {c.step.run_id: SHOWN_AS.get(c.step.kind) for c in done}
    show(
        connection,
        [(s.document_id, s.kind) for s in claimed.values() if SHOWN_AS.get(s.kind) != before[s.run_id]],
    )
    return claimed


# The same in one data-modifying statement, which PostgreSQL runs in a third of the time of its parts. Each part costs
# even if it has nothing to do, so a statement is put together from those that a group needs.
_DONE = (
    "WITH done AS (UPDATE steps SET status = 'COMPLETED', lease_token = NULL, finished_at = {now}, meta = r.meta, "
    "error = NULL, waiting_on = NULL FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.token "
    "RETURNING steps.id, steps.run_id, steps.document_id, steps.generation_id, steps.owner, steps.snapshot, "
    "steps.priority, steps.rank, r.next_position, r.next_name, r.next_kind, r.next_pool, r.next_key, "
    "r.next_token{carried}), "
    "following AS (INSERT INTO steps (run_id, position, document_id, generation_id, owner, snapshot, name, kind, pool, "
    "status, priority, rank, resource_key, attempts, epoch, lease_token, lease_until, worker_id, created_at, "
    "started_at) SELECT run_id, next_position, document_id, generation_id, owner, snapshot, next_name, next_kind, "
    "next_pool, CASE WHEN token IS NULL THEN 'PENDING' ELSE 'RUNNING' END, priority, rank, next_key, "
    "CASE WHEN token IS NULL THEN 0 ELSE 1 END, CASE WHEN token IS NULL THEN 0 ELSE 1 END, token, "
    "CASE WHEN token IS NOT NULL THEN {now} + :lease_s END, CASE WHEN token IS NOT NULL THEN :worker END, {now}, "
    "CASE WHEN token IS NOT NULL THEN {now} END FROM (SELECT done.*, CASE WHEN priority >= coalesce((SELECT s.priority "
    "FROM steps s WHERE s.status = 'PENDING' AND s.epoch = 0 ORDER BY s.priority DESC LIMIT 1), priority) "
    "THEN next_token END AS token FROM done OFFSET 0) AS n RETURNING id, run_id, lease_token)"
)
_SHOWN = (
    ", shown AS (UPDATE documents SET status = CASE WHEN f.lease_token IS NULL THEN documents.status "
    "ELSE coalesce(done.shown, documents.status) END, media_type = coalesce(done.media, documents.media_type), "
    "updated_at = {now} FROM done JOIN following f ON f.run_id = done.run_id "
    f"WHERE documents.id = done.document_id AND documents.status IN ({LIVE}) "
    "AND (done.shown IS NOT NULL OR done.media IS NOT NULL))"
)
_MADE = (
    ", made AS (UPDATE artifacts SET state = 'COMPLETE', token = NULL, cursor = done.pos, items = done.total, "
    "segments = done.count, meta = done.info, updated_at = {now} FROM done "
    "WHERE artifacts.id = done.artifact AND artifacts.state = 'BUILDING'), "
    "named AS (INSERT INTO segments (artifact_id, ordinal, key, sha256, size, items, first, cursor) "
    "SELECT m.artifact, m.ordinal, m.key, m.sha256, m.size, m.items, m.first, m.cursor FROM {more} "
    "JOIN done ON done.artifact = m.artifact)"
)
_KEYED = (
    ", ready AS (INSERT INTO locks (resource_key, kind, ready) SELECT next_key, "
    "min(coalesce(next_pool, next_kind)), 1 FROM done WHERE next_key IS NOT NULL GROUP BY next_key ORDER BY next_key "
    "ON CONFLICT (resource_key) DO UPDATE SET ready = 1, "
    "kind = excluded.kind)"
)
_DONE_COLUMNS = (
    "step bigint, token text, meta text, next_position int, next_name text, next_kind text, next_pool text, "
    "next_key text, next_token text"
)
_SHOWN_COLUMNS = ", shown text, media text"
_MADE_COLUMNS = ", artifact bigint, pos text, total bigint, count int, info text"


@cache
def _complete_statement(shown: bool, made: bool, keyed: bool) -> Statement:
    carried = ", r.shown, r.media" * shown + ", r.artifact, r.pos, r.total, r.count, r.info" * made
    text = _DONE.replace("{carried}", carried) + _SHOWN * shown + _MADE * made + _KEYED * keyed
    text += " SELECT done.id, f.id, f.lease_token FROM done JOIN following f ON f.run_id = done.run_id"
    columns = _DONE_COLUMNS + _SHOWN_COLUMNS * shown + _MADE_COLUMNS * made
    return Statement(text, rows=columns, more=checkpoints.SEGMENT_COLUMNS if made else "")


def _complete_at_once(connection: Connection, completions: Sequence[Completion]) -> list[Completed]:
    visible = [_newly_shown(c) for c in completions]
    shown = any(status is not None or media is not None for status, media in visible)
    made = any(c.output is not None for c in completions)
    keyed = any(c.next.resource_key is not None for c in completions)
    rows: list[tuple[object, ...]] = []
    for c, seen in zip(completions, visible, strict=True):
        lease, following = c.step.lease, c.next
        row: tuple[object, ...] = (
            lease.step_id,
            lease.token,
            c.meta,
            following.position,
            following.name,
            following.kind,
        )
        row += (following.pool, following.resource_key, following.token, *(seen if shown else ()))
        rows.append((*row, *(checkpoints.output_row(c.output) if made else ())))
    segments = [segment for c in completions for segment in checkpoints.output_segments(c.output)] if made else None
    statement = _complete_statement(shown, made, keyed)
    answers = connection.run(statement, rows, segments, lease_s=completions[0].lease_s, worker=completions[0].worker)
    claimed = {done: (step, token) for done, step, token in answers}
    results = []
    for c in completions:
        step, token = claimed.get(c.step.lease.step_id, (None, None))
        results.append(Completed(step is not None, None if token is None else _following(c, step)))
    return results


def _newly_shown(c: Completion) -> tuple[DocumentStatus | None, str | None]:
    """What the document shows from now on, if that changes, and what it was found to be."""
    shown = SHOWN_AS.get(c.next.kind)
    return None if shown == SHOWN_AS.get(c.step.kind) else shown, c.media_type


_READY = Statement(
    "INSERT INTO locks (resource_key, kind, ready) SELECT r.key, r.kind, 1 FROM {rows} WHERE true "
    "ON CONFLICT (resource_key) DO UPDATE SET ready = 1, kind = excluded.kind",
    rows="key text, kind text",
)
_READY_STEPS = Statement(
    "SELECT DISTINCT resource_key, coalesce(pool, kind) FROM steps JOIN {rows} ON {steps.id = r.step} "
    "WHERE resource_key IS NOT NULL",
    rows="step bigint",
)


def ready(connection: Connection, keys: Sequence[tuple[str | None, str]]) -> None:
    """Steps wait behind these keys. The row is written each time, even if it says so already: on PostgreSQL that
    makes us wait for a claim that is just about to find nothing there."""
    if keys:
        connection.run(_READY, sorted(dict(keys).items(), key=str))


def ready_steps(connection: Connection, steps: Sequence[StepId]) -> None:
    """The same for steps that came back to PENDING."""
    if steps:
        keys = connection.run(_READY_STEPS, [(step,) for step in steps])
        ready(connection, [(row[0], row[1]) for row in keys])


# Where different kinds wait behind one key, it goes to those of the first.
_HAND_ON = Statement(
    "UPDATE locks SET ready = 1, kind = (SELECT coalesce(s.pool, s.kind) FROM steps s WHERE s.status = 'PENDING' "
    "AND s.resource_key IS NOT NULL AND s.resource_key = :key ORDER BY s.priority DESC, s.rank LIMIT 1) "
    "WHERE resource_key = :key AND EXISTS (SELECT 1 FROM steps s WHERE s.status = 'PENDING' "
    "AND s.resource_key IS NOT NULL AND s.resource_key = :key)"
)


def hand_on(connection: Connection, key: str) -> None:
    """After a statement that freed the key: on PostgreSQL whoever begins to wait behind it now waits for us first."""
    connection.run(_HAND_ON, key=key)


# The five conditions of I5 in one statement: lease, lock, run, document, generation. Scalar subqueries, not EXISTS:
# PostgreSQL turns the latter into joins, whose plan goes bad as the tables grow.
_FLIP = Statement(
    "UPDATE steps SET status = 'COMPLETED', lease_token = NULL, finished_at = {now}, meta = r.meta, error = NULL, "
    "waiting_on = NULL FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.token "
    "AND (steps.resource_key IS NULL OR (SELECT locks.lease_until FROM locks "
    "WHERE locks.resource_key = steps.resource_key AND locks.token = r.token) > {now}) "
    "AND (SELECT runs.status FROM runs WHERE runs.id = steps.run_id) = 'OPEN' "
    "AND (SELECT documents.deleted_at IS NULL FROM documents WHERE documents.id = steps.document_id) "
    "AND (SELECT g.state FROM generations g WHERE g.id = steps.generation_id) = 'BUILDING' "
    "AND coalesce((SELECT a.id FROM generations a WHERE a.document_id = steps.document_id AND a.state = 'ACTIVE'), 0) "
    "< steps.generation_id RETURNING id",
    rows="step bigint, token text, meta text",
)
_END_DOCUMENT = Statement(
    "UPDATE documents SET status = r.status, error = NULL, updated_at = {now} FROM {rows} WHERE {documents.id = r.id}",
    rows="id text, status text",
)
_END_RUN = Statement(
    "UPDATE runs SET status = r.status, finished_at = {now} FROM {rows} "
    "WHERE {runs.id = r.run} AND runs.status = 'OPEN' RETURNING group_id",
    rows="run text, status text",
)


def _end_runs(connection: Connection, runs: Sequence[tuple[RunId, str]]) -> None:
    groups.close(connection, [row[0] for row in connection.run(_END_RUN, runs)])


# The same in one statement. `going` is read by `coming`, so the old one is out before the new one comes in.
_FLIPPED = (
    "WITH done AS ("
    + _FLIP.text.replace(
        "RETURNING id",
        "RETURNING steps.*, r.shown, r.page_count, r.chunk_count, r.artifact, r.pos, r.total, r.count, r.info",
    )
    + "), going AS (UPDATE generations SET state = 'SUPERSEDED' FROM done "
    "WHERE generations.document_id = done.document_id AND generations.state = 'ACTIVE' RETURNING generations.*), "
    "purging AS (INSERT INTO purges (generation_id, owner, collection, index_version, not_before) "
    "SELECT id, owner, collection, index_version, {now} + :grace FROM going ON CONFLICT (generation_id) DO NOTHING), "
    "coming AS (UPDATE generations SET state = 'ACTIVE', flipped_at = {now}, pages = done.page_count, "
    "chunks = done.chunk_count FROM done WHERE generations.id = done.generation_id "
    "AND (SELECT count(*) FROM going) >= 0), "
    "ended AS (UPDATE documents SET status = done.shown, error = NULL, updated_at = {now} FROM done "
    "WHERE documents.id = done.document_id), "
    "closed AS (UPDATE runs SET status = 'COMPLETED', finished_at = {now} FROM done WHERE runs.id = done.run_id "
    "RETURNING runs.group_id)" + groups.COUNTED
)


@cache
def _flip_statement(made: bool) -> Statement:
    return Statement(
        _FLIPPED + _MADE * made + " SELECT id FROM done",
        rows="step bigint, token text, meta text, shown text, page_count int, chunk_count int, artifact bigint, "
        "pos text, total bigint, count int, info text",
        more=checkpoints.SEGMENT_COLUMNS if made else "",
    )


def _flip_at_once(connection: Connection, flips: Sequence[Flip]) -> list[bool]:
    rows, segments = [], []
    for f in flips:
        lease = f.step.lease
        rows.append(
            (lease.step_id, lease.token, f.meta, f.status, f.pages, f.chunks, *checkpoints.output_row(f.output))
        )
        segments += checkpoints.output_segments(f.output)
    made = any(f.output is not None for f in flips)
    answers = connection.run(_flip_statement(made), rows, segments if made else None, grace=GRACE_S)
    took = {row[0] for row in answers}
    return [f.step.lease.step_id in took for f in flips]


def _flip(connection: Connection, flips: Sequence[Flip]) -> list[bool]:
    if connection.dialect == "postgres":
        answers = _flip_at_once(connection, flips)
        outbox.tell(connection, _flipped([f for f, took in zip(flips, answers, strict=True) if took]))
        return answers
    rows = [(f.step.lease.step_id, f.step.lease.token, f.meta) for f in flips]
    took = {row[0] for row in connection.run(_FLIP, rows)}
    done = [f for f in flips if f.step.lease.step_id in took]
    if done:
        checkpoints.finish(connection, [f.output for f in done if f.output is not None])
        generations.activate(
            connection, [(f.step.generation_id, f.step.document_id, f.pages, f.chunks) for f in done], GRACE_S
        )
        connection.run(_END_DOCUMENT, [(f.step.document_id, f.status) for f in done])
        _end_runs(connection, [(f.step.run_id, "COMPLETED") for f in done])
        outbox.tell(connection, _flipped(done))
    return [f.step.lease.step_id in took for f in flips]


def _flipped(flips: Sequence[Flip]) -> Iterator[News]:
    for f in flips:
        yield _step_end(f.step, f.meta)
        counts = json.dumps({"meta": {"pages": f.pages, "chunks": f.chunks}})
        yield News(EventKind.ITEM_END, f.step, f.status, counts, of_step=False)


_ERROR = Statement(
    "UPDATE steps SET status = 'ERROR', lease_token = NULL, errors = errors + 1, alone = 0, error = r.error, "
    "not_before = {now} + r.delay, waiting_on = NULL FROM {rows} "
    "WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, error text, delay float8",
)
_FAIL = Statement(
    "UPDATE steps SET status = 'FAILED', lease_token = NULL, errors = errors + 1, error = r.error, "
    "finished_at = {now}, waiting_on = NULL FROM {rows} "
    "WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, error text",
)
_FAIL_DOCUMENT = Statement(
    "UPDATE documents SET status = 'FAILED', error = r.error, updated_at = {now} FROM {rows} "
    f"WHERE {{documents.id = r.id}} AND documents.status IN ({LIVE})",
    rows="id text, error text",
)


def _error(connection: Connection, failures: Sequence[StepFailure]) -> list[bool]:
    """Back off while attempts remain; otherwise the run ends as a dead letter."""
    again = [f for f in failures if f.retry_in is not None]
    last = [f for f in failures if f.retry_in is None]
    took: set[StepId] = set()
    if again:
        rows = [(f.step.lease.step_id, f.step.lease.token, f.error, f.retry_in) for f in again]
        took |= {row[0] for row in connection.run(_ERROR, rows)}
        outbox.tell(connection, (_step_failed(f, "ERROR") for f in again if f.step.lease.step_id in took))
    if last:
        rows_last = [(f.step.lease.step_id, f.step.lease.token, f.error) for f in last]
        failed = {row[0] for row in connection.run(_FAIL, rows_last)}
        _bury(connection, [f for f in last if f.step.lease.step_id in failed])
        took |= failed
    return [f.step.lease.step_id in took for f in failures]


def _bury(connection: Connection, failures: Sequence[StepFailure]) -> None:
    if not failures:
        return
    _end_runs(connection, [(f.step.run_id, "FAILED") for f in failures])
    outbox.tell(connection, (news for f in failures for news in _failed(f)))
    connection.run(_FAIL_DOCUMENT, [(f.step.document_id, f.error) for f in failures])
    dead_letters.bury(
        connection,
        [
            (
                f.step.owner,
                f.step.document_id,
                f.step.run_id,
                f.step.name,
                f.step.kind,
                f.reason,
                f.error,
                f.traceback,
                f.page,
                f.step.attempts,
            )
            for f in failures
        ],
    )


def _step_failed(f: StepFailure, status: str) -> News:
    body = json.dumps({"error": f.error, "meta": {"reason": f.reason, "page": f.page}})
    return News(EventKind.STEP_FAILED, f.step, status, body)


def _failed(f: StepFailure) -> tuple[News, News]:
    """The step, and its run with it; that says which step it was, too."""
    news = _step_failed(f, "FAILED")
    return news, msgspec.structs.replace(news, kind=EventKind.ITEM_FAILED)


_RELEASE = Statement(
    "UPDATE steps SET status = 'PENDING', lease_token = NULL, waiting_on = NULL, alone = 0, "
    "attempts = CASE WHEN attempts > 0 THEN attempts - r.back ELSE 0 END "
    "FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, back int",
)


def _release(connection: Connection, releases: Sequence[Release]) -> list[bool]:
    rows = [(r.step.lease.step_id, r.step.lease.token, int(r.give_back)) for r in releases]
    took = {StepId(row[0]) for row in connection.run(_RELEASE, rows)}
    ready_steps(connection, sorted(took))
    return [r.step.lease.step_id in took for r in releases]


# A beat waits for no step: who writes to several in his own order would wait for it in turn, and one of them be ended.
_AT_REST = Statement("SELECT id FROM steps WHERE id IN (SELECT r.step FROM {rows}) {skip}", rows="step bigint")
_STILL_OURS = Statement(
    "SELECT s.id FROM {rows} JOIN steps s ON s.id = r.step AND s.lease_token = r.token", rows="step bigint, token text"
)
_BEAT = Statement(
    "UPDATE steps SET lease_until = {now} + :lease_s FROM {rows} "
    "WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text",
)
# The same for those about which there is something to say.
_SIGN = Statement(
    "UPDATE steps SET lease_until = {now} + :lease_s, waiting_on = r.waiting, "
    "progress_at = CASE WHEN r.moved = 1 THEN {now} ELSE progress_at END, "
    "timeout_at = CASE WHEN r.timeout IS NULL THEN timeout_at ELSE {now} + r.timeout END FROM {rows} "
    "WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, waiting text, moved int, timeout float8",
)
_BEAT_LOCKS = Statement(
    "UPDATE locks SET lease_until = {now} + :lease_s FROM {rows} "
    "WHERE locks.resource_key = r.key AND locks.token = r.token RETURNING resource_key",
    rows="key text, token text",
)
_SEEN = Statement("UPDATE workers SET seen_at = {now} WHERE id = :worker")


class Beaten(msgspec.Struct, frozen=True):
    alive: frozenset[StepId]
    locks: frozenset[str]
    passed: frozenset[StepId] = frozenset()
    """Somebody writes to them just now: what was to be said of them is not in the ledger."""


def _heartbeat(connection: Connection, beats: Sequence[Beat]) -> list[Beaten]:
    """Extends the leases that are still ours, and tells which these are: the others are lost."""
    answers = []
    for beat in beats:
        # Before the steps: there are those who hold a lock and want its steps.
        held = connection.run(_BEAT_LOCKS, list(beat.locks), lease_s=beat.lease_s) if beat.locks else []
        passed = _in_use(connection, beat.leases)
        signs = {sign.step: sign for sign in beat.signs}
        ours = [x for x in beat.leases if x.step_id not in passed]
        silent = [(x.step_id, x.token) for x in ours if x.step_id not in signs]
        told = [_sign_row(x, signs[x.step_id]) for x in ours if x.step_id in signs]
        rows = connection.run(_BEAT, silent, lease_s=beat.lease_s) if silent else []
        rows += connection.run(_SIGN, told, lease_s=beat.lease_s) if told else []
        if passed:
            rows += connection.run(_STILL_OURS, [(x.step_id, x.token) for x in beat.leases if x.step_id in passed])
        connection.run(_SEEN, worker=beat.worker)
        alive = frozenset(StepId(row[0]) for row in rows)
        answers.append(Beaten(alive, frozenset(row[0] for row in held), passed))
    return answers


def _in_use(connection: Connection, leases: Sequence[Lease]) -> frozenset[StepId]:
    """Those that another transaction writes to. SQLite has one writer at a time."""
    if not leases or connection.dialect == "sqlite":
        return frozenset()
    steps = {lease.step_id for lease in leases}
    return frozenset(steps - {StepId(row[0]) for row in connection.run(_AT_REST, [(step,) for step in sorted(steps)])})


def _sign_row(lease: Lease, sign: Sign) -> tuple[object, ...]:
    return (lease.step_id, lease.token, sign.waiting_on, int(sign.moved), sign.timeout_s)


# `(SELECT {now})`, here and in due: PostgreSQL's clock moves while a statement runs, so it would be asked for each row
# of the index, and the index be read to its end.
_EXPIRED = Statement(
    "SELECT id, lease_token FROM steps WHERE status = 'RUNNING' AND lease_until < (SELECT {now}) "
    "ORDER BY lease_until LIMIT :count"
)
_OVERDUE = Statement(
    "SELECT id, lease_token FROM steps WHERE status = 'RUNNING' AND timeout_at IS NOT NULL "
    "AND timeout_at < (SELECT {now}) ORDER BY timeout_at LIMIT :count"
)
_OF_THE_DEAD = Statement(
    "SELECT id, lease_token FROM steps WHERE status = 'RUNNING' AND worker_id IN (SELECT r.worker FROM {rows})",
    rows="worker text",
)
# Many steps die with a worker, and at most one of them killed it. The first crashes count for whoever was there;
# from then on a step is a suspect, runs alone, and only a crash while it did so counts. One that had not begun is none,
# but that is known as of the last heartbeat only: somebody who kills right after he began is found out in the end.
_REAP = Statement(
    "UPDATE steps SET status = CASE WHEN crashes + 1 >= :limit AND alone = 1 THEN 'FAILED' ELSE 'PENDING' END, "
    f"crashes = CASE WHEN alone = 0 AND (crashes >= {SUSPECT} OR waiting_on = '{ROOM}' AND attempts < {UNBEGUN}) "
    "THEN crashes ELSE crashes + 1 END, alone = 0, "
    "lease_token = NULL, waiting_on = NULL, "
    "error = 'the worker ' || worker_id || CASE WHEN r.overdue = 1 THEN ' hung in this step: no progress within its "
    "timeout' ELSE ' died or was stopped while this step ran' END "
    f"FROM {{rows}} WHERE {{steps.id = r.step}} AND steps.lease_token = r.lease "
    f"AND (r.overdue = 0 OR steps.timeout_at < {{now}}) RETURNING {STEP}, status",
    rows="step bigint, lease text, overdue int",
)
# Who hangs beats on, for its locks too.
_FREE_HUNG = Statement(
    f"UPDATE locks SET {FREED} WHERE token IN (SELECT r.lease FROM {{rows}})",
    rows="lease text",
)
_SWEEP = Statement(
    f"UPDATE locks SET {FREED} "
    "WHERE token IS NOT NULL AND (lease_until < {now} OR worker_id IN (SELECT r.id FROM {rows})) "
    "RETURNING resource_key",
    rows="id text",
)
_BURY_WORKERS = Statement("DELETE FROM workers WHERE id IN (SELECT r.id FROM {rows}) RETURNING id", rows="id text")


def _reap(connection: Connection, requests: Sequence[Reap]) -> list[Reaped]:
    """Takes back the steps and locks of the dead: by lease, whatever worker it was, but never what we hold (I7). A step
    that hangs is taken from the living as well; what hangs here, the worker ends itself."""
    answers = []
    for request in requests:
        dead = [(worker,) for worker in request.dead]
        lapsed = connection.run(_EXPIRED, count=REAP_BATCH) + (connection.run(_OF_THE_DEAD, dead) if dead else [])
        found = dict.fromkeys(connection.run(_OVERDUE, count=REAP_BATCH), 1)
        found |= dict.fromkeys(lapsed, 0)
        taken = sorted((step, token, hung) for (step, token), hung in found.items() if step not in request.held)
        rows = connection.run(_REAP, taken, limit=request.crashes) if taken else []
        reaped = {row[0] for row in rows}
        hung = sorted({(token,) for step, token, hung in taken if hung and step in reaped})
        if hung:
            connection.run(_FREE_HUNG, hung)
        failed = [
            StepFailure(step_of((row[0], "", *row[2:])), "crash_loop", _crash_sentence(request.crashes, row))
            for row in rows
            if row[-1] == "FAILED"
        ]
        _bury(connection, failed)
        ready_steps(connection, [StepId(row[0]) for row in rows if row[-1] == "PENDING"])
        swept = connection.run(_SWEEP, dead)
        outbox.free(connection, request.dead)
        groups.seal_abandoned(connection, REAP_BATCH)
        buried = connection.run(_BURY_WORKERS, dead)
        reset = tuple(row[10] for row in rows if row[-1] == "PENDING")
        answers.append(Reaped(reset, tuple(f.step.kind for f in failed), len(buried), len(swept)))
    return answers


def _crash_sentence(limit: int, row: Row) -> str:
    return (
        f"step {row[11]!r} took its worker down, or hung it, {limit} times in a row without progress: the document may "
        f"be what does it. Look at it, then `penstock retry {row[5]}`"
    )


_ALONE = Statement(
    "UPDATE steps SET alone = 1 FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.lease RETURNING id",
    rows="step bigint, lease text",
)


def _go_alone(connection: Connection, leases: Sequence[Lease]) -> list[bool]:
    """A suspect begins, with nothing else running in its worker: if that dies now, we know why."""
    took = {row[0] for row in connection.run(_ALONE, [(lease.step_id, lease.token) for lease in leases])}
    return [lease.step_id in took for lease in leases]


# Picked once and for all: as a subquery, PostgreSQL may run it anew for each row, and find other rows each time.
_DROP = Statement(
    "UPDATE steps SET status = 'CANCELLED', lease_token = NULL, finished_at = {now} FROM {rows} "
    "WHERE {steps.id = r.step} AND steps.lease_token = r.lease RETURNING id",
    rows="step bigint, lease text",
)


def _drop(connection: Connection, leases: Sequence[Lease]) -> list[None]:
    """Steps whose document is gone: there is nothing to do for them, now or later."""
    connection.run(_DROP, [(lease.step_id, lease.token) for lease in leases])
    return [None for _ in leases]


_HAND_OVER = Statement(
    "UPDATE steps SET status = 'PENDING', lease_token = NULL, waiting_on = NULL, alone = 0 "
    "WHERE status = 'RUNNING' AND worker_id = :worker RETURNING id"
)
_FREE_LOCKS = Statement(f"UPDATE locks SET {FREED} WHERE token IS NOT NULL AND worker_id = :worker")
_LEAVE = Statement("DELETE FROM workers WHERE id = :worker")


def _leave(connection: Connection, names: Sequence[WorkerId]) -> list[None]:
    """A worker goes. What it still holds, because a claim came through while it stopped, it hands over."""
    for worker in names:
        left = [StepId(row[0]) for row in connection.run(_HAND_OVER, worker=worker)]
        connection.run(_FREE_LOCKS, worker=worker)
        ready_steps(connection, left)
        connection.run(_LEAVE, worker=worker)
    return [None for _ in names]


_DUE = Statement(
    "WITH picked AS MATERIALIZED (SELECT id FROM steps WHERE status = 'ERROR' AND not_before <= (SELECT {now}) "
    "ORDER BY not_before LIMIT :count {skip}) "
    "UPDATE steps SET status = 'PENDING', not_before = NULL WHERE id IN (SELECT id FROM picked) RETURNING id"
)


def _due(connection: Connection, counts: Sequence[int]) -> list[int]:
    answers = []
    for count in counts:
        moved = [StepId(row[0]) for row in connection.run(_DUE, count=count)]
        ready_steps(connection, moved)
        answers.append(len(moved))
    return answers


COMPLETE = Verb("complete", _complete, at_once=_is_one_statement, of=lambda done: done.step.lease.step_id)
FLIP = Verb(
    "flip",
    _flip,
    at_once=lambda flips: outbox.is_silent(flip.step.snapshot for flip in flips),
    of=lambda flip: flip.step.lease.step_id,
)
ERROR = Verb("error", _error, of=lambda failure: failure.step.lease.step_id)
RELEASE = Verb("release", _release, of=lambda release: release.step.lease.step_id)
HEARTBEAT = Verb("heartbeat", _heartbeat)
DROP = Verb("drop", _drop)
LEAVE = Verb("leave", _leave, wakes=bool)
GO_ALONE = Verb("alone", _go_alone, of=lambda lease: lease.step_id)
REAP = Verb("reap", _reap, wakes=lambda answers: any(reaped.steps for reaped in answers))
DUE = Verb("due", _due, wakes=any)
