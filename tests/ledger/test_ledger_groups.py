"""Run groups: counted down by whatever ends a run, sealed by the submit's end, ended once for each completion (I8)."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.kit.ledger import ANNA, BERT, EXPIRED_S, Desk

from penstock.ledger.database.connection import Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import cancellations, completions, flips, groups, leasing, outbox, restarts, submits
from penstock.ledger.reads import batches
from penstock.ledger.reads.batches import Group
from penstock.model.events import EventKind
from penstock.model.nouns import DocumentId, Step
from penstock.model.states import DocumentStatus

GROUP = "01GROUP"
EVENTS = [kind.lower() for kind in EventKind]


def told(*events: str) -> tuple[str, str]:
    """A snapshot with a handler for each of these events: its hash and body."""
    handlers = {event: [{"name": "h", "method": "m.h"}] for event in events}
    return f"told-{'-'.join(events)}", msgspec.json.encode({"lifecycle_events": handlers}).decode()


async def submit(
    desk: Desk,
    *sources: str,
    group: str = GROUP,
    seal: bool = True,
    events: Any = EVENTS,
    content: str = "v1",
    **changes: Any,
) -> list[submits.Submitted]:
    start = groups.GroupStart(group, "flow", "values", seal)
    snapshot, body = told(*events)
    documents = [desk.document(source, content) for source in sources]
    order = desk.submission(*documents, group=start, **changes)
    return await desk.ledger.write(submits.SUBMIT, msgspec.structs.replace(order, snapshot=snapshot, body=body))


async def look(desk: Desk, group: str = GROUP) -> Group:
    found = await desk.ledger.read(lambda c: batches.get(ANNA, c, group))
    assert found is not None
    return found


async def counters(desk: Desk, group: str = GROUP) -> Any:
    return await desk.one(f"SELECT open_runs, completions, sealed FROM groups WHERE id = '{group}'")


async def events(desk: Desk, *kinds: EventKind) -> list[Any]:
    names = ", ".join(f"'{kind}'" for kind in kinds or tuple(EventKind))
    rows = await desk.rows(f"SELECT kind, status, completion, step FROM events WHERE kind IN ({names}) ORDER BY id")
    return [tuple(row) for row in rows]


async def end(desk: Desk, step: Step) -> None:
    assert await desk.flip(step)


async def test_i8_the_last_run_ends_the_group_once(desk: Desk) -> None:
    await submit(desk, "/a", "/b")
    assert await counters(desk) == (2, 0, 1)
    first, second = await desk.claim(2)
    await end(desk, first)
    assert await counters(desk) == (1, 0, 1)
    assert await events(desk, EventKind.GROUP_END) == []
    assert await desk.fail(second)
    assert await counters(desk) == (0, 1, 1)
    assert await events(desk, EventKind.GROUP_START, EventKind.GROUP_END) == [
        ("GROUP_START", None, 0, None),
        ("GROUP_END", None, 1, None),
    ]
    assert await desk.one("SELECT finished_at IS NOT NULL FROM groups") in (True, 1)


async def test_i8_many_runs_that_end_at_once_end_the_group_once(desk: Desk) -> None:
    await submit(desk, *(f"/{i}" for i in range(20)))
    await submit(desk, *(f"/other{i}" for i in range(7)), group="01OTHER")
    steps = await desk.claim(27)
    assert all(await asyncio.gather(*(desk.flip(step) for step in steps)))
    assert (await counters(desk), await counters(desk, "01OTHER")) == ((0, 1, 1), (0, 1, 1))
    assert len(await events(desk, EventKind.GROUP_END)) == 2


@pytest.mark.parametrize("sealed_first", [True, False])
async def test_i8_a_group_that_is_not_sealed_does_not_end(desk: Desk, sealed_first: bool) -> None:
    await submit(desk, "/a", seal=False)
    [step] = await desk.claim()
    if sealed_first:
        assert await desk.ledger.write(groups.SEAL, GROUP)
        await end(desk, step)
    else:
        await end(desk, step)
        assert await events(desk, EventKind.GROUP_END) == []
        assert (await look(desk)).status == "SUBMITTING"
        assert await desk.ledger.write(groups.SEAL, GROUP)
    assert not await desk.ledger.write(groups.SEAL, GROUP)
    assert len(await events(desk, EventKind.GROUP_END)) == 1
    assert (await look(desk)).status == "COMPLETED"


async def test_i8_a_group_whose_submitter_came_back_after_the_reaper_looked_is_not_sealed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(desk, "/a", seal=False)
    await desk.rows("UPDATE groups SET submitting_until = 1")
    connection = desk.ledger.database.connect()
    run = connection.run

    def overtaken(statement: Statement, *arguments: Any, **values: Any) -> list[Row]:
        found = run(statement, *arguments, **values)
        if statement is groups._ABANDONED:
            assert found
            connection.script("UPDATE groups SET submitting_until = 99999999999")
        return found

    monkeypatch.setattr(connection, "run", overtaken)
    groups.seal_abandoned(connection, 10)
    connection.close()
    assert await desk.one("SELECT sealed FROM groups") == 0


async def test_i8_a_group_whose_submitter_died_is_closed_by_the_worker_that_reaps(desk: Desk) -> None:
    await submit(desk, "/a", seal=False)
    await submit(desk, "/b", group="01ALIVE", seal=False)
    for step in await desk.claim(2):
        await end(desk, step)
    await desk.rows(f"UPDATE groups SET submitting_until = 1 WHERE id = '{GROUP}'")
    await desk.reap()
    assert (await counters(desk), await counters(desk, "01ALIVE")) == ((0, 1, 1), (0, 0, 0))
    assert len(await events(desk, EventKind.GROUP_END)) == 1


async def test_a_submit_goes_on_after_its_group_was_sealed(desk: Desk) -> None:
    await submit(desk, "/a", seal=True)
    await submit(desk, "/b", seal=False)
    assert await counters(desk) == (2, 0, 0)
    await submit(desk, "/c", seal=True)
    assert await counters(desk) == (3, 0, 1)
    assert await desk.one("SELECT total_runs FROM groups") == 3
    assert len(await events(desk, EventKind.GROUP_START)) == 1


async def test_i8_a_group_that_ended_too_soon_ends_again(desk: Desk) -> None:
    """Its submitter was thought to be dead."""
    await submit(desk, "/a", seal=True)
    [step] = await desk.claim()
    await end(desk, step)
    await submit(desk, "/b", seal=False)
    assert await counters(desk) == (1, 1, 0)
    assert await desk.one("SELECT finished_at IS NULL FROM groups") in (True, 1)


async def test_i8_what_is_told_is_written_with_what_caused_it(desk: Desk) -> None:
    """Never as two statements without a transaction around them."""
    await submit(desk, "/a")
    await submit(desk, "/b", group="01SILENT", events=[])
    loud, silent = await desk.claim(2)
    for step, alone in ((loud, False), (silent, True)):
        flip = flips.Flip(step, DocumentStatus.COMPLETED, 2, 3, "{}")
        assert flips.FLIP.single_statement([flip]) == alone
        assert completions.COMPLETE.single_statement([desk.completion(step)]) == alone
    unknown = msgspec.structs.replace(silent, snapshot="nobody has looked at it yet")
    assert not completions.COMPLETE.single_statement([desk.completion(unknown)])


async def test_i8_a_retry_opens_the_group_and_it_ends_again(desk: Desk) -> None:
    [answer] = await submit(desk, "/a")
    [step] = await desk.claim()
    await desk.fail(step)
    await desk.retry(answer.document_id)
    assert await counters(desk) == (1, 1, 1)
    assert await desk.one("SELECT finished_at IS NULL FROM groups") in (True, 1)
    assert (await look(desk)).status == "RUNNING"
    [again] = await desk.claim()
    await end(desk, again)
    assert await counters(desk) == (0, 2, 1)
    assert [e[2] for e in await events(desk, EventKind.GROUP_END)] == [1, 2]


async def test_a_retry_with_other_settings_stays_in_the_group(desk: Desk) -> None:
    [answer] = await submit(desk, "/a")
    [step] = await desk.claim()
    await desk.fail(step)
    await desk.retry(answer.document_id, settings="tomorrow")
    assert await counters(desk) == (1, 1, 1)
    [again] = await desk.claim()
    assert again.run_id != step.run_id
    await end(desk, again)
    found = await look(desk)
    assert (found.status, found.total, found.completed, found.failed) == ("COMPLETED", 1, 1, 0)
    assert len(await events(desk, EventKind.GROUP_END)) == 2


@pytest.mark.parametrize("how", ["cancel", "delete", "changed", "group"])
async def test_i8_a_run_that_is_stopped_counts_as_ended(desk: Desk, how: str) -> None:
    [answer] = await submit(desk, "/a")
    await desk.claim()
    if how == "cancel":
        await desk.cancel(answer.document_id)
    elif how == "delete":
        await desk.delete(answer.document_id)
    elif how == "group":
        assert await desk.ledger.write(cancellations.CANCEL_GROUP, cancellations.CancelGroup(ANNA, GROUP, 10)) == 1
    else:
        await submit(desk, "/a", content="v2", group="01NEXT")
        assert await counters(desk, "01NEXT") == (1, 0, 1)
    assert await counters(desk) == (0, 1, 1)
    assert len(await events(desk, EventKind.GROUP_END)) == 1
    assert ("ITEM_END", "CANCELLED", None, None) in await events(desk)


async def test_i8_a_run_that_a_reap_failed_counts_as_ended(desk: Desk) -> None:
    await submit(desk, "/a")
    [step] = await desk.claim(lease_s=EXPIRED_S)
    await desk.rows(f"UPDATE steps SET alone = 1, crashes = 4 WHERE id = {step.lease.step_id}")
    await desk.reap(crashes=5)
    assert await counters(desk) == (0, 1, 1)
    assert [e[0] for e in await events(desk)][-3:] == ["GROUP_END", "STEP_FAILED", "ITEM_FAILED"]


async def test_i3_a_stale_worker_ends_nothing(desk: Desk) -> None:
    await submit(desk, "/a")
    [stale] = await desk.claim(lease_s=EXPIRED_S)
    await desk.reap()
    before = len(await events(desk))
    assert not await desk.flip(stale)
    assert not await desk.fail(stale)
    assert await counters(desk) == (1, 0, 1)
    assert len(await events(desk)) == before


async def test_i8_what_happens_to_a_run_is_told_in_order(desk: Desk) -> None:
    await submit(desk, "/a")
    [step] = await desk.claim()
    assert await desk.fail(step, retry_in=-1.0)
    await desk.ledger.write(leasing.DUE, 10)
    [step] = await desk.claim()
    completed = await desk.complete(step, "chunk", chain=True)
    assert completed.next is not None
    await end(desk, completed.next)
    assert await events(desk) == [
        ("GROUP_START", None, 0, None),
        ("ITEM_START", None, None, None),
        ("STEP_START", "RUNNING", None, "one"),
        ("STEP_FAILED", "ERROR", None, "one"),
        ("STEP_START", "RUNNING", None, "one"),
        ("STEP_END", "COMPLETED", None, "one"),
        ("STEP_START", "RUNNING", None, "step1"),
        ("GROUP_END", None, 1, None),
        ("STEP_END", "COMPLETED", None, "step1"),
        ("ITEM_END", "COMPLETED", None, None),
    ]


async def test_i8_only_events_with_a_handler_are_written(desk: Desk) -> None:
    await submit(desk, "/a", events=["item_end"])
    await submit(desk, "/b", group="01SILENT", events=[])
    for step in await desk.claim(2):
        assert await desk.fail(step, retry_in=-1.0)
    await desk.ledger.write(leasing.DUE, 10)
    for step in await desk.claim(2):
        await end(desk, step)
    assert await events(desk) == [("ITEM_END", "COMPLETED", None, None)]
    assert (await counters(desk), await counters(desk, "01SILENT")) == ((0, 1, 1), (0, 1, 1))


async def test_i8_a_completion_is_told_once_even_if_it_is_written_twice(desk: Desk) -> None:
    def twice(connection: Any) -> None:
        for _ in range(2):
            outbox.add_group_events(connection, EventKind.GROUP_END, [("anna", "x", GROUP, 1)])

    await desk.ledger.read(twice)
    assert len(await events(desk)) == 1


async def test_what_was_there_already_makes_no_group(desk: Desk) -> None:
    await submit(desk, "/a")
    for group in ("01AGAIN", "01MORE"):
        [answer] = await submit(desk, "/a", group=group)
        assert answer.outcome == "resumed"
    assert await desk.one("SELECT count(*) FROM groups") == 1


async def test_a_group_is_counted(desk: Desk) -> None:
    answers = await submit(desk, *(f"/{i}" for i in range(6)), batch="spring")
    steps = await desk.claim(5)
    await end(desk, steps[0])
    await desk.ledger.write(flips.FLIP, flips.Flip(steps[1], DocumentStatus.NOT_INDEXABLE, 0, 0, "{}"))
    await desk.fail(steps[2])
    await desk.cancel(steps[3].document_id)
    found = await look(desk)
    assert (found.total, found.completed, found.not_indexable, found.failed, found.cancelled) == (6, 1, 1, 1, 1)
    assert (found.running, found.pending, found.status) == (1, 1, "RUNNING")
    assert (found.batch, found.workflow, found.params) == ("spring", "flow", "values")
    assert len(answers) == 6
    pace = await desk.ledger.read(lambda c: batches.pace(ANNA, c, GROUP))
    assert pace.durations is not None
    assert pace.runs_per_s > 0
    assert pace.eta_s is not None
    [batch] = await desk.ledger.read(lambda c: batches.batches(ANNA, c))
    assert (batch.name, batch.groups, sum(batch.documents.values())) == ("spring", 1, 6)


async def test_percentiles_are_those_of_the_runs(desk: Desk) -> None:
    await submit(desk, *(f"/{i:02}" for i in range(20)))
    for step in await desk.claim(20):
        await end(desk, step)
    await desk.rows("UPDATE steps SET started_at = 1000")
    await desk.rows("UPDATE runs SET finished_at = 1000 + rank")
    pace = await desk.ledger.read(lambda c: batches.pace(ANNA, c, GROUP))
    assert pace.durations == batches.Durations(10.5, 11.0, 20.0, 20.0, 20.0)
    assert pace.eta_s is None


async def test_i10_groups_and_batches_of_others_are_not_there(desk: Desk) -> None:
    await submit(desk, "/a", batch="spring")
    assert await desk.ledger.read(lambda c: batches.get(BERT, c, GROUP)) is None
    assert await desk.ledger.read(lambda c: batches.newest(BERT, c, None, 10)) == []
    assert await desk.ledger.read(lambda c: batches.resolve(BERT, c, GROUP)) is None
    assert await desk.ledger.read(lambda c: batches.batches(BERT, c)) == []
    assert await desk.ledger.read(lambda c: batches.documents_of_batch(BERT, c, "spring", "default", "", 9)) == []
    assert await desk.ledger.read(lambda c: batches.documents_of_group(BERT, c, GROUP, "OPEN", "", 9)) == []
    assert await desk.ledger.write(cancellations.CANCEL_GROUP, cancellations.CancelGroup(BERT, GROUP, 10)) == 0
    assert await counters(desk) == (1, 0, 1)


async def test_a_group_is_found_by_a_part_of_its_id(desk: Desk) -> None:
    await submit(desk, "/a", group="01ABCDEF")
    await submit(desk, "/b", group="01ABCXYZ")

    async def found(name: str) -> str | None:
        return await desk.ledger.read(lambda c: batches.resolve(ANNA, c, name))

    assert [await found(name) for name in ("01ABCDEF", "01ABCD", "CDEF", "01ABC", "EF", "")] == [
        "01ABCDEF", "01ABCDEF", "01ABCDEF", None, None, None,
    ]  # fmt: skip


async def begin(desk: Desk, *documents: DocumentId, group: str = "01START", again: bool = False, **changes: Any) -> Any:
    news = [msgspec.structs.replace(desk.document("/unused", stored=False), id=document) for document in documents]
    order = desk.submission(*news, group=groups.GroupStart(group, "flow"), **changes)
    return await desk.ledger.write(restarts.START, restarts.Start(order, again))


async def test_a_workflow_is_started_for_documents_that_are_there(desk: Desk) -> None:
    answers = await submit(desk, "/done", "/failed", "/open", "/textless")
    done, failed, still, textless = (answer.document_id for answer in answers)
    steps = {step.document_id: step for step in await desk.claim(4)}
    await end(desk, steps[done])
    await desk.fail(steps[failed])
    await desk.ledger.write(flips.FLIP, flips.Flip(steps[textless], DocumentStatus.NOT_INDEXABLE, 0, 0, "{}"))
    started = await begin(desk, done, failed, still, textless)
    assert (set(started.started), started.done, started.working) == ({failed, textless}, 1, 1)
    assert await counters(desk, "01START") == (2, 0, 0)
    assert (await begin(desk, done, group="01AGAIN", again=True)).started == (done,)
    assert await desk.status(done) == "PENDING"
    assert await desk.one(f"SELECT count(*) FROM generations WHERE document_id = '{done}' AND state = 'ACTIVE'") == 1
    assert await desk.one("SELECT count(*) FROM dead_letters WHERE state = 'OPEN'") == 0


async def test_another_workflow_supersedes_what_is_being_worked_on(desk: Desk) -> None:
    [answer] = await submit(desk, "/a")
    [step] = await desk.claim()
    started = await begin(desk, answer.document_id, settings="other")
    assert started.started == (answer.document_id,)
    assert not await desk.flip(step)
    assert (await counters(desk), await counters(desk, "01START")) == ((0, 1, 1), (1, 0, 0))


async def test_i10_no_workflow_is_started_for_documents_of_others(desk: Desk) -> None:
    [answer] = await submit(desk, "/a")
    started = await begin(desk, answer.document_id, owner=BERT, settings="other")
    assert started == restarts.Started((), 0, 0)


async def test_a_batch_is_the_last_that_named_its_documents(desk: Desk) -> None:
    await submit(desk, "/a", "/b", batch="one")
    await submit(desk, "/b", "/c", batch="two", group="01TWO")
    found = await desk.ledger.read(lambda c: batches.batches(ANNA, c))
    assert {batch.name: sum(batch.documents.values()) for batch in found} == {"one": 1, "two": 2}
