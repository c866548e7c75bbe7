"""What goes with time, in the ledger: artifacts that were kept long enough, replaced runs, closed letters."""

import asyncio
from typing import Any

import pytest
from tests.kit.ledger import ANNA, BERT, EXPIRED_S, KEY, Desk, output
from tests.ledger.test_ledger_outbox import body, dispatch, submit, take, to

from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import dead_letters, generations, lifecycle, locks, outbox, restarts
from penstock.ledger.engine.groups import GroupStart
from penstock.ledger.engine.outbox import Undelivered
from penstock.ledger.upkeep import repairs, retention
from penstock.ledger.upkeep.retention import Cleared, Dropped, Expired
from penstock.model.nouns import DocumentId, GenerationId, Owner, RunId, Step, Token, WorkerId
from penstock.model.states import DocumentStatus

LONG_AGO = "1.0"


async def searchable(desk: Desk, source: str, fingerprint: str = "fp", content: str = "v1") -> Step:
    """A document with one artifact of two segments."""
    first = await desk.started(source, content=content)
    opened = await desk.open(first, fingerprint)
    if opened.mine:
        await desk.progress(first, opened.artifact.id, 0)
        assert (await desk.complete(first, "index", key=KEY, output=output(opened.artifact.id, 2))).took
    else:
        assert (await desk.complete(first, "index", key=KEY)).took
    [step] = await desk.claim_keyed()
    assert await desk.flip(step)
    assert await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    return step


async def drop(desk: Desk, *steps: Step) -> Dropped:
    return await desk.ledger.write(retention.DROP_ARTIFACTS, tuple(step.generation_id for step in steps))


async def due(desk: Desk, kept_s: float = 0.0, collection: str = "default") -> list[GenerationId]:
    page = await desk.ledger.read(retention.droppable, collection, kept_s, (-1.0, 0), 100)
    return [generation for _, generation in page]


async def remake(desk: Desk, *documents: DocumentId, owner: Owner = ANNA) -> set[DocumentId]:
    named = tuple((document, RunId(desk.runtime.ulid())) for document in documents)
    return await desk.ledger.write(restarts.REMAKE, restarts.Remake(owner, named))


async def expire(desk: Desk, older_s: float = 3600.0, after: int = 0, count: int = 100) -> Expired:
    return await desk.ledger.write(retention.EXPIRE, retention.Expire(after, older_s, count))


async def clear(desk: Desk, table: str, older_s: float = 3600.0) -> Cleared:
    return await desk.ledger.write(retention.CLEAR, retention.Clear(table, 0, older_s, 100))


async def purge(desk: Desk) -> None:
    page = await desk.ledger.read(generations.due_purges, 100, 1e6)
    await desk.ledger.write(generations.PURGED, generations.Removed(1, tuple(row.generation for row in page)))


async def age(desk: Desk, *tables: str) -> None:
    """As if all this had happened long ago."""
    columns = {"runs": "finished_at", "generations": "created_at", "documents": "deleted_at"}
    for table in tables:
        column = columns[table]
        await desk.rows(f"UPDATE {table} SET {column} = {LONG_AGO} WHERE {column} IS NOT NULL RETURNING 1")


async def counts(desk: Desk, *tables: str) -> list[int]:
    return [await desk.one(f"SELECT count(*) FROM {table}") for table in tables]


# Artifacts


async def test_a_generation_lets_go_of_its_artifacts_and_says_when(desk: Desk) -> None:
    step = await searchable(desk, "/a")
    assert await due(desk) == [step.generation_id]
    dropped = await drop(desk, step)
    assert (dropped.generations, dropped.artifacts, sum(size for _, size in dropped.blobs)) == (1, 1, 20)
    assert len({key for key, _ in dropped.blobs}) == 2
    assert await counts(desk, "artifacts", "segments", "artifact_refs") == [0, 0, 0]
    assert await desk.one("SELECT artifacts_dropped_at IS NOT NULL AND state = 'ACTIVE' FROM generations") in (1, True)
    assert await due(desk) == []


async def test_i6_dropping_twice_is_dropping_once(desk: Desk) -> None:
    step = await searchable(desk, "/a")
    await drop(desk, step)
    before = await desk.everything()
    assert await drop(desk, step) == Dropped(0, 0, ())
    assert await desk.everything() == before


async def test_what_another_document_needs_stays(desk: Desk) -> None:
    one, two = await searchable(desk, "/a"), await searchable(desk, "/b")
    assert await drop(desk, one) == Dropped(1, 0, ())
    assert await counts(desk, "segments", "artifact_refs") == [2, 1]
    last = await drop(desk, two)
    assert (last.artifacts, len(last.blobs)) == (1, 2)


async def test_those_that_share_and_go_together_take_it_along(desk: Desk) -> None:
    one, two = await searchable(desk, "/a"), await searchable(desk, "/b")
    assert (await drop(desk, one, two)).artifacts == 1


async def test_days_count_from_the_flip(desk: Desk) -> None:
    step = await searchable(desk, "/a")
    assert await due(desk, 3600.0) == []
    await desk.rows("UPDATE generations SET flipped_at = flipped_at - 3601 RETURNING 1")
    assert await due(desk, 3600.0) == [step.generation_id]
    assert await due(desk, 3600.0, "other") == []


async def test_pages_of_due_generations_follow_each_other(desk: Desk) -> None:
    steps = [await searchable(desk, f"/{i}", f"fp{i}") for i in range(3)]
    await desk.rows("UPDATE generations SET flipped_at = 5.0 RETURNING 1")
    found, after = [], (-1.0, 0)
    while page := await desk.ledger.read(retention.droppable, "default", 0.0, after, 2):
        found += [generation for _, generation in page]
        after = page[-1]
    assert found == [step.generation_id for step in steps]


async def test_only_what_is_searchable_and_at_its_end_lets_go(desk: Desk) -> None:
    building = await desk.started("/building")
    await desk.open(building)
    deleted = await searchable(desk, "/deleted", "gone")
    await desk.delete(deleted.document_id)
    replaced = await searchable(desk, "/replaced", "old")
    await desk.submit("/replaced", content="v2")
    assert await due(desk) == []
    assert await drop(desk, building, replaced, deleted) == Dropped(0, 0, ())


async def test_i3_a_step_that_wants_it_at_that_moment_makes_its_own_or_keeps_it(desk: Desk) -> None:
    """Whoever is first: the artifact is there with its segments, or it is the step's to make."""
    for i in range(10):
        fingerprint = f"fp{i}"
        step = await searchable(desk, f"/{i}", fingerprint)
        reader = await desk.started(f"/reader{i}")
        opened, dropped = await asyncio.gather(desk.open(reader, fingerprint), drop(desk, step))
        assert dropped.generations == 1
        segments = await desk.one(f"SELECT count(*) FROM segments WHERE artifact_id = {opened.artifact.id}")
        assert (opened.artifact.complete, segments) == ((True, 2) if dropped.artifacts == 0 else (False, 0))
        assert opened.mine is not opened.artifact.complete
        assert await desk.one(f"SELECT count(*) FROM artifacts WHERE id = {opened.artifact.id}") == 1


async def test_i3_a_step_that_outlived_its_generation_keeps_no_artifact(desk: Desk) -> None:
    zombie = await desk.started("/a", lease_s=EXPIRED_S)
    await desk.open(zombie)
    await desk.reap()
    [step] = await desk.claim()
    opened = await desk.open(step)
    assert (await desk.complete(step, "index", key=KEY, output=output(opened.artifact.id, 1))).took
    [last] = await desk.claim_keyed()
    assert await desk.flip(last)
    assert (await drop(desk, last)).artifacts == 1
    late = await desk.open(zombie)
    assert await counts(desk, "artifact_refs") == [0]
    [found] = await desk.ledger.read(repairs.forgettable, 0, 1000, -1.0)
    forgotten = await desk.ledger.write(repairs.FORGET, repairs.Forget((found,), -1.0))
    assert forgotten.artifacts == 1
    assert await desk.one(f"SELECT count(*) FROM artifacts WHERE id = {late.artifact.id}") == 0


async def test_an_artifact_that_somebody_builds_stays_when_its_last_reader_lets_go(desk: Desk) -> None:
    step = await searchable(desk, "/a")
    builder = await desk.started("/b")
    await desk.rows(
        f"UPDATE artifacts SET state = 'BUILDING', builder = {builder.lease.step_id}, token = '{builder.lease.token}' "
        "RETURNING 1"
    )
    assert await drop(desk, step) == Dropped(1, 0, ())


# Made again


async def test_i9_what_was_dropped_is_made_again_from_the_same_bytes(desk: Desk) -> None:
    step = await searchable(desk, "/a")
    await drop(desk, step)
    assert await remake(desk, step.document_id) == {step.document_id}
    assert await desk.status(step.document_id) == "PENDING"
    states = await desk.rows("SELECT state, raw_key, sha256, size FROM generations ORDER BY id")
    assert [row[0] for row in states] == ["ACTIVE", "BUILDING"]
    assert states[0][1:] == states[1][1:]
    [first] = await desk.claim()
    assert (first.name, first.position, first.snapshot) == ("one", 0, "snapshot")
    assert await desk.rows("SELECT DISTINCT snapshot, settings, priority FROM runs") == [("snapshot", "today", 0)]
    opened = await desk.open(first)
    assert opened.mine
    assert (await desk.complete(first, "index", key=KEY, output=output(opened.artifact.id, 1))).took
    [last] = await desk.claim_keyed()
    assert await desk.flip(last)
    assert await desk.rows("SELECT state, artifacts_dropped_at IS NULL FROM generations WHERE state = 'ACTIVE'") in (
        [("ACTIVE", 1)],
        [("ACTIVE", True)],
    )


async def test_i6_asked_twice_it_starts_once(desk: Desk) -> None:
    step = await searchable(desk, "/a")
    await drop(desk, step)
    answers = await asyncio.gather(*(remake(desk, step.document_id) for _ in range(3)))
    assert sorted(map(len, answers)) == [0, 0, 1]
    assert await counts(desk, "runs", "generations") == [2, 2]


async def test_only_completed_documents_without_their_artifacts_are_made_again(desk: Desk) -> None:
    whole = await searchable(desk, "/whole")
    await desk.rows("UPDATE artifacts SET kind = 'chunk' RETURNING 1")
    failed = await desk.started("/failed")
    await desk.fail(failed)
    gone = await searchable(desk, "/gone", "gone")
    await drop(desk, gone)
    await desk.delete(gone.document_id)
    assert await remake(desk, whole.document_id, failed.document_id, gone.document_id) == set()


async def test_a_document_without_text_is_made_again_too(desk: Desk) -> None:
    step = await desk.started("/a")
    await desk.open(step)
    assert await desk.flip(step, DocumentStatus.NOT_INDEXABLE)
    assert (await drop(desk, step)).generations == 1
    assert await remake(desk, step.document_id) == {step.document_id}


async def test_artifacts_that_vanished_are_made_again_too(desk: Desk) -> None:
    step = await searchable(desk, "/a")
    await desk.rows("DELETE FROM artifact_refs RETURNING 1")
    assert await remake(desk, step.document_id) == {step.document_id}


async def test_i10_another_owner_makes_nothing_again(desk: Desk) -> None:
    step = await searchable(desk, "/a")
    await drop(desk, step)
    assert await remake(desk, step.document_id, owner=BERT) == set()


# History


async def replaced(desk: Desk, source: str = "/a") -> list[Step]:
    """Two versions, the first of them purged."""
    steps = [await searchable(desk, source, content, content) for content in ("v1", "v2")]
    await purge(desk)
    return steps


async def test_a_replaced_run_goes_with_its_steps_and_the_newest_stays(desk: Desk) -> None:
    _, newest = await replaced(desk)
    await age(desk, "runs", "generations")
    expired = await expire(desk)
    assert (expired.runs, expired.documents) == (1, 0)
    assert await desk.rows("SELECT id FROM runs") == [(newest.run_id,)]
    assert await desk.rows("SELECT DISTINCT run_id FROM steps") == [(newest.run_id,)]
    assert await desk.rows("SELECT id FROM generations") == [(newest.generation_id,)]
    assert (await desk.submit("/a", content="v2")).outcome == "skipped"
    assert await expire(desk) == Expired(0, 0, 0)


async def test_a_young_run_stays(desk: Desk) -> None:
    await replaced(desk)
    assert await expire(desk) == Expired(0, 0, 0)
    await age(desk, "generations")
    assert (await expire(desk)).runs == 0
    assert await counts(desk, "runs") == [2]


async def test_a_replaced_run_waits_for_its_purge(desk: Desk) -> None:
    for content in ("v1", "v2"):
        await searchable(desk, "/a", content, content)
    await age(desk, "runs", "generations")
    assert (await expire(desk)).runs == 0


async def test_the_only_run_of_a_document_stays_whatever_its_state(desk: Desk) -> None:
    step = await searchable(desk, "/a")
    await desk.rows(f"UPDATE generations SET state = 'PURGED' WHERE id = {step.generation_id} RETURNING 1")
    await age(desk, "runs", "generations")
    assert (await expire(desk)).runs == 0


async def test_of_a_deleted_document_nothing_is_left(desk: Desk) -> None:
    step = await desk.started("/a")
    await desk.fail(step)
    await desk.delete(step.document_id)
    await purge(desk)
    await age(desk, "runs", "generations")
    assert (await expire(desk)).runs == 0
    await age(desk, "documents")
    expired = await expire(desk)
    assert (expired.runs, expired.documents) == (1, 1)
    tables = ("documents", "generations", "runs", "steps", "dead_letters")
    assert await counts(desk, *tables) == [0, 0, 0, 0, 0]


async def test_all_runs_of_a_deleted_document_go_by_the_time_of_its_deletion(desk: Desk) -> None:
    _, newest = await replaced(desk)
    await desk.delete(newest.document_id)
    await purge(desk)
    await age(desk, "runs", "generations")
    assert (await expire(desk)).runs == 0
    await age(desk, "documents")
    expired = await expire(desk)
    assert (expired.runs, expired.documents) == (2, 1)


async def test_batches_follow_each_other(desk: Desk) -> None:
    for i in range(3):
        await replaced(desk, f"/{i}")
    await age(desk, "runs", "generations")
    last, went = 0, []
    while (expired := await expire(desk, after=last, count=2)).last:
        went.append(expired.runs)
        last = expired.last
    assert went == [2, 1]


async def test_closed_letters_go_and_the_one_that_says_why_a_document_failed_stays(desk: Desk) -> None:
    for source in ("/replayed", "/discarded", "/open"):
        await desk.fail(await desk.started(source))
    ids: dict[str, Any] = dict(await desk.rows("SELECT source, id FROM documents"))
    await desk.retry(ids["/replayed"])
    await desk.rows(
        f"UPDATE dead_letters SET state = 'DISCARDED', closed_at = 2.0 WHERE document_id = '{ids['/discarded']}' "
        "RETURNING 1"
    )
    assert (await clear(desk, "dead_letters")).rows == 0
    await desk.rows(f"UPDATE dead_letters SET closed_at = {LONG_AGO} WHERE closed_at IS NOT NULL RETURNING 1")
    assert (await clear(desk, "dead_letters")).rows == 1
    left: dict[str, str] = dict(await desk.rows("SELECT document_id, state FROM dead_letters"))
    assert left == {ids["/discarded"]: "DISCARDED", ids["/open"]: "OPEN"}


async def told_in_vain(desk: Desk, **handlers: Any) -> Step:
    """A document of which a handler could not be told, with its letter."""
    await submit(desk, "/a", **body(**handlers))
    [step] = await desk.claim()
    await dispatch(desk)
    for delivery in await take(desk):
        assert await desk.ledger.write(outbox.UNDELIVERED, Undelivered(delivery, "handler_error", "no"))
    return step


async def test_the_letter_of_an_event_outlives_its_document(desk: Desk) -> None:
    step = await told_in_vain(desk, item_start=[to("one")])
    await desk.delete(step.document_id)
    await purge(desk)
    await age(desk, "runs", "generations", "documents")
    assert (await expire(desk)).documents == 1
    assert await desk.rows("SELECT document_id, state FROM dead_letters") == [(None, "OPEN")]
    assert await counts(desk, "documents", "events") == [0, 1]
    [letter] = await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10))
    assert await desk.ledger.write(dead_letters.REPLAY_EVENTS, dead_letters.EventReplay(ANNA, (letter.id,)))
    [delivery] = await take(desk)
    [event] = await desk.ledger.read(lifecycle.describe, [delivery], ["w"])
    assert (event.document_id, event.name) == (step.document_id, None)


async def test_told_events_go_by_age_with_their_closed_letters(desk: Desk) -> None:
    await told_in_vain(desk, item_start=[to("one")])
    await desk.rows(f"UPDATE events SET at = {LONG_AGO} RETURNING 1")
    assert (await clear(desk, "events")).rows == 0, "its letter is open"
    [letter] = await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10))
    await desk.ledger.write(dead_letters.DISCARD, (ANNA, (letter.id,)))
    assert (await clear(desk, "events")).rows == 0, "its letter is young"
    await desk.rows(f"UPDATE dead_letters SET closed_at = {LONG_AGO} RETURNING 1")
    assert (await clear(desk, "events")).rows == 1
    assert await counts(desk, "events", "deliveries", "dead_letters") == [0, 0, 0]


async def test_a_group_goes_when_none_of_its_runs_is_left(desk: Desk) -> None:
    group = GroupStart("01GROUP", "w", seal=True)
    await submit(desk, "/a", **body(group_end=[to("one")]), group=group)
    [step] = await desk.claim()
    assert (await desk.complete(step, "index", key=KEY)).took
    [step] = await desk.claim_keyed()
    assert await desk.flip(step)

    async def cleared() -> Cleared:
        return await desk.ledger.write(retention.CLEAR, retention.Clear("groups", "", 3600.0, 100))

    assert await cleared() == Cleared("", 0)
    await desk.rows(f"UPDATE groups SET created_at = {LONG_AGO} RETURNING 1")
    assert await cleared() == Cleared("01GROUP", 0), "it ended just now"
    await desk.rows(f"UPDATE groups SET finished_at = {LONG_AGO} RETURNING 1")
    assert (await cleared()).rows == 0, "its run is there"
    await desk.delete(step.document_id)
    await purge(desk)
    await age(desk, "runs", "generations", "documents")
    assert (await expire(desk)).runs == 1
    assert (await cleared()).rows == 0, "its end was not told"
    await dispatch(desk)
    [delivery] = await take(desk)
    await desk.ledger.write(outbox.DELIVERED, delivery)
    await desk.rows(f"UPDATE events SET at = {LONG_AGO} RETURNING 1")
    assert (await clear(desk, "events")).rows == 1
    assert await cleared() == Cleared("01GROUP", 1)
    assert await counts(desk, "groups") == [0]


async def test_forced_releases_go_by_age(desk: Desk) -> None:
    await desk.indexing()
    await desk.ledger.write(locks.FORCE, locks.Force(ANNA, KEY, "carl"))
    assert (await clear(desk, "lock_releases")).rows == 0
    await desk.rows(f"UPDATE lock_releases SET released_at = {LONG_AGO} RETURNING 1")
    cleared = await clear(desk, "lock_releases")
    assert cleared.rows == 1
    assert cleared.last
    assert (await clear(desk, "lock_releases")).last == 0


@pytest.mark.parametrize("verb", ["drop", "expire"])
async def test_a_rehearsal_answers_the_same_and_changes_nothing(desk: Desk, verb: str) -> None:
    first, second = await replaced(desk)
    await age(desk, "runs", "generations")
    before = await desk.everything()
    calls: dict[str, tuple[Verb[Any, Any], Any]] = {
        "drop": (retention.DROP_ARTIFACTS, (second.generation_id,)),
        "expire": (retention.EXPIRE, retention.Expire(0, 3600.0, 10)),
    }
    rehearsed = await desk.ledger.rehearse(*calls[verb])
    assert await desk.everything() == before
    assert await desk.ledger.write(*calls[verb]) == rehearsed
    assert await desk.everything() != before
    del first


async def test_a_chore_is_due_when_nobody_does_it_and_nobody_did_it_lately(desk: Desk) -> None:
    async def is_due() -> bool:
        return await desk.ledger.read(retention.is_due, "prune:rows", 3600.0)

    assert await is_due()
    token = Token("t")
    assert await desk.ledger.write(locks.ACQUIRE, locks.Acquire("prune:rows", token, WorkerId("w1"), "prune", 60.0))
    assert not await is_due()
    await desk.ledger.write(locks.RELEASE, ("prune:rows", token))
    assert not await is_due()
    await desk.rows("UPDATE locks SET released_at = released_at - 3601 RETURNING 1")
    assert await is_due()


async def test_snapshots_that_nothing_names_any_more_go(desk: Desk) -> None:
    await desk.submit("/a")
    for name, added_at in (("old", "1"), ("of an event", "1"), ("of a group", "1"), ("young", "9e12")):
        await desk.rows(f"INSERT INTO snapshots (hash, body, added_at) VALUES ('{name}', 'x', {added_at})")
    await desk.rows("UPDATE snapshots SET added_at = 1 WHERE hash = 'snapshot'")
    await desk.rows("INSERT INTO events (kind, owner, snapshot, at) VALUES ('ITEM_END', 'anna', 'of an event', 1)")
    await desk.submit("/b", group=GroupStart("01GROUP", "flow"))
    await desk.rows("UPDATE groups SET snapshot = 'of a group'")
    unused = retention.Unused(60.0, 10)
    assert await desk.ledger.rehearse(retention.FORGET_SNAPSHOTS, unused) == 1
    assert await desk.ledger.write(retention.FORGET_SNAPSHOTS, unused) == 1
    assert await desk.ledger.write(retention.FORGET_SNAPSHOTS, unused) == 0
    left = await desk.rows("SELECT hash FROM snapshots ORDER BY hash")
    assert sorted(row[0] for row in left) == ["of a group", "of an event", "snapshot", "young"]


async def test_i1_a_snapshot_that_goes_while_it_is_named_is_there_afterwards(desk: Desk, second: Desk) -> None:
    """Submits and prunes at the same time, of one snapshot that nobody else names."""
    for i in range(20):
        await desk.rows("UPDATE documents SET deleted_at = 1")
        for table in ("steps", "runs"):
            await desk.rows(f"DELETE FROM {table}")
        await desk.rows("UPDATE snapshots SET added_at = 1")
        pruned = second.ledger.write(retention.FORGET_SNAPSHOTS, retention.Unused(60.0, 10))
        answer, _ = await asyncio.gather(desk.submit(f"/{i}"), pruned)
        assert answer.outcome == "submitted"
        assert await desk.rows("SELECT hash FROM snapshots") == [("snapshot",)]
