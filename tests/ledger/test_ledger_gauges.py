"""What metrics ask of the ledger: how it stands, and what a reap took back."""

from tests.kit.ledger import Desk

from penstock.ledger.database import workers
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import leasing
from penstock.ledger.reads import gauges
from penstock.model.nouns import WorkerId


async def test_gauges_tell_how_the_ledger_stands(desk: Desk, ledger: Ledger) -> None:
    async def read() -> dict[tuple[str, ...], float]:
        found = await ledger.read(gauges.read, ("extract", "index"))
        return {(gauge.name, *gauge.labels.values()): gauge.value for gauge in found}

    empty = await read()
    assert empty["queue_depth", "index", "PENDING"] == empty["oldest_pending_age_seconds", "extract"] == 0
    await desk.submit(*(f"/{i}" for i in range(5)))
    first, second, third = await desk.claim(3)
    await desk.fail(first, retry_in=100.0)
    await desk.fail(second)
    await desk.rows("UPDATE steps SET created_at = created_at - 90 WHERE status = 'PENDING'")
    now = await read()
    depths = [now["queue_depth", third.kind, status] for status in ("PENDING", "RUNNING", "ERROR")]
    assert depths == [2, 1, 1]
    assert 90 <= now["oldest_pending_age_seconds", third.kind] < 150
    assert (now["documents", "FAILED"], now["documents", "COMPLETED"]) == (1, 0)
    assert sum(value for (name, *_), value in now.items() if name == "documents") == 5
    assert (now["dead_letters_open",], now["workers",]) == (1, 0)


async def test_steps_behind_a_lock_are_in_the_queue_too(desk: Desk, ledger: Ledger) -> None:
    await desk.to_index("/a", "/b")
    found = await ledger.read(gauges.read, ())
    depths = {tuple(gauge.labels.values()): gauge.value for gauge in found if gauge.name == "queue_depth"}
    assert depths == {("index", "PENDING"): 2}


async def test_reap_tells_kinds_workers_and_locks(desk: Desk, ledger: Ledger) -> None:
    await ledger.write(workers.REGISTER, workers.Worker(WorkerId("dead"), "host", 1))
    await desk.to_index("/indexed")
    await desk.claim_keyed(worker="dead")
    await desk.submit("/a", "/b")
    await desk.claim(2, worker="dead")
    order = leasing.Reap(frozenset(), (WorkerId("dead"), WorkerId("left long ago")), 5)
    reaped = await ledger.write(leasing.REAP, order)
    assert (sorted(reaped.reset), reaped.failed) == (["extract", "extract", "index"], ())
    assert (reaped.steps, reaped.workers, reaped.locks) == (3, 1, 1)
    again = await ledger.write(leasing.REAP, order)
    assert (again.steps, again.workers, again.locks) == (0, 0, 0)


async def test_reap_tells_the_kind_of_what_it_gives_up(desk: Desk) -> None:
    step = await desk.started(worker="dead")
    await desk.rows("UPDATE steps SET crashes = 4")
    assert await desk.ledger.write(leasing.GO_ALONE, step.lease)
    reaped = await desk.ledger.write(leasing.REAP, leasing.Reap(frozenset(), (WorkerId("dead"),), 5))
    assert (reaped.reset, reaped.failed, reaped.steps) == ((), (step.kind,), 1)
