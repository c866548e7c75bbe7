"""One scenario for each verb of the ledger: what comes before it, and what is written."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace
from tests.kit.ledger import ANNA, EXPIRED_S, KEY, LEASE_S, Desk, output, sha
from tests.ledger.test_ledger_outbox import body, dispatch, submit, take, to
from tests.ledger.test_ledger_retention import age, purge, searchable

from penstock.ledger.database import histories, workers
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import (
    adoptions,
    answers,
    cancellations,
    checkpoints,
    claims,
    collections,
    completions,
    dead_letters,
    deletions,
    failures,
    flips,
    forgotten,
    generations,
    groups,
    index_versions,
    leasing,
    limits,
    locks,
    messages,
    metadata,
    outbox,
    refusals,
    reindexes,
    releases,
    restarts,
    revisions,
    runs,
    samples,
    small_blobs,
    submits,
    switches,
    targets,
    usage,
    work,
)
from penstock.ledger.engine.children import Parent
from penstock.ledger.engine.pacing import Known
from penstock.ledger.engine.submissions import FirstStep
from penstock.ledger.upkeep import checksums, evictions, repairs, retention, retired_versions
from penstock.ledger.upkeep.audit_index import TablePlace
from penstock.model.nouns import DocumentId, RunId, Step, WorkerId
from penstock.model.states import DocumentStatus
from penstock.model.usage import Amount, Booking

Prepare = Callable[[Desk], Awaitable[Any]]
"""Does what comes before, and tells the item."""
SCENARIOS: dict[str, tuple[Verb[Any, Any], Prepare]] = {}
W1 = WorkerId("w1")
PLACE = TablePlace(ANNA, "default", 1)


def scenario(verb: Verb[Any, Any]) -> Callable[[Prepare], Prepare]:
    def keep(prepare: Prepare) -> Prepare:
        SCENARIOS[prepare.__name__] = verb, prepare
        return prepare

    return keep


async def _artifact(desk: Desk) -> tuple[Step, Any]:
    step = await desk.started()
    return step, (await desk.open(step)).artifact.id


async def _failed(desk: Desk) -> Step:
    step = await desk.started()
    assert await desk.fail(step)
    return step


async def _hold(desk: Desk, key: str = KEY) -> locks.Acquire:
    request = locks.Acquire(key, desk.token(), W1, "test", LEASE_S)
    assert await desk.ledger.write(locks.ACQUIRE, request)
    return request


# submit and what changes runs


@scenario(submits.SUBMIT)
async def submit_one(desk: Desk) -> Any:
    return desk.submission(desk.document("/a"))


@scenario(submits.SUBMIT)
async def submit_with_key(desk: Desk) -> Any:
    return desk.submission(desk.document("/a", key="k"), desk.document("/b"))


@scenario(submits.SUBMIT)
async def submit_group(desk: Desk) -> Any:
    return desk.submission(desk.document("/a"), group=groups.GroupStart("g", "w", None, True))


@scenario(submits.SUBMIT)
async def submit_changed(desk: Desk) -> Any:
    await desk.flipped()
    return desk.submission(desk.document("/a", "v2"), desk.document("/b"))


@scenario(submits.SUBMIT)
async def submit_small(desk: Desk) -> Any:
    """The bytes come with the rows."""
    return desk.submission(replace(desk.document("/a"), data=b"small"))


@scenario(submits.SUBMIT)
async def submit_children(desk: Desk) -> Any:
    return await _children(desk, await desk.started("/a.zip"))


@scenario(deletions.SWEEP)
async def sweep(desk: Desk) -> Any:
    """The second version contains neither of the two."""
    first = await desk.started("/a.zip")
    await desk.ledger.write(submits.SUBMIT, await _children(desk, first))
    await desk.submit("/a.zip", content="v2")
    [again] = [step for step in await desk.claim(9) if step.document_id == first.document_id]
    return deletions.Sweep(ANNA, _parent(again), 1)


async def _children(desk: Desk, step: Step) -> Any:
    found = (desk.document("/a.zip#one", "one"), desk.document("/a.zip#two", "two"))
    return desk.submission(*found, parent=_parent(step))


def _parent(step: Step) -> Parent:
    return Parent(step.document_id, step.generation_id, step.lease, step.document_id, 0, None, 100, 1000)


@scenario(cancellations.CANCEL)
async def cancel(desk: Desk) -> Any:
    return runs.Selected(ANNA, ((await desk.started()).document_id,))


@scenario(metadata.CHANGE)
async def change_metadata(desk: Desk) -> Any:
    return metadata.MetadataChange(ANNA, (await desk.flipped()).document_id, {"year": 2024})


@scenario(adoptions.ADOPT)
async def adopt(desk: Desk) -> Any:
    artifacts = (("made elsewhere", "chunk", "{}", 1, 1, "{}"),)
    return adoptions.Adoption(ANNA, artifacts, (("made elsewhere", 0, "anna/key", "hash", 1, 1, 0, "{}"),))


@scenario(deletions.DELETE)
async def delete(desk: Desk) -> Any:
    return runs.Selected(ANNA, ((await desk.flipped()).document_id,))


@scenario(deletions.DELETE)
async def delete_and_forget(desk: Desk) -> Any:
    return runs.Selected(ANNA, ((await desk.flipped()).document_id,), forget=True)


@scenario(forgotten.REMEMBER)
async def remember(desk: Desk) -> Any:
    await desk.ledger.write(deletions.DELETE, await delete_and_forget(desk))
    assert await desk.one("SELECT source FROM forgotten") == "/a"
    return (ANNA, "default", "/a")


@scenario(messages.REFUSE_MESSAGE)
async def refuse_message(desk: Desk) -> Any:
    return messages.RefusedMessage(ANNA, "kafka://h/t", "kafka://h/t: t/0/1", "{}", "bad_event", "it is empty")


@scenario(messages.RETRIED_MESSAGE)
async def retried_message(desk: Desk) -> Any:
    await desk.ledger.write(messages.REFUSE_MESSAGE, await refuse_message(desk))
    [letter] = await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 1))
    return messages.RetriedMessage(ANNA, letter.id)


@scenario(revisions.REVISE)
async def revise(desk: Desk) -> Any:
    document = (await desk.flipped()).document_id
    return revisions.Revised(ANNA, (revisions.NewRevision(document, sha("v1"), "etag"),))


@scenario(collections.BEGIN_DROP)
async def begin_drop(desk: Desk) -> Any:
    await desk.submit("/a", "/b")
    return (ANNA, "default")


@scenario(collections.END_DROP)
async def end_drop(desk: Desk) -> Any:
    document = (await desk.flipped()).document_id
    dropped = await desk.ledger.write(collections.BEGIN_DROP, (ANNA, "default"))
    assert dropped.upto == document
    await desk.delete(document)
    return dropped


@scenario(retired_versions.FORGET_VERSION)
async def forget_version(desk: Desk) -> Any:
    document = (await desk.flipped()).document_id
    dropped = await desk.ledger.write(collections.BEGIN_DROP, (ANNA, "default"))
    await desk.delete(document)
    await desk.ledger.write(collections.END_DROP, dropped)
    return retired_versions.Retired(ANNA, "default", 1)


@scenario(small_blobs.DELETE)
async def delete_small_blobs(desk: Desk) -> Any:
    await desk.ledger.write(submits.SUBMIT, await submit_small(desk))
    return [await desk.one("SELECT key FROM small_blobs")]


@scenario(restarts.RETRY)
async def retry(desk: Desk) -> Any:
    news = replace(desk.document("/unused", stored=False), id=(await _failed(desk)).document_id)
    return restarts.Retry(desk.submission(news))


@scenario(restarts.START)
async def start(desk: Desk) -> Any:
    news = replace(desk.document("/unused", stored=False), id=(await desk.flipped()).document_id)
    group = groups.GroupStart("g", "w")
    return restarts.Start(desk.submission(news, settings="tomorrow", group=group))


@scenario(restarts.START)
async def start_held(desk: Desk) -> Any:
    news = replace(desk.document("/unused", stored=False), id=(await desk.submit("/a", held=True)).document_id)
    return restarts.Start(desk.submission(news, group=groups.GroupStart("g", "w")))


@scenario(submits.SUBMIT)
async def submit_held(desk: Desk) -> Any:
    await desk.flipped("/a")
    return desk.submission(desk.document("/a", "v2"), desk.document("/b"), held=True)


@scenario(cancellations.CANCEL_GROUP)
async def cancel_group(desk: Desk) -> Any:
    await desk.submit("/a", "/b", group=groups.GroupStart("g", "w", None, True))
    return cancellations.CancelGroup(ANNA, "g", 1)


@scenario(restarts.REMAKE)
async def remake(desk: Desk) -> Any:
    step = await searchable(desk, "/a")
    assert (await desk.ledger.write(retention.DROP_ARTIFACTS, (step.generation_id,))).generations == 1
    named = ((step.document_id, RunId(desk.runtime.ulid())),)
    return restarts.Remake(ANNA, named)


@scenario(groups.SEAL)
async def seal(desk: Desk) -> Any:
    await desk.submit("/a", group=groups.GroupStart("g", "w"))
    return "g"


@scenario(groups.RECOUNT)
async def recount(desk: Desk) -> Any:
    await desk.submit("/a", group=groups.GroupStart("g", "w", None, True))
    await desk.rows("UPDATE groups SET open_runs = 7 RETURNING 1")
    return "g"


@scenario(index_versions.BIND)
async def bind(desk: Desk) -> Any:
    await desk.submit("/a")
    return index_versions.Binding(ANNA, "default", 1, "fake", 8)


RECIPE = reindexes.Recipe("hash", "{}", "settings", FirstStep("extract", "extract"), {"chunk.size": 500})


async def reindexing(desk: Desk, source: str = "/a") -> Step:
    """A searchable document whose next version is being built."""
    step = await searchable(desk, source)
    await desk.ledger.write(index_versions.BIND, index_versions.Binding(ANNA, "default", 1, "fake", 8))
    await desk.ledger.write(reindexes.BEGIN_REINDEX, reindexes.Begin(ANNA, "default", RECIPE, "other", 16, "other"))
    return step


async def started(desk: Desk) -> Step:
    step = await reindexing(desk)
    assert await desk.ledger.write(reindexes.START_REINDEX, start_order(desk, step)) == 1
    return step


def start_order(desk: Desk, step: Step) -> reindexes.Start:
    return reindexes.Start(ANNA, "default", 2, ((step.document_id, RunId(desk.runtime.ulid())),))


async def staged(desk: Desk) -> None:
    await started(desk)
    [first] = await desk.claim()
    assert (await desk.complete(first, "index", key=f"{KEY}2")).took
    [step] = await desk.claim_keyed()
    assert await desk.ledger.write(flips.FLIP, flips.Flip(step, DocumentStatus.COMPLETED, 2, 3, "{}", staging=True))


@scenario(reindexes.BEGIN_REINDEX)
async def begin_reindex(desk: Desk) -> Any:
    await searchable(desk, "/a")
    await desk.ledger.write(index_versions.BIND, index_versions.Binding(ANNA, "default", 1, "fake", 8))
    return reindexes.Begin(ANNA, "default", RECIPE, "other", 16, "other")


@scenario(reindexes.CHANGE_REINDEX)
async def change_reindex(desk: Desk) -> Any:
    await reindexing(desk)
    return reindexes.Change(ANNA, "default", "PAUSED")


@scenario(reindexes.START_REINDEX)
async def start_reindex(desk: Desk) -> Any:
    return start_order(desk, await reindexing(desk))


@scenario(switches.SWITCH)
async def switch(desk: Desk) -> Any:
    await staged(desk)
    return switches.Switch(ANNA, "default", 2)


@scenario(switches.UNDO)
async def undo(desk: Desk) -> Any:
    assert await desk.ledger.write(switches.SWITCH, await switch(desk))
    return switches.Undo(ANNA, "default", RECIPE)


@scenario(switches.CLEAR_REINDEX)
async def clear_reindex(desk: Desk) -> Any:
    await started(desk)
    await desk.ledger.write(reindexes.CHANGE_REINDEX, reindexes.Change(ANNA, "default", "CANCELLING"))
    return switches.Clear(ANNA, "default", 2, 10)


# steps


@scenario(claims.CLAIM)
async def claim(desk: Desk) -> Any:
    await submit(desk, "/a", "/b", **body(step_start=[to("one")]))
    return claims.ClaimRequest(W1, ("extract",), 2, desk.token(), LEASE_S)


@scenario(claims.CLAIM_KEYED)
async def claim_keyed(desk: Desk) -> Any:
    await desk.to_index("/a", "/b")
    return claims.KeyedClaim(W1, "index", 64, desk.token(), LEASE_S)


@scenario(checkpoints.OPEN)
async def open_artifact(desk: Desk) -> Any:
    return checkpoints.Open(await desk.started(), "fp")


@scenario(checkpoints.CHECKPOINT)
async def checkpoint(desk: Desk) -> Any:
    step, made = await _artifact(desk)
    return desk.flush(step, made, 0)


@scenario(checkpoints.CHECKPOINT)
async def checkpoint_small(desk: Desk) -> Any:
    flush = await checkpoint(desk)
    return replace(flush, segments=tuple(replace(segment, data=b"small") for segment in flush.segments))


@scenario(checkpoints.REWIND)
async def rewind(desk: Desk) -> Any:
    step, made = await _artifact(desk)
    following = (await desk.complete(step, chain=True, output=output(made, 1))).next
    assert following is not None
    return checkpoints.Rewind(following, made, 0)


@scenario(completions.COMPLETE)
async def complete_chained(desk: Desk) -> Any:
    step, made = await _artifact(desk)
    return desk.completion(step, chain=True, output=output(made, 1))


@scenario(completions.COMPLETE)
async def complete_with_small_output(desk: Desk) -> Any:
    step, made = await _artifact(desk)
    return desk.completion(step, chain=True, output=_small(output(made, 1)))


def _small(made: checkpoints.Output) -> checkpoints.Output:
    """The segments bring their bytes."""
    return replace(made, segments=tuple(replace(segment, data=b"small") for segment in made.segments))


@scenario(completions.COMPLETE)
async def complete_and_open_next(desk: Desk) -> Any:
    return desk.completion(await desk.started(), chain=True, fingerprint="next")


@scenario(completions.COMPLETE)
async def complete_before_a_lock(desk: Desk) -> Any:
    return desk.completion(await desk.started(), "index", key=KEY)


@scenario(completions.COMPLETE)
async def complete_and_tell(desk: Desk) -> Any:
    await submit(desk, "/a", **body(step_end=[to("one")]))
    [step] = await desk.claim()
    return desk.completion(step, chain=True)


@scenario(completions.COMPLETE)
async def complete_of_a_lost_lease(desk: Desk) -> Any:
    step = await desk.started(lease_s=EXPIRED_S)
    assert await desk.reap() == 1
    return desk.completion(step, chain=True)


@scenario(flips.FLIP)
async def flip(desk: Desk) -> Any:
    return flips.Flip(await desk.indexing(), DocumentStatus.COMPLETED, 2, 3, "{}")


@scenario(flips.FLIP)
async def flip_with_small_output(desk: Desk) -> Any:
    step = await desk.indexing()
    made = (await desk.open(step)).artifact.id
    return flips.Flip(step, DocumentStatus.COMPLETED, 2, 3, "{}", _small(output(made, 1)))


@scenario(flips.FLIP)
async def flip_of_a_new_version(desk: Desk) -> Any:
    await desk.flipped()
    return flips.Flip(await desk.indexing(content="v2"), DocumentStatus.COMPLETED, 2, 3, "{}")


@scenario(flips.FLIP)
async def flip_of_a_cancelled_run(desk: Desk) -> Any:
    step = await desk.indexing()
    await desk.cancel(step.document_id)
    return flips.Flip(step, DocumentStatus.COMPLETED, 2, 3, "{}")


@scenario(failures.ERROR)
async def error(desk: Desk) -> Any:
    return failures.StepFailure(await desk.started(), "bad", "it broke", retry_in=60.0)


@scenario(failures.ERROR)
async def fail(desk: Desk) -> Any:
    await submit(desk, "/a", **body(item_failed=[to("one")]))
    [step] = await desk.claim()
    return failures.StepFailure(step, "bad", "it broke")


@scenario(releases.RELEASE)
async def release(desk: Desk) -> Any:
    return releases.Release(await desk.started(), give_back=True)


@scenario(generations.WRITE)
async def write(desk: Desk) -> Any:
    step = await desk.indexing()
    return generations.Writing(step.lease.step_id, step.lease.token, step.generation_id)


@scenario(generations.PURGED)
async def purged(desk: Desk) -> Any:
    await desk.delete((await desk.flipped()).document_id)
    page = await desk.ledger.read(generations.due_purges, 100, 1e6)
    return generations.Removed(1, tuple(row.generation for row in page))


# leases and workers


@scenario(workers.REGISTER)
async def register(desk: Desk) -> Any:
    return workers.Worker(W1, "here", 1)


@scenario(leasing.HEARTBEAT)
async def heartbeat(desk: Desk) -> Any:
    step = await desk.indexing()
    locked = ((KEY, step.lease.token),)
    signs = (leasing.StepSignal(step.lease.step_id, "lock", True, 9.0),)
    return leasing.Beat(W1, (step.lease,), locked, signs, LEASE_S)


@scenario(leasing.DROP)
async def drop(desk: Desk) -> Any:
    return (await desk.started()).lease


@scenario(leasing.LEAVE)
async def leave(desk: Desk) -> Any:
    await desk.ledger.write(workers.REGISTER, workers.Worker(W1, "here", 1))
    await desk.started()
    return W1


@scenario(leasing.GO_ALONE)
async def alone(desk: Desk) -> Any:
    return (await desk.started()).lease


@scenario(leasing.REAP)
async def reap(desk: Desk) -> Any:
    await desk.started(lease_s=EXPIRED_S)
    return leasing.Reap(frozenset(), (), 5)


@scenario(leasing.REAP)
async def reap_the_last_crash(desk: Desk) -> Any:
    await desk.started(lease_s=EXPIRED_S)
    return leasing.Reap(frozenset(), (), 1)


@scenario(leasing.DUE)
async def due(desk: Desk) -> Any:
    assert await desk.fail(await desk.started(), retry_in=-1.0)
    return 100


# locks


@scenario(locks.ACQUIRE)
async def acquire(desk: Desk) -> Any:
    return locks.Acquire(KEY, desk.token(), W1, "test", LEASE_S, wanted_s=1.0)


@scenario(locks.RELEASE)
async def release_lock(desk: Desk) -> Any:
    held = await _hold(desk)
    return (KEY, held.token)


# targets that do not work


@scenario(targets.PAUSE)
async def pause(desk: Desk) -> Any:
    return targets.Pause(KEY, (await _hold(desk)).token, "broken", 0.5)


@scenario(targets.HOLD)
async def hold(desk: Desk) -> Any:
    return targets.Wait(await desk.started(), "api", targets.Failure(targets.State.AWAY, "503", 0.5))


@scenario(targets.HOLD)
async def hold_again(desk: Desk) -> Any:
    assert (await desk.ledger.write(targets.HOLD, await hold(desk))).took
    return targets.Wait(await desk.started("/b"), "api")


@scenario(targets.TRY_ALL)
async def try_all(desk: Desk) -> Any:
    assert await desk.ledger.write(targets.PAUSE, await pause(desk)) is not None
    assert (await desk.ledger.write(targets.HOLD, await hold(desk))).took


@scenario(targets.PROBE)
async def probe(desk: Desk) -> Any:
    await try_all(desk)
    await desk.ledger.write(targets.TRY_ALL, None)
    return targets.Probe("api", W1, desk.token(), ("extract",), (), LEASE_S)


async def _probing(desk: Desk) -> Any:
    request = await probe(desk)
    assert (await desk.ledger.write(targets.PROBE, request)).claimed is not None
    return refusals.Answered("api", request.token)


@scenario(refusals.ANSWERED)
async def answered(desk: Desk) -> Any:
    return await _probing(desk)


@scenario(refusals.REFUSE)
async def refuse(desk: Desk) -> Any:
    request = await probe(desk)
    probed = await desk.ledger.write(targets.PROBE, request)
    assert probed.claimed is not None
    return refusals.Refusal(probed.claimed.step, "api", "answered 503")


@scenario(targets.END_PROBE)
async def end_probe(desk: Desk) -> Any:
    return await _probing(desk)


@scenario(locks.FORCE)
async def force(desk: Desk) -> Any:
    await desk.indexing()
    return locks.Force(ANNA, KEY, "somebody")


@scenario(checksums.STORE_CHECKSUM)
async def store_checksum(desk: Desk) -> Any:
    held = await _hold(desk)
    return checksums.NewChecksum(PLACE, held.token, 1, "hash")


@scenario(checksums.DROP_CHECKSUM)
async def drop_checksum(desk: Desk) -> Any:
    held = await _hold(desk)
    assert await desk.ledger.write(checksums.STORE_CHECKSUM, checksums.NewChecksum(PLACE, held.token, 1, "hash"))
    return PLACE


# limits of targets, and answers that were bought from them


@scenario(limits.LEASE)
async def lease_limit(desk: Desk) -> Any:
    """What was accepted is added, and permits move the time of the next request."""
    return limits.Request("api", W1, Known(3, 60.0, 1000.0), 1, 2, LEASE_S, accepted=2, permits=(10, 10))


@scenario(limits.LEASE)
async def lease_limit_beside_another(desk: Desk) -> Any:
    await desk.ledger.write(limits.LEASE, await lease_limit(desk))
    return limits.Request("api", WorkerId("w2"), Known(3), 0, 3, LEASE_S)


@scenario(limits.REFUSE)
async def refuse_limit(desk: Desk) -> Any:
    """A second refusal would double the wait: it counts them."""
    await desk.ledger.write(limits.LEASE, await lease_limit(desk))
    return limits.Refusal("api", Known(3, 60.0), 0.5, None, accepted=1)


@scenario(limits.STATE)
async def state_limit(desk: Desk) -> Any:
    return limits.Stated("api", 60.0, None)


SPENT = Booking(ANNA, "model", "bought", Amount(2, 40, 7, 140), RunId("run"))
SAVED = Booking(ANNA, "model", "cached", Amount(1, 20, 4, 80), RunId("run"))
BOUGHT = answers.Bought(
    ANNA, "anna/answers/one", "hash", 30, (answers.Answer("d1", 10, 3), answers.Answer("d2", 20, 4)), (SPENT,)
)


@scenario(usage.BOOK)
async def book(desk: Desk) -> Any:
    """The second query of the day adds to the first."""
    asked = Booking(ANNA, "model", "query", Amount(1, 4, 1, 0, 1))
    await desk.ledger.write(usage.BOOK, (asked,))
    return (asked, SPENT)


@scenario(checkpoints.CHECKPOINT)
async def checkpoint_with_savings(desk: Desk) -> Any:
    return replace(await checkpoint(desk), usage=(SAVED, SAVED))


@scenario(completions.COMPLETE)
async def complete_with_savings(desk: Desk) -> Any:
    return replace(await complete_chained(desk), usage=(SAVED,))


@scenario(flips.FLIP)
async def flip_with_savings(desk: Desk) -> Any:
    return replace(await flip(desk), usage=(SAVED,))


@scenario(answers.START)
async def start_operation(desk: Desk) -> Any:
    return answers.Started(ANNA, "d1", "operation")


@scenario(answers.KEEP)
async def keep_answers(desk: Desk) -> Any:
    """The operation has ended with it."""
    await desk.ledger.write(answers.START, await start_operation(desk))
    return BOUGHT


async def _bought(desk: Desk) -> int:
    await desk.ledger.write(answers.KEEP, await keep_answers(desk))
    await desk.rows("UPDATE answer_segments SET used_at = 1.0 RETURNING 1")
    return int(await desk.one("SELECT id FROM answer_segments"))


@scenario(answers.KEEP)
async def keep_answers_again(desk: Desk) -> Any:
    """A damaged segment is replaced; of the old one, an answer is left."""
    await _bought(desk)
    return answers.Bought(ANNA, "anna/answers/two", "hash", 20, (answers.Answer("d2", 20),))


@scenario(answers.TOUCH)
async def touch_answers(desk: Desk) -> Any:
    return (await _bought(desk),)


@scenario(answers.FORGET)
async def forget_answers(desk: Desk) -> Any:
    await _bought(desk)
    return answers.Forget(ANNA, ("d1", "d2"))


@scenario(evictions.EVICT)
async def evict_answers(desk: Desk) -> Any:
    await _bought(desk)
    await desk.ledger.write(answers.START, answers.Started(ANNA, "d3", "operation"))
    await desk.rows("UPDATE operations SET started_at = 1.0 RETURNING 1")
    return evictions.Evict(3600.0, 100)


# events


async def _event(desk: Desk, **more: Any) -> outbox.Delivery:
    await submit(desk, "/a", **body(step_start=[to("one", **more)]))
    await desk.claim()
    assert await dispatch(desk) == 1
    [delivery] = await take(desk)
    return delivery


@scenario(outbox.DISPATCH)
async def dispatch_events(desk: Desk) -> Any:
    await submit(desk, "/a", **body(step_start=[to("one"), to("two")]))
    await desk.claim()
    return outbox.FAN_OUT


@scenario(outbox.TAKE)
async def take_events(desk: Desk) -> Any:
    await submit(desk, "/a", **body(step_start=[to("one")]))
    await desk.claim()
    await dispatch(desk)
    return outbox.Take(W1, desk.token(), 10, 15.0)


@scenario(outbox.DELIVERED)
async def delivered(desk: Desk) -> Any:
    return await _event(desk)


@scenario(outbox.UNDELIVERED)
async def undelivered(desk: Desk) -> Any:
    return outbox.Undelivered(await _event(desk), "bad", "it broke", retry_in=60.0)


@scenario(outbox.UNDELIVERED)
async def undeliverable(desk: Desk) -> Any:
    return outbox.Undelivered(await _event(desk), "bad", "it broke")


@scenario(dead_letters.DISCARD)
async def discard(desk: Desk) -> Any:
    await _failed(desk)
    return (ANNA, tuple(row[0] for row in await desk.rows("SELECT id FROM dead_letters")))


@scenario(dead_letters.REPLAY_EVENTS)
async def replay_events(desk: Desk) -> Any:
    await desk.ledger.write(outbox.UNDELIVERED, outbox.Undelivered(await _event(desk), "bad", "it broke"))
    letters = tuple(row[0] for row in await desk.rows("SELECT id FROM dead_letters"))
    return dead_letters.EventReplay(ANNA, letters)


# upkeep


@scenario(work.KEEP_PACES)
async def keep_paces(desk: Desk) -> Any:
    return {"extract": 1.5}


@scenario(samples.KEEP_SAMPLES)
async def keep_samples(desk: Desk) -> Any:
    step = samples.StepSample(ANNA, "extract", 1, 0, 5, 2.0, 2.0)
    return samples.Sampled(1_800_000_000.0, (step,), (samples.QueueSample(ANNA, 3, 1, 5, 5),))


@scenario(repairs.WAKE)
async def wake(desk: Desk) -> Any:
    return (KEY, "index")


@scenario(repairs.FREE)
async def free(desk: Desk) -> Any:
    await _hold(desk)
    await desk.rows("UPDATE locks SET lease_until = 1.0 RETURNING 1")
    return KEY


@scenario(repairs.RETIRE)
async def retire(desk: Desk) -> Any:
    step = await desk.flipped()
    await desk.delete(step.document_id)
    await desk.rows("DELETE FROM purges RETURNING 1")
    return step.generation_id


@scenario(repairs.PLACE)
async def place(desk: Desk) -> Any:
    generation = (await desk.flipped()).generation_id
    await desk.rows("DELETE FROM placements RETURNING 1")
    return generation


@scenario(repairs.UNPURGE)
async def unpurge(desk: Desk) -> Any:
    step = await desk.flipped()
    await desk.rows(
        "INSERT INTO purges (generation_id, owner, collection, index_version, not_before) "
        f"VALUES ({step.generation_id}, 'anna', 'default', 1, 1.0) RETURNING 1"
    )
    return step.generation_id


@scenario(repairs.REQUEUE)
async def requeue(desk: Desk) -> Any:
    step = await desk.started()
    await desk.rows("UPDATE steps SET status = 'COMPLETED', lease_token = NULL RETURNING 1")
    return step.document_id


@scenario(repairs.ADD_DEAD_LETTER)
async def add_dead_letter(desk: Desk) -> Any:
    step = await _failed(desk)
    await desk.rows("DELETE FROM dead_letters RETURNING 1")
    return step.document_id


@scenario(repairs.DELETE_ORPHAN)
async def delete_orphan(desk: Desk) -> Any:
    await desk.ledger.write(submits.SUBMIT, await submit_children(desk))
    await desk.rows("UPDATE documents SET parent_id = 'gone' WHERE source = '/a.zip#one' RETURNING 1")
    return await desk.one("SELECT id FROM documents WHERE parent_id = 'gone'")


@scenario(repairs.CUT)
async def cut(desk: Desk) -> Any:
    await searchable(desk, "/a")
    return repairs.Cut((await desk.one("SELECT id FROM artifacts")), 1)


@scenario(repairs.RESTART)
async def restart(desk: Desk) -> Any:
    step = await desk.indexing()
    await desk.open(step)
    await desk.rows("UPDATE artifacts SET kind = 'index', cursor = '[7]' RETURNING 1")
    return PLACE


@scenario(repairs.FORGET)
async def forget(desk: Desk) -> Any:
    await searchable(desk, "/a")
    await desk.rows("DELETE FROM artifact_refs RETURNING 1")
    return repairs.Forget((await desk.one("SELECT id FROM artifacts"),), -60.0)


@scenario(retention.DROP_ARTIFACTS)
async def drop_artifacts(desk: Desk) -> Any:
    return ((await searchable(desk, "/a")).generation_id,)


@scenario(retention.EXPIRE)
async def expire(desk: Desk) -> Any:
    await desk.delete((await desk.flipped()).document_id)
    await purge(desk)
    await age(desk, "runs", "generations", "documents")
    return retention.Expire(0, 3600.0, 100)


@scenario(retention.CLEAR)
async def clear(desk: Desk) -> Any:
    step = await _failed(desk)
    await desk.retry(DocumentId(step.document_id))
    await desk.rows("UPDATE dead_letters SET closed_at = 1.0 RETURNING 1")
    return retention.Clear("dead_letters", 0, 3600.0, 100)


@scenario(histories.NOTICE)
async def notice(desk: Desk) -> Any:
    return histories.Seen(1000)


@scenario(histories.SETTLE)
async def settle(desk: Desk) -> Any:
    begun = await desk.ledger.write(histories.NOTICE, histories.Seen(1000))
    assert begun is not None
    return begun.first_generation


@scenario(claims.CLAIM_THESE)
async def claim_these(desk: Desk) -> Any:
    await desk.submit("/a", "/b")
    steps = tuple(row[0] for row in await desk.rows("SELECT id FROM steps"))
    return claims.ClaimThese(W1, steps, desk.token(), LEASE_S)


@scenario(generations.POSTPONE)
async def postpone(desk: Desk) -> Any:
    step = await desk.flipped()
    await desk.delete(step.document_id)
    return (step.generation_id,), 60.0


@scenario(retention.FORGET_SNAPSHOTS)
async def forget_snapshots(desk: Desk) -> Any:
    await desk.rows("INSERT INTO snapshots (hash, body, added_at) VALUES ('old', '{}', 1.0) RETURNING 1")
    return retention.Unused(3600.0, 100)
