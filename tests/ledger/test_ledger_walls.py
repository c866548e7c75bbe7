"""Owners are walls (I10): every function that the ledger has for users, asked by another owner, finds nothing."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import msgspec
from tests.integration.test_hostile_arguments import TEXTS
from tests.kit.ledger import ANNA, BERT, KEY, LEASE_S, Desk, sha
from tests.unit.test_owners import CROSSING, FOR_USERS, MODULES, functions

from penstock.ledger.database.connection import Connection
from penstock.ledger.engine import (
    actions,
    admission,
    answers,
    api_keys,
    children,
    clients,
    collections,
    dead_letters,
    deletions,
    documents,
    forgotten,
    generations,
    groups,
    index_versions,
    locks,
    messages,
    numbers,
    reindexes,
    revisions,
    runs,
    samples,
    submits,
    uploads,
    vector_stores,
    webhooks,
)
from penstock.ledger.engine.submissions import FirstStep
from penstock.ledger.reads import batches, feed
from penstock.model.nouns import GenerationId, Owner, RunId, Step, WorkerId
from penstock.model.usage import Amount, Booking

GROUP = "01GROUP"
START = groups.GroupStart(GROUP, "flow")


class Anna(msgspec.Struct, frozen=True):
    """What Anna has: one of everything."""

    done: Step
    failed: Step
    running: Step
    reindex: reindexes.Reindex
    letter: int
    letter_of_event: int
    letter_of_message: int
    delivery: int


CALLS: dict[str, Callable[[Anna], dict[str, Any]]] = {
    "admission.holdings": lambda a: {},
    "admission.pause": lambda a: {},
    "admission.size_of": lambda a: {"collection": "default", "source": "/done"},
    "messages.stored": lambda a: {"letters": [a.letter_of_message]},
    "webhooks.address": lambda a: {"webhook": "01WEBHOOK"},
    "webhooks.deliveries": lambda a: {"webhook": "01WEBHOOK", "before": a.delivery + 1, "count": 9},
    "webhooks.delivery": lambda a: {"webhook": "01WEBHOOK", "number": a.delivery},
    "webhooks.get": lambda a: {"webhook": "01WEBHOOK"},
    "webhooks.listed": lambda a: {"after": "", "count": 9},
    "actions.failures": lambda a: {"action": "01ACTION", "count": 9},
    "actions.get": lambda a: {"action": "01ACTION"},
    "actions.newest": lambda a: {"count": 9},
    "actions.waiting": lambda a: {"action": "01ACTION", "count": 9},
    "answers.find": lambda a: {"digests": ["bought"]},
    "answers.operation": lambda a: {"digest": "started"},
    "api_keys.get": lambda a: {"key": "annas"},
    "api_keys.listed": lambda a: {"after": "", "count": 9},
    "audit_log.entries": lambda a: {"before": 9**9, "count": 9},
    "batches.batches": lambda a: {},
    "batches.documents_of_batch": lambda a: {"batch": "spring", "collection": "default", "after": "", "count": 9},
    "batches.documents_of_group": lambda a: {"group": GROUP, "status": "FAILED", "after": "", "count": 9},
    "batches.get": lambda a: {"group": GROUP},
    "batches.newest": lambda a: {"batch": "spring", "count": 9},
    "batches.pace": lambda a: {"group": GROUP},
    "batches.resolve": lambda a: {"name": GROUP},
    "children.counts": lambda a: {"parent": a.running.document_id},
    "children.gone": lambda a: {"parent": _parent(a.running, newer=1), "count": 9},
    "children.of": lambda a: {"parents": [a.running.document_id]},
    "children.origin": lambda a: {"run": a.running.run_id},
    "children.unfinished": lambda a: {"parents": [a.running.document_id]},
    "children.worked_on": lambda a: {"parents": [a.running.document_id]},
    "clients.batch": lambda a: {"name": "spring"},
    "clients.batches": lambda a: {"count": 9},
    "clients.sync_state": lambda a: {"source": "files"},
    "collections.begun_in": lambda a: {"collection": "default"},
    "collections.counts": lambda a: {"collection": "default"},
    "collections.left": lambda a: {"drop": collections.Drop(ANNA, "default", a.running.document_id), "count": 9},
    "collections.names": lambda a: {},
    "collections.origin": lambda a: {"collection": "default"},
    "dead_letters.by_reason": lambda a: {},
    "dead_letters.get": lambda a: {"letter": a.letter},
    "dead_letters.last": lambda a: {},
    "dead_letters.named": lambda a: {"letters": [a.letter]},
    "dead_letters.newest": lambda a: {"count": 9},
    "dead_letters.of": lambda a: {"documents": [a.failed.document_id]},
    "dead_letters.page": lambda a: {"reason": "bad", "after": 0, "until": a.letter, "count": 9},
    "dead_letters.waiting": lambda a: {"reason": "bad"},
    "documents.raw": lambda a: {"document": a.done.document_id},
    "documents.active_generation": lambda a: {"document": a.done.document_id},
    "documents.counted": lambda a: {"status": "", "collection": "", "before": "", "most": 9},
    "documents.get": lambda a: {"document": a.done.document_id},
    "related.count_failed_for": lambda a: {"reason": "bad", "most": 9},
    "related.failed_for": lambda a: {"reason": "bad", "before": "", "count": 9},
    "related.inside": lambda a: {"parent": a.running.document_id, "before": "", "count": 9},
    "related.of_batch": lambda a: {"batch": "spring", "before": "", "count": 9},
    "related.of_group": lambda a: {"group": GROUP, "before": "", "count": 9},
    "related.updated_since": lambda a: {"since": 0.0, "before": "", "count": 9},
    "documents.known": lambda a: {"ids": [a.done.document_id], "deleted": True},
    "documents.last_run": lambda a: {"document": a.done.document_id},
    "documents.newest": lambda a: {"status": "", "collection": "", "before": "", "count": 9},
    "documents.examined": lambda a: {"status": "", "collection": "", "before": "", "count": 9},
    "documents.origins": lambda a: {"ids": [a.failed.document_id]},
    "documents.password": lambda a: {"document": a.failed.document_id},
    "documents.progress": lambda a: {"generation": a.running.generation_id},
    "documents.candidates": lambda a: {"name": a.done.document_id, "sources": []},
    "documents.sourced": lambda a: {"collection": "default", "between": ("/", "0"), "after": ("", ""), "count": 9},
    "documents.statuses": lambda a: {"ids": [a.done.document_id]},
    "documents.steps": lambda a: {"document": a.failed.document_id},
    "documents.under": lambda a: {"collection": "default", "prefix": "/"},
    "history.oldest_waiting": lambda a: {},
    "history.versions": lambda a: {"document": a.done.document_id, "count": 9},
    "feed.changed": lambda a: {"after": feed.Position(0.0), "count": 9},
    "feed.running": lambda a: {},
    "forgotten.deleted": lambda a: {"collection": "default", "wanted": ["/gone"]},
    "forgotten.sources": lambda a: {"collection": "default"},
    "generations.due_purges_in": lambda a: {"collection": "default", "version": 1, "count": 9},
    "generations.hidden": lambda a: {"collection": "default", "version": 1},
    "generations.matching": lambda a: {"collection": "default", "version": 1, "accepts": lambda one: True},
    "generations.visible": lambda a: {"version": 1, "candidates": [a.done.generation_id]},
    "index_versions.current": lambda a: {"collection": "default"},
    "index_versions.of": lambda a: {"collection": "default", "version": 1},
    "numbers.known": lambda a: {"kind": "run", "ids": [a.done.run_id]},
    "numbers.named": lambda a: {"kind": "run", "number": 1},
    "reindexes.counts": lambda a: {"collection": "default", "version": 2},
    "reindexes.get": lambda a: {"collection": "default"},
    "reindexes.newest": lambda a: {"collection": "default"},
    "reindexes.wanted": lambda a: {"one": a.reindex, "after": "", "count": 9},
    "reindexes.working": lambda a: {"collection": "default", "version": 2},
    "revisions.of": lambda a: {"collection": "default", "sources": ["/done"]},
    "run_lists.by_hash": lambda a: {"digits": sha("v2")},
    "run_lists.by_source": lambda a: {"sources": ["/done"]},
    "run_lists.get": lambda a: {"run": a.done.run_id},
    "run_lists.in_batch": lambda a: {"batch": "spring", "after": "", "count": 9},
    "run_lists.in_source": lambda a: {"low": "/", "high": "0", "after": "", "count": 9},
    "run_lists.of_documents": lambda a: {"documents": [a.done.document_id]},
    "run_lists.of_group": lambda a: {"group": GROUP, "after": "", "count": 9},
    "run_lists.of_status": lambda a: {"status": "FAILED", "count": 9},
    "run_lists.raw_in_batch": lambda a: {"batch": "spring", "after": "", "count": 9},
    "run_lists.step_stats": lambda a: {"group": GROUP},
    "run_lists.steps": lambda a: {"runs": [a.done.run_id]},
    "runs.known": lambda a: {"collection": "default", "sources": ["/done"]},
    "searchable.made": lambda a: {"generations": [a.done.generation_id]},
    "searchable.searchable": lambda a: {"collection": "default", "after": "", "count": 9},
    "samples.queues": lambda a: {"width": 60, "first": 0},
    "samples.steps": lambda a: {"width": 60, "first": 0},
    "stats.away": lambda a: {},
    "stats.dead_letters": lambda a: {},
    "stats.documents": lambda a: {},
    "stats.events": lambda a: {},
    "stats.list_steps": lambda a: {"status": None, "kind": "", "stuck_s": None, "count": 9},
    "stats.lock_releases": lambda a: {"count": 9},
    "stats.locks": lambda a: {},
    "stats.running": lambda a: {},
    "stats.steps": lambda a: {},
    "uploads.get": lambda a: {"upload": "01UPLOAD"},
    "uploads.parts": lambda a: {"upload": "01UPLOAD"},
    "usage.by_day": lambda a: {},
    "usage.of_group": lambda a: {"group": GROUP},
    "usage.of_model": lambda a: {"model": "model"},
    "usage.of_run": lambda a: {"run": a.done.run_id},
    "usage.totals": lambda a: {},
    "vector_stores.batch": lambda a: {"collection": "store", "batch": "01BATCH"},
    "vector_stores.copies": lambda a: {"source": "/done"},
    "vector_stores.counts": lambda a: {"collection": "default"},
    "vector_stores.files": lambda a: {"documents": [a.done.document_id]},
    "vector_stores.get": lambda a: {"collection": "store"},
    "vector_stores.page": lambda a: {"collection": "default", "count": 9},
    "vector_stores.roots": lambda a: {"documents": [a.done.document_id]},
    "vector_stores.sourced": lambda a: {"collection": "default", "sources": ["/done"]},
    "vector_stores.stores": lambda a: {},
}
"""Every function for a user, and what to ask it for so that Anna finds something."""
CHANGING = {
    "children.adopt", "children.held", "children.hold_lease", "children.reset_counts", "dead_letters.close",
    "deletions.delete_trees", "forgotten.forget", "metadata.change", "metadata.renew", "runs.hold",
    "reindexes.held", "webhooks.end_pending",
    # They refuse, or put the others together.
    "admission.check", "admission.refuse_above", "admission.state",
}  # fmt: skip


def _parent(step: Step, newer: int = 0) -> children.Parent:
    generation = GenerationId(step.generation_id + newer)
    return children.Parent(step.document_id, generation, step.lease, step.document_id, 0, None, 100, 1000)


async def _flipped(desk: Desk, content: str, **order: Any) -> Step:
    await desk.submit("/done", content=content, **order)
    [first] = await desk.claim()
    await desk.complete(first, "index", key=KEY)
    [step] = await desk.claim_keyed()
    writing = generations.Writing(step.lease.step_id, step.lease.token, step.generation_id)
    await desk.ledger.write(generations.WRITE, writing)
    assert await desk.flip(step)
    await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    return step


async def _begin_reindex(desk: Desk) -> None:
    """One document is being worked on for it, and another one is not."""
    other = await desk.flipped("/other")
    await desk.ledger.write(index_versions.BIND, index_versions.Binding(ANNA, "default", 1, "fake", 8))
    recipe = reindexes.Recipe("snapshot", "{}", "settings", FirstStep("extract", "extract"))
    await desk.ledger.write(reindexes.BEGIN_REINDEX, reindexes.Begin(ANNA, "default", recipe, "other", 8, None))
    order = reindexes.Start(ANNA, "default", 2, ((other.document_id, RunId(desk.runtime.ulid())),))
    assert await desk.ledger.write(reindexes.START_REINDEX, order) == 1


async def _fill(desk: Desk) -> Anna:
    order: dict[str, Any] = {"batch": "spring", "password": "word", "group": START}
    await _flipped(desk, "v1", **order)
    done = await _flipped(desk, "v2", **order)
    await desk.rows("UPDATE purges SET not_before = 0")
    await _begin_reindex(desk)
    failed = await desk.started("/failed", **order)
    await desk.fail(failed)
    running = await desk.started("/running", **order)
    await desk.open(running)
    for _ in range(2):
        held = locks.Acquire(KEY, desk.token(), WorkerId("w1"), "vacuum", LEASE_S)
        assert await desk.ledger.write(locks.ACQUIRE, held)
        if not await desk.rows("SELECT id FROM lock_releases"):
            await desk.ledger.write(locks.FORCE, locks.Force(ANNA, KEY, "anna"))
    await desk.rows("INSERT INTO events (kind, owner, snapshot, at) VALUES ('ITEM_END', 'anna', 'snapshot', 1)")
    await desk.rows(
        "INSERT INTO deliveries (event_id, handler, name, owner, status, not_before) "
        "SELECT id, 0, 'desk', 'anna', 'PENDING', 0 FROM events"
    )
    await desk.rows(
        "INSERT INTO dead_letters (owner, event_id, handler, step, kind, reason, error, attempts, state, created_at) "
        "SELECT 'anna', id, 0, 'desk', 'ITEM_END', 'bad', 'it broke', 1, 'OPEN', 0 FROM events"
    )
    await desk.rows(
        "INSERT INTO targets (name, owner, state, since, failures, error, held_until) "
        "VALUES ('index:anna/default/1', 'anna', 'away', 0, 1, 'it broke', 0)"
    )
    await desk.rows("UPDATE generations SET chunks = 1 WHERE state = 'ACTIVE'")
    await desk.rows(
        "INSERT INTO artifacts (owner, fingerprint, kind, state, created_at, updated_at) "
        "VALUES ('anna', 'made', 'chunk', 'COMPLETE', 0, 0)"
    )
    await desk.rows(
        "INSERT INTO artifact_refs (artifact_id, generation_id, step) SELECT a.id, g.id, 'made' "
        "FROM artifacts a, generations g WHERE a.fingerprint = 'made' AND g.state = 'ACTIVE'"
    )
    sampled = samples.Sampled(
        600.0, (samples.StepSample(ANNA, "extract", 1, 0, 1, 0.5, 0.5),), (samples.QueueSample(ANNA, 1, 1, 5, 5),)
    )
    await desk.ledger.write(samples.KEEP_SAMPLES, sampled)
    gone = await desk.submit("/gone")
    await desk.ledger.write(deletions.DELETE, runs.Selected(ANNA, (gone.document_id,), forget=True))
    await desk.ledger.write(submits.SUBMIT, desk.submission(desk.document("/running#inside"), parent=_parent(running)))
    paid = Booking(ANNA, "model", "bought", Amount(1, 9, 9, 9), done.run_id)
    await desk.ledger.write(
        answers.KEEP, answers.Bought(ANNA, "anna/answers/one", "hash", 9, (answers.Answer("bought", 9),), (paid,))
    )
    await desk.ledger.write(answers.START, answers.Started(ANNA, "started", "operation"))
    await desk.ledger.write(collections.BEGIN_DROP, (ANNA, "default"))
    await desk.ledger.write(clients.CREATE_BATCH, clients.NewBatch(ANNA, "spring", "files", "Spring"))
    await desk.ledger.write(clients.SET_SYNC_STATE, clients.NewState(ANNA, "files", "{}"))
    await desk.ledger.write(numbers.ALLOT, numbers.Numbering(ANNA, "run", (done.run_id,)))
    key = api_keys.NewKey(ANNA, "annas", "", sha("secret"), "signing", ("read",), None, None, "local")
    await desk.ledger.write(api_keys.CREATE_KEY, key)
    await desk.ledger.write(uploads.CREATE_UPLOAD, uploads.Creation("01UPLOAD", ANNA, "tus", 9, "{}", 60.0, 99))
    assert await desk.ledger.write(uploads.HOLD_UPLOAD, uploads.Hold(ANNA, "01UPLOAD", "token", 60.0))
    part = uploads.Part(0, 9, "anna/uploads/one")
    await desk.ledger.write(uploads.ADD_PARTS, uploads.Added(ANNA, "01UPLOAD", "token", (part,), 60.0, 60.0))
    await desk.ledger.write(actions.START_ACTION, actions.Start("01ACTION", ANNA, "retry", "{}", ("one", "two")))
    doing = actions.Held("01ACTION", "token", 60.0)
    assert await desk.ledger.write(actions.TAKE_ACTION, actions.Take("token", 60.0))
    await desk.ledger.write(actions.ACT, actions.Act(doing, ((0, "one"),), error="it broke"))
    await desk.ledger.write(vector_stores.SET_STORE, vector_stores.SetStore(ANNA, "store", "Store", "{}"))
    batch = vector_stores.NewBatch(ANNA, "01BATCH", "store", (done.document_id,))
    await desk.ledger.write(vector_stores.ADD_FILE_BATCH, batch)
    hook = webhooks.NewWebhook(
        ANNA, "01WEBHOOK", "hook", "https://example.org/", "secret", ("item_end",), None, "local", 9
    )
    await desk.ledger.write(webhooks.CREATE_WEBHOOK, hook)
    tested = await desk.ledger.write(webhooks.TESTED_WEBHOOK, webhooks.Tested(ANNA, hook.id, None, 200, "fine"))
    assert tested is not None
    await desk.ledger.write(admission.PAUSE_INTAKE, admission.PauseIntake(ANNA, False, "it is full", "local"))
    letters = await desk.rows("SELECT id FROM dead_letters ORDER BY id")
    message = messages.RefusedMessage(ANNA, "kafka://h/t", "kafka://h/t: t/0/1", "{}", "bad_event", "it is empty")
    await desk.ledger.write(messages.REFUSE_MESSAGE, message)
    [last] = await desk.rows("SELECT max(id) FROM dead_letters")
    reindex = await desk.ledger.read(partial(reindexes.get, ANNA), "default")
    assert reindex is not None
    [of_run, of_event] = [row[0] for row in letters]
    return Anna(done, failed, running, reindex, of_run, of_event, last[0], tested.id)


def test_i10_every_function_for_a_user_is_asked_here() -> None:
    there = {f"{name}.{one}" for name in FOR_USERS for one in functions(import_module(MODULES[name]))}
    assert set(CALLS) | CHANGING == there - set(CROSSING)


def _ask(connection: Connection, owner: Owner, name: str, given: dict[str, Any]) -> Any:
    module, _, function = name.partition(".")
    try:
        return getattr(import_module(MODULES[module]), function)(owner, connection, **given)
    except (IndexError, ValueError):
        # Of a group that is not there nobody asks for its pace, nor for a status that there is not.
        return None


async def test_i10_another_owner_finds_nothing_by_any_of_them(desk: Desk) -> None:
    anna = await _fill(desk)

    async def finds(owner: Owner, name: str) -> bool:
        answer = await desk.ledger.read(_ask, owner, name, CALLS[name](anna))
        if isinstance(answer, documents.Counted):
            return answer.count > 0
        if isinstance(answer, msgspec.Struct):
            return any(msgspec.structs.astuple(answer))
        if type(answer) is tuple:
            return any(answer)
        return any(answer.values()) if isinstance(answer, dict) else bool(answer)

    found = {name: [await finds(who, name) for who in (ANNA, BERT)] for name in CALLS}
    assert {name: found for name, found in found.items() if found != [True, False]} == {}


def _hostile(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each argument that can be a text, or a list of them, with every hostile text in turn."""
    for name, value in given.items():
        for text in (text for text in TEXTS if "\0" not in text and text.isprintable() and len(text) < 10_000):
            if isinstance(value, str) or value is None:
                yield {**given, name: text}
            elif isinstance(value, list) and value and isinstance(value[0], str):
                yield {**given, name: [text]}


async def test_i10_no_text_in_any_argument_opens_a_wall(desk: Desk) -> None:
    """What a caller gives is bound, and never a part of a statement."""
    anna = await _fill(desk)
    await desk.submit("/bert", owner=BERT, batch="spring", group=groups.GroupStart("01GROUPB", "flow"))
    [bert] = await desk.claim()
    await desk.fail(bert)
    hers = {anna.done.document_id, anna.failed.document_id, anna.running.document_id, GROUP, "anna", "/done"}
    asked, before = 0, await desk.everything()
    for name, call in CALLS.items():
        for given in _hostile(call(anna)):
            if name == "stats.list_steps" and given["stuck_s"] is not None:
                continue
            answer = repr(await desk.ledger.read(_ask, BERT, name, given))
            asked += 1
            assert not any(f"'{one}'" in answer for one in hers), (name, given, answer)
    assert asked > 300
    assert await desk.everything() == before


async def test_i10_another_owner_changes_nothing(desk: Desk) -> None:
    anna = await _fill(desk)
    letters = (anna.letter, anna.letter_of_event)
    before = await desk.everything()
    connection = desk.ledger.database.connect(hot=True)
    connection.begin()
    dead_letters.close(BERT, connection, [anna.failed.document_id], "DISCARDED")
    assert runs.hold(BERT, connection, [anna.failed.document_id]) == {}
    assert list(runs.hold(ANNA, connection, [anna.failed.document_id])) == [anna.failed.document_id]
    found, parent = [anna.running.document_id], _parent(anna.running)
    assert children.held(BERT, connection, found) == []
    assert len(children.held(ANNA, connection, found)) == 1
    assert not children.hold_lease(BERT, connection, parent)
    assert children.hold_lease(ANNA, connection, parent)
    children.adopt(BERT, connection, parent, [anna.done.document_id], 9)
    children.reset_counts(BERT, connection, found)
    forgotten.forget(BERT, connection, found)
    connection.commit()
    connection.close()
    assert await desk.ledger.write(dead_letters.DISCARD, (BERT, letters)) == set()
    assert await desk.ledger.write(dead_letters.REPLAY_EVENTS, dead_letters.EventReplay(BERT, letters)) == set()
    assert await desk.ledger.write(deletions.DELETE, runs.Selected(BERT, tuple(found), forget=True)) == set()
    assert await desk.ledger.write(deletions.SWEEP, deletions.Sweep(BERT, _parent(anna.running, newer=1), 9)) is None
    taken = desk.submission(desk.document("/bert#inside"), owner=BERT, parent=parent)
    assert await desk.ledger.write(submits.SUBMIT, taken) == []
    await desk.ledger.write(answers.FORGET, answers.Forget(BERT, ("bought", "started")))
    await desk.ledger.write(forgotten.REMEMBER, (BERT, "default", "/gone"))
    await desk.ledger.write(collections.BEGIN_DROP, (BERT, "default"))
    assert await desk.ledger.write(clients.SET_SYNC_STATE, clients.NewState(BERT, "files", None)) is False
    assert await desk.ledger.write(api_keys.REVOKE_KEY, api_keys.Revoke(BERT, "annas", "local")) is False
    new = revisions.NewRevision(anna.done.document_id, sha("v2"), "etag")
    await desk.ledger.write(revisions.REVISE, revisions.Revised(BERT, (new,)))
    assert await desk.ledger.write(index_versions.BIND, index_versions.Binding(BERT, "default", 1, "model", 3)) is None
    assert await desk.everything() == before


async def test_i10_names_that_two_owners_share_are_two_things(desk: Desk) -> None:
    keyed = desk.document("/a", key="k1")
    [[answer]] = [await desk.ledger.write(submits.SUBMIT, desk.submission(keyed, batch="spring", group=START))]
    other = desk.document("/b", content="v2", key="k1")
    [[another]] = [await desk.ledger.write(submits.SUBMIT, desk.submission(other, owner=BERT, batch="spring"))]
    assert (answer.outcome, another.outcome) == ("submitted", "submitted")
    assert answer.document_id != another.document_id
    found = {who: await desk.ledger.read(partial(batches.batches, who)) for who in (ANNA, BERT)}
    assert [(batch.groups, batch.documents) for batch in found[ANNA]] == [(1, {"PENDING": 1})]
    assert [(batch.groups, batch.documents) for batch in found[BERT]] == [(0, {"PENDING": 1})]
