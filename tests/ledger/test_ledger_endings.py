"""error, fail, release, reap, due: every way in which a step stops without being done."""

import asyncio

import pytest
from tests.kit.ledger import ANNA, BERT, EXPIRED_S, Desk, output

from penstock.ledger.database import workers
from penstock.ledger.engine import dead_letters, documents, leasing, releases
from penstock.ledger.engine.dead_letters import Alike
from penstock.ledger.engine.documents import Origin
from penstock.ledger.reads import stats
from penstock.model.nouns import Step, WorkerId
from penstock.model.states import DocumentStatus
from penstock.verbs import jobs
from penstock.verbs import summary as summaries


async def test_an_error_backs_off_until_it_is_due(desk: Desk) -> None:
    step = await desk.started()
    assert await desk.fail(step, retry_in=3600.0)
    assert await desk.step(step, "status, errors, error, lease_token") == ("ERROR", 1, "it broke", None)
    assert await desk.claim() == []
    assert await desk.ledger.write(leasing.DUE, 100) == 0
    await desk.rows("UPDATE steps SET not_before = 1")
    assert await desk.ledger.write(leasing.DUE, 100) == 1
    [again] = await desk.claim()
    assert (again.lease.step_id, again.errors, again.attempts) == (step.lease.step_id, 1, 2)
    assert again.lease.epoch == 2
    assert await desk.status(step.document_id) == "EXTRACTING"


async def test_due_moves_a_hundred_at_a_time_oldest_first(desk: Desk) -> None:
    await desk.submit(*(f"/{i}" for i in range(5)))
    for step in await desk.claim(5):
        await desk.fail(step, retry_in=-float(step.rank))
    assert await desk.ledger.write(leasing.DUE, 2) == 2
    assert await desk.rows("SELECT rank FROM steps WHERE status = 'PENDING' ORDER BY rank") == [(4,), (5,)]


async def test_i9_a_failure_leaves_a_dead_letter(desk: Desk) -> None:
    step = await desk.started()
    assert await desk.fail(step, reason="unreadable")
    assert await desk.step(step, "status, lease_token, error") == ("FAILED", None, "it broke")
    assert await desk.one("SELECT status FROM runs") == "FAILED"
    assert await desk.one("SELECT status, error FROM documents") == ("FAILED", "it broke")
    [letter] = await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10))
    assert (letter.reason, letter.error, letter.traceback, letter.page) == ("unreadable", "it broke", "the trace", 7)
    assert (letter.document_id, letter.step, letter.kind, letter.attempts) == (step.document_id, "one", "extract", 1)
    assert await desk.one("SELECT state FROM generations") == "BUILDING"


async def test_dead_letters_are_counted_by_reason_and_discarded(desk: Desk) -> None:
    await desk.submit("/a", "/b", "/c")
    for step, reason in zip(await desk.claim(3), ("torn", "torn", "locked"), strict=True):
        await desk.fail(step, reason=reason)
    reasons = await desk.ledger.read(lambda c: dead_letters.by_reason(ANNA, c))
    assert [(reason, count) for reason, count, _ in reasons] == [("torn", 2), ("locked", 1)]
    letters = await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10))
    numbers = tuple(letter.id for letter in letters if letter.reason == "torn")
    assert await desk.ledger.write(dead_letters.DISCARD, (ANNA, (*numbers, 999))) == set(numbers)
    assert await desk.ledger.write(dead_letters.DISCARD, (ANNA, numbers)) == set()
    assert len(await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10))) == 1
    assert await desk.one("SELECT count(*) FROM documents WHERE status = 'FAILED'") == 3


async def test_i7_a_release_gives_the_attempt_back_if_told_so(desk: Desk) -> None:
    step = await desk.started()
    assert await desk.ledger.write(releases.RELEASE, releases.Release(step, give_back=True))
    assert await desk.step(step, "status, attempts, crashes, lease_token, epoch") == ("PENDING", 0, 0, None, 1)
    assert await desk.status(step.document_id) == "EXTRACTING", "a released document keeps its status"
    [again] = await desk.claim()
    assert await desk.ledger.write(releases.RELEASE, releases.Release(again, give_back=False))
    assert await desk.step(step, "attempts, epoch") == (1, 2)


async def test_i7_a_release_after_progress_leaves_no_attempt(desk: Desk) -> None:
    step = await desk.started()
    made = (await desk.open(step)).artifact
    await desk.progress(step, made.id, 0)
    await desk.ledger.write(releases.RELEASE, releases.Release(step, give_back=True))
    attempts = await desk.step(step, "attempts")
    assert attempts == 0, "the checkpoint has forgiven it already"


async def test_a_lapsed_lease_is_reaped(desk: Desk) -> None:
    gone, alive = await desk.started("/a", lease_s=EXPIRED_S), await desk.started("/b")
    assert await desk.reap() == 1
    assert await desk.step(gone, "status, crashes, lease_token") == ("PENDING", 1, None)
    assert "died or was stopped" in await desk.step(gone, "error")
    assert await desk.step(alive, "status") == "RUNNING"


async def test_a_dead_worker_s_steps_are_reaped_before_their_lease_ends(desk: Desk) -> None:
    gone, alive = await desk.started("/a", worker="dead"), await desk.started("/b", worker="alive")
    for name in ("dead", "alive"):
        await desk.ledger.write(workers.REGISTER, workers.Worker(WorkerId(name), "host", 1))
    assert await desk.reap("dead") == 1
    assert await desk.step(gone, "status") == "PENDING"
    assert await desk.step(alive, "status") == "RUNNING"
    assert [worker.id for worker in await desk.ledger.read(workers.everyone)] == ["alive"]


async def test_a_reaper_never_reaps_what_it_holds(desk: Desk) -> None:
    step = await desk.started(lease_s=EXPIRED_S)
    assert await desk.reap(held=[step]) == 0
    assert (await desk.complete(step)).took


async def test_i7_a_document_that_kills_its_worker_ends_as_a_dead_letter(desk: Desk) -> None:
    step = await desk.started(worker="dead")
    for _ in range(20):
        if step.crashes >= leasing.SUSPECT:
            assert await desk.ledger.write(leasing.GO_ALONE, step.lease)
        assert await desk.reap("dead", crashes=5) == 1
        claimed = await desk.claim(worker="dead")
        if not claimed:
            break
        [step] = claimed
    assert await desk.step(step, "status, crashes") == ("FAILED", 5)
    [letter] = await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10))
    assert letter.reason == "crash_loop"
    assert f"penstock retry {step.document_id}" in letter.error
    assert await desk.status(step.document_id) == "FAILED"
    assert await desk.one("SELECT status FROM runs") == "FAILED"


@pytest.mark.parametrize("limit", [2, 3, 5])
async def test_i7_a_bystander_of_many_crashes_is_never_blamed(desk: Desk, limit: int) -> None:
    step = await desk.started(worker="dead")
    for _ in range(20):
        assert await desk.reap("dead", crashes=limit) == 1
        [step] = await desk.claim(worker="dead")
    assert step.crashes == leasing.SUSPECT
    assert await desk.status(step.document_id) == "EXTRACTING"


async def test_i7_who_had_not_begun_when_its_worker_died_is_no_suspect(desk: Desk) -> None:
    step = await desk.started(worker="dead")
    for crash in range(leasing.UNBEGUN + 1):
        # What it waits on is as old as the last heartbeat: after many claims nobody believes that any more.
        assert step.crashes == max(0, crash - leasing.UNBEGUN + 1), crash
        sign = leasing.StepSignal(step.lease.step_id, leasing.SLOT, moved=False)
        beat = leasing.Beat(WorkerId("dead"), (step.lease,), (), (sign,), 60.0)
        assert (await desk.ledger.write(leasing.HEARTBEAT, beat)).alive == {step.lease.step_id}
        assert await desk.reap("dead") == 1
        [step] = await desk.claim(worker="dead")
    assert step.crashes == leasing.SUSPECT


async def test_i7_a_suspect_that_dies_alone_is_blamed_whatever_it_was_last_seen_to_wait_on(desk: Desk) -> None:
    step = await desk.started(worker="dead")
    assert await desk.ledger.write(leasing.GO_ALONE, step.lease)
    await desk.rows(f"UPDATE steps SET waiting_on = '{leasing.SLOT}'")
    assert await desk.reap("dead") == 1
    assert await desk.step(step, "crashes") == 1


async def test_i7_time_alone_ends_with_an_error_a_release_or_progress(desk: Desk) -> None:
    for end in ("error", "release", "progress"):
        step = await desk.started(f"/{end}")
        assert await desk.ledger.write(leasing.GO_ALONE, step.lease)
        assert await desk.step(step, "alone") == 1
        if end == "error":
            await desk.fail(step, retry_in=100.0)
        elif end == "release":
            await desk.ledger.write(releases.RELEASE, releases.Release(step, give_back=True))
            await desk.claim()
        else:
            await desk.progress(step, (await desk.open(step, end)).artifact.id, 0)
        assert await desk.step(step, "alone") == 0, end


async def test_i7_a_healthy_step_that_is_interrupted_a_hundred_times_completes(desk: Desk) -> None:
    step = await desk.started(worker="dead")
    artifact = (await desk.open(step)).artifact
    for ordinal in range(100):
        assert await desk.progress(step, artifact.id, ordinal)
        assert await desk.reap("dead", crashes=5) == 1
        [step] = await desk.claim(worker="dead")
        opened = await desk.open(step)
        assert (opened.mine, opened.artifact.segments) == (True, ordinal + 1)
    assert (step.crashes, step.attempts) == (1, 1)
    assert (await desk.complete(step, output=output(artifact.id, 101))).took
    assert await desk.one("SELECT count(*) FROM segments") == 101


@pytest.mark.parametrize("verb", ["error", "fail", "release", "complete"])
async def test_a_step_ends_once(desk: Desk, verb: str) -> None:
    step = await desk.started()
    assert await _end(desk, step, verb)
    before = await desk.everything()
    for again in ("error", "fail", "release", "complete"):
        assert not await _end(desk, step, again), again
    assert await desk.everything() == before


async def _end(desk: Desk, step: Step, verb: str) -> bool:
    if verb == "complete":
        return (await desk.complete(step)).took
    if verb == "release":
        return await desk.ledger.write(releases.RELEASE, releases.Release(step, give_back=True))
    return await desk.fail(step, retry_in=5.0 if verb == "error" else None)


async def test_the_counters_of_one_step_are_not_another_s(desk: Desk) -> None:
    await desk.submit("/a", "/b")
    one, two = await desk.claim(2)
    made = (await desk.open(one)).artifact
    assert await desk.progress(one, made.id, 0)
    assert await desk.step(one, "attempts") == 0
    assert await desk.step(two, "attempts") == 1


async def test_dead_letters_are_read_page_by_page(desk: Desk) -> None:
    await desk.submit(*(f"/{i}" for i in range(5)), priority=3)
    for i, step in enumerate(await desk.claim(5)):
        await desk.fail(step, reason="odd" if i % 2 else "even")
    await desk.fail(await desk.started("/b", owner=BERT), reason="even")
    last = await desk.ledger.read(lambda c: dead_letters.last(ANNA, c))

    async def pages(reason: str, until: int, count: int = 2) -> list[list[int]]:
        found: list[list[int]] = []
        while page := await desk.ledger.read(
            lambda c: dead_letters.page(ANNA, c, reason, after=found[-1][-1] if found else 0, until=until, count=count)
        ):
            found.append([letter.id for letter in page])
        return found

    first = last - 4
    assert await pages("", last) == [[first, first + 1], [first + 2, first + 3], [first + 4]]
    assert await pages("even", last) == [[first, first + 2], [first + 4]]
    assert await pages("odd", first + 2) == [[first + 1]], "what came later is not looked at"
    origin = Origin("default", "snapshot", "today", 3, "FAILED")
    waiting = await desk.ledger.read(lambda c: dead_letters.waiting(ANNA, c, ""))
    assert sorted(waiting, key=str) == [Alike("even", origin, False, 3), Alike("odd", origin, False, 2)]
    assert await desk.ledger.read(lambda c: dead_letters.waiting(ANNA, c, "odd")) == [Alike("odd", origin, False, 2)]
    named = await desk.ledger.read(lambda c: dead_letters.named(ANNA, c, [first, first, last, last + 1, 999]))
    assert [(letter.id, letter.reason, letter.origin) for letter in named] == [
        (first, "even", origin), (last, "even", origin),
    ]  # fmt: skip
    assert await desk.ledger.read(lambda c: documents.origins(BERT, c, [named[0].document_id])) == {}
    assert await desk.ledger.read(lambda c: documents.origins(ANNA, c, [named[0].document_id])) == {
        named[0].document_id: origin
    }


async def test_however_many_failed_each_is_counted_by_its_reason(desk: Desk) -> None:
    """Some among letters of other calls, and more of them than one look reads."""
    await desk.submit(*(f"/{i}" for i in range(1100)), priority=1)
    failed = await desk.claim(1100)
    await asyncio.gather(*(desk.fail(step, reason="bad" if step.rank % 10 else "odd") for step in failed))
    await desk.submit(*(f"/other/{i}" for i in range(100)))
    await asyncio.gather(*(desk.fail(step) for step in await desk.claim(100)))
    summary = jobs.Summary()
    await summaries.explain(ANNA, desk.ledger, {s.document_id: DocumentStatus.FAILED for s in failed}, summary)
    assert summary.reasons == {"bad": 990, "odd": 110}
    assert (
        sorted(remark.reason for remark in summary.remarks) == ["bad"] * summaries.REMARKS + ["odd"] * summaries.REMARKS
    )


async def test_steps_that_have_not_completed_are_counted_by_status(desk: Desk) -> None:
    """However they came to be so: the count goes by the documents, and must agree with the steps."""

    async def agrees() -> dict[str, int]:
        rows = await desk.rows(
            "SELECT status, count(*) FROM steps WHERE owner = 'anna' AND status <> 'COMPLETED' "
            "GROUP BY status ORDER BY status"
        )
        counted = await desk.ledger.read(lambda c: stats.steps(ANNA, c))
        assert counted == dict(rows)
        return counted

    assert await agrees() == {}
    await desk.submit("/other", owner=BERT)
    await desk.submit(*(f"/{i}" for i in range(8)))
    assert await agrees() == {"PENDING": 8}
    steps = [step for step in await desk.claim(7) if step.owner == ANNA][:6]
    assert (await agrees())["RUNNING"] >= 6
    await desk.fail(steps[0], retry_in=60.0)
    await desk.fail(steps[1])
    await desk.complete(steps[2], "chunk")
    await desk.complete(steps[3], "chunk", chain=True)
    await desk.flip(steps[4])
    assert set(await agrees()) == {"ERROR", "FAILED", "PENDING", "RUNNING"}
    await desk.cancel(steps[0].document_id)
    assert (await agrees())["CANCELLED"] == 1
    await desk.delete(steps[2].document_id, steps[4].document_id)
    await agrees()
    await desk.submit(*(f"/{i}" for i in range(8)), content="v2")
    await agrees()
