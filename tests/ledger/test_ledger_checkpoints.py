"""open, checkpoint, rewind: an artifact has one builder, and a cursor that outlives it."""

import asyncio

import msgspec
from tests.kit.ledger import BERT, Desk, output, segment

from penstock.ledger.engine import checkpoints, leasing
from penstock.model.nouns import ArtifactId, Step
from penstock.model.states import DocumentStatus


async def test_a_new_artifact_is_its_opener_s_to_make(desk: Desk) -> None:
    step = await desk.started()
    opened = await desk.open(step)
    assert opened.mine
    assert (opened.artifact.complete, opened.artifact.items, opened.artifact.cursor) == (False, 0, {})
    assert await desk.one("SELECT artifact_id, generation_id, step FROM artifact_refs") == (
        opened.artifact.id,
        step.generation_id,
        "one",
    )


async def test_opening_twice_is_opening_once(desk: Desk) -> None:
    step = await desk.started()
    first = await desk.open(step)
    assert await desk.open(step) == first
    assert await desk.one("SELECT count(*) FROM artifacts") == 1


async def test_an_artifact_that_another_makes_is_not_ours(desk: Desk) -> None:
    builder, other = await desk.started("/a"), await desk.started("/b")
    made = await desk.open(builder)
    await desk.progress(builder, made.artifact.id, 0)
    waiting = await desk.open(other)
    assert not waiting.mine
    assert waiting.artifact.id == made.artifact.id
    assert await desk.ledger.read(checkpoints.being_built, made.artifact.id)
    assert await desk.progress(builder, made.artifact.id, 1)


async def test_a_complete_artifact_is_found_by_its_fingerprint(desk: Desk) -> None:
    builder, other = await desk.started("/a"), await desk.started("/b")
    made = (await desk.open(builder)).artifact
    await desk.complete(builder, output=output(made.id, 1))
    found = await desk.open(other)
    assert not found.mine
    assert (found.artifact.id, found.artifact.complete, found.artifact.segments) == (made.id, True, 1)
    assert found.artifact.meta == {"pages": 9}
    assert await desk.one("SELECT count(*) FROM artifact_refs") == 2


async def test_done_is_kept_a_dead_builder_s_artifact_is_taken_over_with_its_cursor(desk: Desk) -> None:
    builder, other = await desk.started("/a", worker="dead"), await desk.started("/b")
    made = (await desk.open(builder)).artifact
    await desk.progress(builder, made.id, 0)
    await desk.reap("dead")
    taken = await desk.open(other)
    assert taken.mine
    assert (taken.artifact.id, taken.artifact.cursor, taken.artifact.items, taken.artifact.segments) == (
        made.id, {"page": 1}, 2, 1,
    )  # fmt: skip
    assert await desk.progress(other, made.id, 1)


async def test_the_same_step_goes_on_from_its_own_cursor_after_a_reap(desk: Desk) -> None:
    step = await desk.started(worker="dead")
    made = (await desk.open(step)).artifact
    await desk.progress(step, made.id, 0)
    await desk.reap("dead")
    [again] = await desk.claim()
    opened = await desk.open(again)
    assert opened.mine
    assert opened.artifact.cursor == {"page": 1}


async def test_i10_artifacts_are_not_shared_across_owners(desk: Desk) -> None:
    mine, theirs = await desk.started("/a"), await desk.started("/a", owner=BERT)
    one, two = await desk.open(mine), await desk.open(theirs)
    assert one.artifact.id != two.artifact.id
    assert one.mine
    assert two.mine


async def test_one_of_many_openers_at_once_makes_the_artifact(desk: Desk, second: Desk) -> None:
    await desk.submit(*(f"/{i}" for i in range(20)))
    steps = await desk.claim(20)
    opened = await asyncio.gather(*((desk, second)[i % 2].open(step) for i, step in enumerate(steps)))
    assert [x.mine for x in opened].count(True) == 1
    assert len({x.artifact.id for x in opened}) == 1


async def test_i7_a_checkpoint_forgives(desk: Desk) -> None:
    step = await desk.started(worker="dead")
    await desk.reap("dead")
    [step] = await desk.claim()
    await desk.fail(step, retry_in=-1.0)
    await desk.ledger.write(leasing.DUE, 100)
    [step] = await desk.claim()
    assert (step.attempts, step.crashes, step.errors) == (3, 1, 1)
    made = (await desk.open(step)).artifact
    assert await desk.progress(step, made.id, 0)
    assert await desk.step(step, "attempts, crashes, errors") == (0, 0, 0)


async def test_i7_a_checkpoint_at_an_old_cursor_forgives_nothing(desk: Desk) -> None:
    step = await desk.started(worker="dead")
    made = (await desk.open(step)).artifact
    await desk.reap("dead")
    [step] = await desk.claim()
    assert await desk.ledger.write(leasing.GO_ALONE, step.lease)
    await desk.open(step)
    flush = msgspec.structs.replace(desk.flush(step, made.id, 0), advances=False)
    assert await desk.ledger.write(checkpoints.CHECKPOINT, flush)
    assert await desk.step(step, "attempts, crashes, errors, alone, forgiven") == (2, 1, 0, 1, 0)
    assert await desk.one("SELECT segments FROM artifacts") == 1, "what it made is kept"


async def test_i7_a_step_that_dies_after_each_checkpoint_is_a_dead_letter_in_the_end(desk: Desk) -> None:
    """The cursor changes each time, as if it were progress."""
    step = await desk.started(worker="dead")
    made = (await desk.open(step)).artifact
    for ordinal in range(checkpoints.FORGIVEN + 10):
        if step.crashes >= leasing.SUSPECT:
            assert await desk.ledger.write(leasing.GO_ALONE, step.lease)
        assert await desk.progress(step, made.id, ordinal)
        assert await desk.reap("dead", crashes=5) == 1
        claimed = await desk.claim(worker="dead")
        if not claimed:
            break
        [step] = claimed
        await desk.open(step)
    assert await desk.step(step, "status, crashes, forgiven") == ("FAILED", 5, checkpoints.FORGIVEN)
    assert ordinal == checkpoints.FORGIVEN + 4


async def test_a_checkpoint_moves_the_cursor_and_names_its_segment(desk: Desk) -> None:
    step = await desk.started()
    made = (await desk.open(step)).artifact
    for ordinal in range(3):
        assert await desk.progress(step, made.id, ordinal)
    assert await desk.one("SELECT cursor, items, segments, state FROM artifacts") == ('{"page":3}', 6, 3, "BUILDING")
    listed = await desk.ledger.read(checkpoints.segments, made.id, 1, 10)
    assert listed == [segment(made.id, 1), segment(made.id, 2)]


async def test_a_checkpoint_extends_the_lease(desk: Desk) -> None:
    step = await desk.started(lease_s=-1.0)
    made = (await desk.open(step)).artifact
    assert await desk.progress(step, made.id, 0)
    assert await desk.reap() == 0


async def test_i3_a_checkpoint_of_a_lost_lease_names_nothing(desk: Desk) -> None:
    step = await desk.started(lease_s=-1.0)
    made = (await desk.open(step)).artifact
    await desk.reap()
    [again] = await desk.claim()
    await desk.open(again)
    before = await desk.everything()
    assert not await desk.progress(step, made.id, 0)
    assert await desk.everything() == before
    assert await desk.progress(again, made.id, 0)


async def _torn(desk: Desk, source: str = "/a") -> tuple[Step, ArtifactId, Step]:
    """A document whose second step reads an artifact of three segments."""
    step = await desk.started(source)
    made = (await desk.open(step)).artifact
    if not made.complete:
        await desk.progress(step, made.id, 0)
        await desk.progress(step, made.id, 1)
        done = await desk.complete(step, chain=True, output=output(made.id, 3))
    else:
        done = await desk.complete(step, chain=True)
    assert done.next is not None
    return step, made.id, done.next


async def test_a_rewind_goes_back_to_where_the_torn_segment_began(desk: Desk) -> None:
    producer, artifact, reader = await _torn(desk)
    assert await desk.ledger.write(checkpoints.REWIND, checkpoints.Rewind(reader, artifact, 1))
    assert await desk.one("SELECT state, cursor, items, segments, builder FROM artifacts") == (
        "BUILDING", '{"page": 1}', 2, 1, None,
    )  # fmt: skip
    assert await desk.rows("SELECT ordinal FROM segments") == [(0,)]
    assert await desk.rows("SELECT id, status FROM steps") == [(producer.lease.step_id, "PENDING")]
    [again] = await desk.claim()
    opened = await desk.open(again)
    assert opened.mine
    assert opened.artifact.cursor == {"page": 1}


async def test_i3_a_rewind_of_a_lost_lease_changes_nothing(desk: Desk) -> None:
    _, artifact, reader = await _torn(desk)
    await desk.cancel(reader.document_id)
    before = await desk.everything()
    assert not await desk.ledger.write(checkpoints.REWIND, checkpoints.Rewind(reader, artifact, 1))
    assert await desk.everything() == before


async def test_a_second_reader_s_rewind_leaves_the_builder_its_work(desk: Desk) -> None:
    _, artifact, first = await _torn(desk, "/a")
    _, shared, second = await _torn(desk, "/b")
    assert artifact == shared
    await desk.ledger.write(checkpoints.REWIND, checkpoints.Rewind(first, artifact, 1))
    [builder] = await desk.claim()
    assert (await desk.open(builder)).mine
    assert await desk.progress(builder, artifact, 1)
    # The other reader met the same torn segment, but tells only now, when it has been made again.
    assert await desk.ledger.write(checkpoints.REWIND, checkpoints.Rewind(second, artifact, 1))
    assert await desk.ledger.read(checkpoints.being_built, artifact)
    assert await desk.progress(builder, artifact, 2)
    assert await desk.one("SELECT segments, items FROM artifacts") == (3, 6)
    [waiting] = await desk.claim()
    assert not (await desk.open(waiting)).mine


async def test_a_segment_without_a_row_is_made_again(desk: Desk) -> None:
    _, artifact, reader = await _torn(desk)
    await desk.rows("DELETE FROM segments WHERE ordinal = 1")
    assert await desk.ledger.write(checkpoints.REWIND, checkpoints.Rewind(reader, artifact, 1))
    [again] = await desk.claim()
    opened = await desk.open(again)
    assert opened.mine, "complete as before: the reader would meet the same hole for ever"
    ordinals = await desk.rows("SELECT ordinal FROM segments ORDER BY ordinal")
    assert opened.artifact.segments == len(ordinals)


async def test_a_flip_completes_the_artifact_of_the_last_step(desk: Desk) -> None:
    step = await desk.started()
    made = (await desk.open(step)).artifact
    assert await desk.flip(step, DocumentStatus.NOT_INDEXABLE, output(made.id, 1))
    assert await desk.one("SELECT state, segments FROM artifacts") == ("COMPLETE", 1)
    assert await desk.one("SELECT count(*) FROM segments") == 1
