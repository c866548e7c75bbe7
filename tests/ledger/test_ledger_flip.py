"""flip, cancel, retry, delete, purge: what search sees changes in one instant or not at all."""

import pytest
from tests.kit.ledger import ANNA, BERT, EXPIRED_S, KEY, Desk

from penstock.ledger.engine import documents, generations, locks
from penstock.model.nouns import GenerationId, Step
from penstock.model.states import DocumentStatus


async def test_i5_a_flip_makes_the_generation_active_and_ends_the_run(desk: Desk) -> None:
    step = await desk.indexing()
    assert await desk.flip(step)
    assert await desk.one("SELECT state, pages, chunks FROM generations") == ("ACTIVE", 2, 3)
    assert await desk.status(step.document_id) == "COMPLETED"
    assert await desk.one("SELECT status FROM runs") == "COMPLETED"
    assert await desk.step(step, "status, lease_token") == ("COMPLETED", None)
    assert await desk.rows("SELECT * FROM purges") == []


async def test_i5_a_flip_replaces_the_old_generation_and_leaves_a_purge_row(desk: Desk) -> None:
    old = await desk.flipped(content="v1")
    new = await desk.flipped(content="v2")
    assert await desk.rows("SELECT id, state FROM generations ORDER BY id") == [
        (old.generation_id, "SUPERSEDED"),
        (new.generation_id, "ACTIVE"),
    ]
    assert await desk.one("SELECT generation_id, owner, collection FROM purges") == (
        old.generation_id, "anna", "default",
    )  # fmt: skip
    assert await desk.ledger.read(generations.due_purges, 10) == [], "readers have a grace"
    due = await desk.ledger.read(generations.due_purges, 10, 61.0)
    assert [purge.generation for purge in due] == [old.generation_id]


async def _lose_lease(desk: Desk, step: Step) -> None:
    await desk.rows(f"UPDATE steps SET lease_token = 'another' WHERE id = {step.lease.step_id}")


async def _lose_lock(desk: Desk, step: Step) -> None:
    await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))


async def _let_lock_expire(desk: Desk, step: Step) -> None:
    await desk.rows("UPDATE locks SET lease_until = 1")


async def _cancel_run(desk: Desk, step: Step) -> None:
    await desk.rows("UPDATE runs SET status = 'CANCELLED'")


async def _delete_document(desk: Desk, step: Step) -> None:
    await desk.rows("UPDATE documents SET deleted_at = 1")


async def _retire_generation(desk: Desk, step: Step) -> None:
    await desk.rows("UPDATE generations SET state = 'SUPERSEDED'")


async def _activate_newer(desk: Desk, step: Step) -> None:
    columns = "document_id, owner, collection, index_version, raw_key, size, sha256, created_at"
    await desk.rows(f"INSERT INTO generations (state, {columns}) SELECT 'ACTIVE', {columns} FROM generations")


@pytest.mark.parametrize(
    "spoil",
    [
        _lose_lease, _lose_lock, _let_lock_expire, _cancel_run, _delete_document, _retire_generation, _activate_newer,
    ],
)  # fmt: skip
async def test_i5_a_flip_without_one_of_its_conditions_changes_nothing(desk: Desk, spoil: object) -> None:
    step = await desk.indexing()
    await spoil(desk, step)  # type: ignore[operator]
    before = await desk.everything()
    assert not await desk.flip(step)
    assert await desk.everything() == before


async def test_a_flip_without_a_resource_key_needs_no_lock(desk: Desk) -> None:
    step = await desk.started()
    assert await desk.flip(step)


async def test_not_indexable_flips_to_an_empty_generation(desk: Desk) -> None:
    old = await desk.flipped()
    step = await desk.started(content="blank")
    assert await desk.flip(step, DocumentStatus.NOT_INDEXABLE)
    assert await desk.status(step.document_id) == "NOT_INDEXABLE"
    assert await desk.one("SELECT id FROM generations WHERE state = 'ACTIVE'") == step.generation_id
    assert await desk.one("SELECT generation_id FROM purges") == old.generation_id


async def test_i5_hidden_generations_are_those_with_rows_that_are_not_active(desk: Desk) -> None:
    step = await desk.indexing()
    assert await _hidden(desk) == []
    writing = generations.Writing(step.lease.step_id, step.lease.token, step.generation_id)
    assert await desk.ledger.write(generations.WRITE, writing) is False, "no rows were there before"
    assert await desk.ledger.write(generations.WRITE, writing) is True, "now there may be some"
    assert await _hidden(desk) == [step.generation_id]
    assert await _visible(desk, step) == set()
    assert await desk.flip(step)
    assert await _hidden(desk) == []
    assert await _visible(desk, step) == {step.generation_id}
    assert await desk.delete(step.document_id)
    assert await _hidden(desk) == [step.generation_id]
    assert await _visible(desk, step) == set()


async def _hidden(desk: Desk) -> list[GenerationId]:
    return await desk.ledger.read(lambda c: generations.hidden(ANNA, c, "default", 1))


async def _visible(desk: Desk, step: Step) -> set[GenerationId]:
    return set(await desk.ledger.read(lambda c: generations.visible(ANNA, c, 1, [step.generation_id])))


async def test_i5_a_snapshot_sees_one_moment(desk: Desk) -> None:
    old = await desk.flipped(content="v1")
    step = await desk.placed(content="v2")
    both = [old.generation_id, step.generation_id]
    async with desk.ledger.snapshot() as snapshot:
        assert set(await snapshot.read(lambda c: generations.visible(ANNA, c, 1, both))) == {old.generation_id}
        assert await desk.flip(step)
        assert set(await snapshot.read(lambda c: generations.visible(ANNA, c, 1, both))) == {old.generation_id}
    async with desk.ledger.snapshot() as snapshot:
        assert set(await snapshot.read(lambda c: generations.visible(ANNA, c, 1, both))) == {step.generation_id}


async def test_a_cancel_ends_the_run_and_takes_the_lease_away(desk: Desk) -> None:
    step = await desk.started()
    assert await desk.cancel(step.document_id) == {step.document_id}
    assert await desk.status(step.document_id) == "CANCELLED"
    assert await desk.one("SELECT status FROM runs") == "CANCELLED"
    assert await desk.step(step, "status, lease_token") == ("CANCELLED", None)
    assert await desk.cancel(step.document_id) == set()


async def test_a_cancel_of_a_new_version_leaves_the_old_one_searchable(desk: Desk) -> None:
    old = await desk.flipped(content="v1")
    new = await desk.submit("/a", content="v2")
    await desk.cancel(new.document_id)
    entry = await desk.ledger.read(lambda c: documents.get(ANNA, c, new.document_id))
    assert entry is not None
    assert (entry.document.status, entry.searchable, entry.stale) == ("CANCELLED", True, True)
    assert await _visible(desk, old) == {old.generation_id}


async def test_a_retry_goes_on_with_the_same_run_from_its_checkpoint(desk: Desk) -> None:
    step = await desk.started()
    made = (await desk.open(step)).artifact
    await desk.progress(step, made.id, 0)
    await desk.fail(step)
    assert await desk.retry(step.document_id) == {step.document_id}
    assert await desk.one("SELECT status, retry_count, error FROM documents") == ("PENDING", 1, None)
    assert await desk.one("SELECT status FROM runs") == "OPEN"
    assert await desk.one("SELECT state FROM dead_letters") == "REPLAYED"
    [again] = await desk.claim()
    assert (again.run_id, again.attempts, again.errors, again.crashes) == (step.run_id, 1, 0, 0)
    opened = await desk.open(again)
    assert (opened.mine, opened.artifact.cursor) == (True, {"page": 1})


async def test_a_retry_with_other_settings_starts_a_new_run(desk: Desk) -> None:
    step = await desk.started()
    await desk.fail(step)
    await desk.retry(step.document_id, settings="tomorrow")
    assert await desk.rows("SELECT status, settings FROM runs ORDER BY generation_id") == [
        ("FAILED", "today"),
        ("OPEN", "tomorrow"),
    ]
    raw = await desk.rows("SELECT raw_key FROM generations ORDER BY id")
    assert raw[0] == raw[1], "the bytes are the same"
    assert await desk.one("SELECT state FROM dead_letters") == "REPLAYED"


async def test_what_is_well_is_not_retried(desk: Desk) -> None:
    done, running = await desk.flipped("/a"), await desk.started("/b")
    before = await desk.everything()
    assert await desk.retry(done.document_id, running.document_id) == set()
    assert await desk.everything() == before


@pytest.mark.parametrize("at_work", [False, True])
async def test_i5_delete_is_cancel_tombstone_and_purge_in_one(desk: Desk, at_work: bool) -> None:
    step = await desk.indexing() if at_work else await desk.flipped()
    assert await desk.delete(step.document_id) == {step.document_id}
    assert await desk.one("SELECT count(*) FROM documents WHERE deleted_at IS NOT NULL") == 1
    assert await desk.one("SELECT status FROM documents") == ("CANCELLED" if at_work else "COMPLETED")
    assert await desk.one("SELECT state FROM generations") == "SUPERSEDED"
    assert await desk.one("SELECT generation_id FROM purges") == step.generation_id
    assert not await desk.flip(step)
    assert await desk.delete(step.document_id) == set()
    again = await desk.submit("/a")
    assert again.outcome == "submitted"
    assert again.document_id != step.document_id


async def test_i10_cancel_delete_and_retry_of_another_owner_s_document_do_nothing(desk: Desk) -> None:
    running, failed = await desk.started("/a"), await desk.started("/b")
    await desk.fail(failed)
    before = await desk.everything()
    both = (running.document_id, failed.document_id)
    assert await desk.cancel(*both, owner=BERT) == set()
    assert await desk.delete(*both, owner=BERT) == set()
    assert await desk.retry(*both, owner=BERT) == set()
    assert await desk.everything() == before


async def test_a_purge_ends_the_generation_and_frees_its_artifacts(desk: Desk) -> None:
    step = await desk.started()
    await desk.open(step)
    await desk.delete(step.document_id)
    await desk.ledger.write(generations.PURGED, generations.Removed(1, (step.generation_id,)))
    assert await desk.one("SELECT state, written FROM generations") == ("PURGED", 0)
    assert await desk.rows("SELECT * FROM purges") == []
    assert await desk.rows("SELECT * FROM artifact_refs") == []


async def test_a_delete_purges_no_generation_twice(desk: Desk) -> None:
    old = await desk.flipped(content="v1")
    new = await desk.flipped(content="v2")
    await desk.ledger.write(generations.PURGED, generations.Removed(1, (old.generation_id,)))
    await desk.delete(new.document_id)
    assert await desk.rows("SELECT id, state FROM generations ORDER BY id") == [
        (old.generation_id, "PURGED"),
        (new.generation_id, "SUPERSEDED"),
    ]
    assert await desk.rows("SELECT generation_id FROM purges") == [(new.generation_id,)]


async def test_i5_an_active_generation_is_never_purged(desk: Desk) -> None:
    """Whatever was removed from the index: it can be repaired."""
    step = await desk.flipped()
    await desk.ledger.write(generations.PURGED, generations.Removed(1, (step.generation_id,)))
    assert await desk.one("SELECT state, written FROM generations") == ("ACTIVE", 1)


async def test_a_purge_that_is_postponed_holds_up_no_other(desk: Desk) -> None:
    steps = [await desk.flipped(source) for source in ("/a", "/b")]
    await desk.delete(*(step.document_id for step in steps))
    await desk.rows("UPDATE purges SET not_before = 1")
    await desk.ledger.write(generations.POSTPONE, ((steps[0].generation_id,), 60.0))
    due = await desk.ledger.read(generations.due_purges, 10)
    assert [purge.generation for purge in due] == [steps[1].generation_id]


async def test_a_lapsed_step_lease_alone_does_not_lose_the_flip(desk: Desk) -> None:
    """Nobody has reaped it, and nobody else holds the lock: the work is good."""
    step = await desk.indexing()
    await desk.rows(f"UPDATE steps SET lease_until = lease_until + {EXPIRED_S} - 100")
    assert await desk.flip(step)
