"""How a claimed step ends: complete (chain), flip, error, fail, release; and who waits behind a lock.

Every verb works on a set. Every write of a step is gated on its lease token (I3) and says whether it took.
These statements are the engine's own: they cross owners (I10)."""

import json
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from penstock.ledger.database.database import Connection, Row, Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import checkpoints, dead_letters, generations, groups, outbox
from penstock.ledger.engine.outbox import News
from penstock.model.events import EventKind
from penstock.model.nouns import DocumentId, GenerationId, Lease, Owner, RunId, Step, StepId, Token, WorkerId
from penstock.model.states import SHOWN_AS, WORKING, DocumentStatus

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
    error: str | None = None
    """Why, for a person who asks what the step waits for."""


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
# What unlocks a document is forgotten once its pages are there.
KEPT_PASSWORD = "CASE WHEN {} IN ('PENDING', 'EXTRACTING') THEN documents.password END"
_SHOW = Statement(
    f"UPDATE documents SET status = r.status, password = {KEPT_PASSWORD.format('r.status')}, "
    "updated_at = {now} FROM {rows} "
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
_NOW_SHOWN = "CASE WHEN f.lease_token IS NULL THEN documents.status ELSE coalesce(done.shown, documents.status) END"
_SHOWN = (
    f", shown AS (UPDATE documents SET status = {_NOW_SHOWN}, password = {KEPT_PASSWORD.format(_NOW_SHOWN)}, "
    "media_type = coalesce(done.media, documents.media_type), "
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
    "min(coalesce(next_pool, next_kind)), 1 FROM done WHERE next_key IS NOT NULL GROUP BY next_key "
    "ORDER BY next_key {bytes} ON CONFLICT (resource_key) DO UPDATE SET ready = 1, kind = excluded.kind)"
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


# An epoch is given once: a step that is COMPLETED in the epoch of a lease was completed under that lease.
_RECALL = Statement(
    "SELECT s.id, n.id, n.lease_token FROM {rows} JOIN steps s ON s.id = r.step AND s.epoch = r.epoch "
    "AND s.status = 'COMPLETED' LEFT JOIN steps n ON n.run_id = s.run_id AND n.position = r.following",
    rows="step bigint, epoch int, following int",
)


def _recall_completed(connection: Connection, completions: Sequence[Completion]) -> list[Completed | None]:
    rows = [(c.step.lease.step_id, c.step.lease.epoch, c.next.position) for c in completions]
    found = {row[0]: row[1:] for row in connection.run(_RECALL, rows)}
    answers: list[Completed | None] = []
    for c in completions:
        step, token = found.get(c.step.lease.step_id, (None, None))
        ours = token is not None and token == c.next.token
        answers.append(None if step is None else Completed(True, _following(c, step) if ours else None))
    return answers


def _recall_flipped(connection: Connection, flips: Sequence[Flip]) -> list[bool | None]:
    rows = [(f.step.lease.step_id, f.step.lease.epoch, f.step.position) for f in flips]
    took = {row[0] for row in connection.run(_RECALL, rows)}
    return [f.step.lease.step_id in took or None for f in flips]


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
    "UPDATE documents SET status = r.status, error = NULL, password = NULL, updated_at = {now} FROM {rows} "
    "WHERE {documents.id = r.id}",
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
    "ended AS (UPDATE documents SET status = done.shown, error = NULL, password = NULL, updated_at = {now} FROM done "
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
        bury(connection, [f for f in last if f.step.lease.step_id in failed])
        took |= failed
    return [f.step.lease.step_id in took for f in failures]


def bury(connection: Connection, failures: Sequence[StepFailure]) -> None:
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
    "attempts = CASE WHEN attempts > 0 THEN attempts - r.back ELSE 0 END, error = coalesce(r.why, steps.error) "
    "FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, back int, why text",
)


def _release(connection: Connection, releases: Sequence[Release]) -> list[bool]:
    rows = [(r.step.lease.step_id, r.step.lease.token, int(r.give_back), r.error) for r in releases]
    took = {StepId(row[0]) for row in connection.run(_RELEASE, rows)}
    ready_steps(connection, sorted(took))
    return [r.step.lease.step_id in took for r in releases]


COMPLETE = Verb(
    "complete",
    _complete,
    at_once=_is_one_statement,
    of=lambda done: done.step.lease.step_id,
    recall=_recall_completed,
)
FLIP = Verb(
    "flip",
    _flip,
    at_once=lambda flips: outbox.is_silent(flip.step.snapshot for flip in flips),
    of=lambda flip: flip.step.lease.step_id,
    recall=_recall_flipped,
)
ERROR = Verb("error", _error, of=lambda failure: failure.step.lease.step_id)
RELEASE = Verb("release", _release, of=lambda release: release.step.lease.step_id)
