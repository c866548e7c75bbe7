"""I3: whoever lost the lease writes nothing. And: the database itself refuses every illegal change of status."""

from collections.abc import Awaitable, Callable
from itertools import product

import pytest
from tests.kit.ledger import KEY, LEASE_S, Desk, output, segment

from penstock.ledger.engine import checkpoints, generations, leasing, locks, releases
from penstock.model.nouns import ArtifactId, Step, WorkerId
from penstock.model.states import DOCUMENT_TRANSITIONS, STEP_TRANSITIONS, DocumentStatus, StepStatus

Write = Callable[[Desk, Step, ArtifactId], Awaitable[object]]


async def _checkpoint(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    return await desk.progress(step, artifact, 1)


async def _complete(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    done = await desk.complete(step, chain=True, output=output(artifact, 2), media_type="x/y", fingerprint="next")
    assert (done.next, done.opened) == (None, None)
    return done.took


async def _complete_keyed(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    return (await desk.complete(step, "index", key="index:other")).took


async def _flip(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    return await desk.flip(step, output=output(artifact, 2))


async def _error(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    return await desk.fail(step, retry_in=1.0)


async def _fail(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    return await desk.fail(step)


async def _release(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    return await desk.ledger.write(releases.RELEASE, releases.Release(step, give_back=True))


async def _alone(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    return await desk.ledger.write(leasing.GO_ALONE, step.lease)


async def _rewind(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    return await desk.ledger.write(checkpoints.REWIND, checkpoints.Rewind(step, artifact, 0))


async def _write(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    writing = generations.Writing(step.lease.step_id, step.lease.token, step.generation_id)
    return await desk.ledger.write(generations.WRITE, writing)


async def _release_lock(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    return await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))


async def _heartbeat(desk: Desk, step: Step, artifact: ArtifactId) -> object:
    signs = (leasing.StepSignal(step.lease.step_id, "a stale wait", moved=True, timeout_s=1.0),)
    held = ((KEY, step.lease.token),)
    beat = leasing.Beat(WorkerId("w1"), (step.lease,), held, signs, LEASE_S)
    beaten = await desk.ledger.write(leasing.HEARTBEAT, beat)
    return bool(beaten.alive or beaten.locks)


WRITES: list[Write] = [
    _checkpoint, _complete, _complete_keyed, _flip, _error, _fail, _release, _alone, _rewind, _write, _release_lock,
    _heartbeat,
]  # fmt: skip


@pytest.mark.parametrize("after", ["reaped", "claimed by another", "cancelled", "superseded", "deleted", "completed"])
async def test_i3_every_write_with_a_stale_lease_says_so_and_changes_nothing(desk: Desk, after: str) -> None:
    """The step is an index step, so that it has a lock to lose, too."""
    step, artifact = await _index_step_with_artifact(desk)
    if after == "completed":
        assert await desk.flip(step)
        assert await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    elif after == "cancelled":
        await desk.cancel(step.document_id)
    elif after == "superseded":
        await desk.submit("/a", content="v2")
    elif after == "deleted":
        await desk.delete(step.document_id)
    if after != "completed":
        await desk.reap("w1")
    if after == "claimed by another":
        [again] = await desk.claim_keyed(worker="w2")
        assert (await desk.open(again)).mine
    before = await desk.everything()
    for write in WRITES:
        answer = await write(desk, step, artifact)
        assert answer in (False, None), write.__name__
        assert await desk.everything() == before, write.__name__


async def _index_step_with_artifact(desk: Desk) -> tuple[Step, ArtifactId]:
    step = await desk.indexing()
    artifact = (await desk.open(step)).artifact.id
    flush = checkpoints.Progress(step, artifact, '{"page":1}', 2, (segment(artifact, 0),), LEASE_S)
    assert await desk.ledger.write(checkpoints.CHECKPOINT, flush)
    return step, artifact


async def test_i3_an_open_with_a_stale_lease_takes_nothing_from_the_builder(desk: Desk) -> None:
    stale = await desk.started(worker="dead")
    artifact = (await desk.open(stale)).artifact.id
    await desk.reap("dead")
    [builder] = await desk.claim()
    assert (await desk.open(builder)).mine
    assert not (await desk.open(stale)).mine
    assert await desk.progress(builder, artifact, 0)


async def test_i3_an_open_with_a_stale_lease_is_not_believed_for_long(desk: Desk) -> None:
    """It may look as if the artifact were its own, but it cannot checkpoint, and the next opener takes it over."""
    stale = await desk.started(worker="dead")
    await desk.reap("dead")
    artifact = (await desk.open(stale)).artifact.id
    assert not await desk.progress(stale, artifact, 0)
    [builder] = await desk.claim()
    assert (await desk.open(builder)).mine
    assert await desk.progress(builder, artifact, 0)


STEP_COLUMNS = {
    StepStatus.RUNNING: "lease_token = 't', lease_until = 1, not_before = NULL",
    StepStatus.ERROR: "lease_token = NULL, not_before = 1",
}


async def test_every_illegal_change_of_a_step_is_refused_and_every_legal_one_is_not(desk: Desk) -> None:
    await desk.submit("/a")
    await _try_all(desk, "steps", list(StepStatus), set(STEP_TRANSITIONS), _step_columns)


def _step_columns(status: str) -> str:
    return STEP_COLUMNS.get(StepStatus(status), "lease_token = NULL, not_before = NULL")


async def test_every_illegal_change_of_a_document_is_refused_and_every_legal_one_is_not(desk: Desk) -> None:
    await desk.submit("/a")
    await _try_all(desk, "documents", list(DocumentStatus), set(DOCUMENT_TRANSITIONS), lambda status: "error = NULL")


async def _try_all(
    desk: Desk, table: str, states: list[str], legal: set[tuple[str, str]], columns: Callable[[str], str]
) -> None:
    dialect = desk.ledger.database.dialect
    trigger = f"{table}_transition"
    off = f"ALTER TABLE {table} DISABLE TRIGGER {trigger}"
    on = f"ALTER TABLE {table} ENABLE TRIGGER {trigger}"
    if dialect == "sqlite":
        off = f"DROP TRIGGER {trigger}"
        on = await desk.one(f"SELECT sql FROM sqlite_schema WHERE name = '{trigger}'")
    refused: dict[tuple[str, str], str] = {}
    for old, new in product(states, states):
        await desk.rows(off)
        await desk.rows(f"UPDATE {table} SET status = '{old}', {columns(old)}")
        await desk.rows(on)
        try:
            await desk.rows(f"UPDATE {table} SET status = '{new}', {columns(new)}")
        except Exception as error:
            refused[(old, new)] = str(error)
    allowed = legal | {(state, state) for state in states}
    assert set(refused) == set(product(states, states)) - allowed
    assert all("illegal transition" in message for message in refused.values())
