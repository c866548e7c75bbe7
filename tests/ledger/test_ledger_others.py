"""What a verb is not about stays as it is: the other rows of the same owner, those of another owner, and those that
another process holds. Each condition of these statements is needed by one of these tests."""

from typing import Any

from tests.kit.ledger import ANNA, BERT, KEY, LEASE_S, Desk

from penstock.ledger.database import workers
from penstock.ledger.engine import actions, api_keys, generations, leasing, locks, outbox, requests, uploads
from penstock.model.nouns import Owner, Token, WorkerId


async def rows_but(desk: Desk, table: str, key: str, but: str) -> list[Any]:
    return sorted(await desk.rows(f"SELECT * FROM {table} WHERE {key} <> '{but}'"), key=repr)


# actions


async def two_actions(desk: Desk, other: Owner) -> tuple[actions.Held, list[Any]]:
    """One action that we hold, and one that another process holds, both with documents to work on."""
    held = []
    for name, owner in (("first", ANNA), ("second", other)):
        await desk.ledger.write(actions.START_ACTION, actions.Start(name, owner, "retry", "{}", ("d1", "d2")))
        taken = await desk.ledger.write(actions.TAKE_ACTION, actions.Take(f"token of {name}", LEASE_S))
        assert taken is not None
        assert taken.id == name
        held.append(actions.Held(name, f"token of {name}", LEASE_S))
    return held[0], await not_ours(desk)


async def not_ours(desk: Desk) -> list[Any]:
    return await rows_but(desk, "actions", "id", "first") + await rows_but(desk, "action_items", "action_id", "first")


async def test_an_action_that_is_cancelled_leaves_the_others(desk: Desk) -> None:
    for other in (ANNA, BERT):
        _, before = await two_actions(desk, other)
        assert await desk.ledger.write(actions.CANCEL_ACTION, (BERT if other == ANNA else ANNA, "nothing")) is False
        assert await desk.ledger.write(actions.CANCEL_ACTION, (BERT, "first")) is False
        assert await desk.ledger.write(actions.CANCEL_ACTION, (ANNA, "first")) is True
        assert await not_ours(desk) == before
        await desk.rows("DELETE FROM action_items")
        await desk.rows("DELETE FROM actions")


async def test_work_on_an_action_leaves_the_others(desk: Desk) -> None:
    held, before = await two_actions(desk, ANNA)
    assert await desk.ledger.write(actions.ACT, actions.Act(held, ((0, "d1"),), error="it failed")) is not None
    assert await desk.ledger.write(actions.CHOOSE, actions.Choice(held, ("d3",), over=True)) is True
    await desk.ledger.write(actions.LET_ACTION_GO, held)
    assert await not_ours(desk) == before
    taken = await desk.ledger.write(actions.TAKE_ACTION, actions.Take(held.token, LEASE_S))
    assert taken is not None
    assert taken.id == "first"
    assert await desk.ledger.write(actions.END_ACTION, held) is True
    assert await not_ours(desk) == before


async def test_an_action_that_another_process_holds_is_not_worked_on(desk: Desk) -> None:
    await two_actions(desk, ANNA)
    before = await desk.rows("SELECT * FROM actions ORDER BY id")
    stale = actions.Held("first", "token of second", LEASE_S)
    assert await desk.ledger.write(actions.ACT, actions.Act(stale, ((0, "d1"),))) is None
    assert await desk.ledger.write(actions.CHOOSE, actions.Choice(stale, ("d3",), over=True)) is False
    assert await desk.ledger.write(actions.END_ACTION, stale) is False
    await desk.ledger.write(actions.LET_ACTION_GO, stale)
    assert await desk.ledger.write(actions.TAKE_ACTION, actions.Take("third", LEASE_S)) is None
    assert await desk.rows("SELECT * FROM actions ORDER BY id") == before


# uploads


async def two_uploads(desk: Desk, other: Owner) -> None:
    for name, owner in (("first", ANNA), ("second", other)):
        made = uploads.Creation(name, owner, "tus", 10, "{}", 60.0, 100)
        assert await desk.ledger.write(uploads.CREATE_UPLOAD, made) is not None
        assert await desk.ledger.write(uploads.HOLD_UPLOAD, uploads.Hold(owner, name, name, LEASE_S)) is not None
        part = uploads.Part(0, 4, f"{name}/0")
        assert await desk.ledger.write(uploads.ADD_PARTS, uploads.Added(owner, name, name, (part,), LEASE_S, 60.0))


async def other_upload(desk: Desk) -> list[Any]:
    return await rows_but(desk, "uploads", "id", "first") + await rows_but(desk, "upload_parts", "upload_id", "first")


async def test_work_on_an_upload_leaves_the_others(desk: Desk) -> None:
    await two_uploads(desk, ANNA)
    before = await other_upload(desk)
    rest = uploads.Part(4, 6, "first/4")
    assert await desk.ledger.write(uploads.ADD_PARTS, uploads.Added(ANNA, "first", "first", (rest,), 1.0, 9.0))
    assert await desk.ledger.write(uploads.END_UPLOAD, uploads.Ended(ANNA, "first", "first", None, "{}"))
    await desk.ledger.write(uploads.LET_UPLOAD_GO, uploads.Hold(ANNA, "first", "first", LEASE_S))
    assert await desk.ledger.write(uploads.HOLD_UPLOAD, uploads.Hold(ANNA, "first", "again", LEASE_S))
    removed = uploads.Removed(ANNA, "first", "again", whole=True)
    keys: list[str] = await desk.ledger.write(uploads.REMOVE_UPLOAD, removed)
    assert sorted(keys) == ["first/0", "first/4"]
    assert await other_upload(desk) == before


async def test_an_upload_of_another_owner_or_process_is_not_changed(desk: Desk) -> None:
    await two_uploads(desk, BERT)
    before = await desk.rows("SELECT * FROM uploads ORDER BY id")
    rest = (uploads.Part(4, 6, "x"),)
    for owner, token in ((ANNA, "second"), (BERT, "first")):
        assert await desk.ledger.write(uploads.HOLD_UPLOAD, uploads.Hold(owner, "second", token, 9.0)) is None
        added = uploads.Added(owner, "second", token, rest, 9.0, 9.0)
        assert await desk.ledger.write(uploads.ADD_PARTS, added) is None
        assert await desk.ledger.write(uploads.END_UPLOAD, uploads.Ended(owner, "second", token, None, "{}")) is None
        await desk.ledger.write(uploads.LET_UPLOAD_GO, uploads.Hold(owner, "second", token, 9.0))
        assert await desk.ledger.write(uploads.REMOVE_UPLOAD, uploads.Removed(owner, "second", token, True)) == []
    assert await desk.rows("SELECT * FROM uploads ORDER BY id") == before
    assert await desk.ledger.read(lambda c: uploads.parts(ANNA, c, "second")) == []
    assert await desk.ledger.read(lambda c: uploads.get(ANNA, c, "second")) is None


async def test_the_bytes_of_unfinished_uploads_are_counted_by_owner(desk: Desk) -> None:
    await two_uploads(desk, BERT)
    await desk.ledger.write(uploads.END_UPLOAD, uploads.Ended(ANNA, "first", "first", None, "{}"))
    third = uploads.Creation("third", ANNA, "tus", 10, "{}", 60.0, 10)
    assert await desk.ledger.write(uploads.CREATE_UPLOAD, third) is not None


async def test_only_whole_uploads_that_nobody_holds_are_gone_on_with(desk: Desk) -> None:
    await two_uploads(desk, BERT)
    rest = uploads.Part(4, 6, "first/4")
    await desk.ledger.write(uploads.ADD_PARTS, uploads.Added(ANNA, "first", "first", (rest,), LEASE_S, 60.0))
    assert await desk.ledger.read(lambda c: uploads.whole(c, 9)) == []
    for owner, name in ((ANNA, "first"), (BERT, "second")):
        await desk.ledger.write(uploads.LET_UPLOAD_GO, uploads.Hold(owner, name, name, LEASE_S))
    assert await desk.ledger.read(lambda c: uploads.whole(c, 9)) == [(ANNA, "first")]


# requests with a key


async def two_requests(desk: Desk) -> None:
    for owner, key, token in ((ANNA, "k1", "t1"), (ANNA, "k2", "t2"), (BERT, "k1", "t3"), (BERT, "k2", "t4")):
        enter = requests.Enter(owner, key, "print", Token(token), LEASE_S)
        assert await desk.ledger.write(requests.ENTER_REQUEST, enter) == "entered"


async def test_a_request_is_renewed_answered_and_forgotten_alone(desk: Desk) -> None:
    await two_requests(desk)
    # The tokens of all are the same: owner and key alone say which one it is.
    await desk.rows("UPDATE requests SET token = 't1'")
    others = "SELECT * FROM requests WHERE owner <> 'anna' OR key <> 'k1' ORDER BY owner, key"
    before = await desk.rows(others)
    assert await desk.ledger.write(requests.RENEW_REQUEST, (ANNA, "k1", Token("t1"), 1.0)) is True
    answer = requests.StoreAnswer(ANNA, "k1", Token("t1"), "print", 200, "{}", b"body")
    assert await desk.ledger.write(requests.STORE_ANSWER, answer) is True
    assert await desk.rows(others) == before
    assert await desk.ledger.write(requests.FORGET_REQUEST, (ANNA, "k2", Token("t1"))) is True
    left = await desk.rows("SELECT owner, key FROM requests ORDER BY owner, key")
    assert left == [("anna", "k1"), ("bert", "k1"), ("bert", "k2")]


async def test_a_request_whose_lease_is_lost_is_not_changed(desk: Desk) -> None:
    await two_requests(desk)
    before = await desk.rows("SELECT * FROM requests ORDER BY owner, key")
    assert await desk.ledger.write(requests.RENEW_REQUEST, (ANNA, "k1", Token("t2"), 1.0)) is False
    answer = requests.StoreAnswer(ANNA, "k1", Token("t2"), "print", 200, "{}", b"body")
    assert await desk.ledger.write(requests.STORE_ANSWER, answer) is False
    assert await desk.ledger.write(requests.FORGET_REQUEST, (ANNA, "k1", Token("t2"))) is False
    assert await desk.rows("SELECT * FROM requests ORDER BY owner, key") == before


# keys


def new_key(name: str, owner: Owner, parent: str | None = None, lasts_s: float | None = None) -> api_keys.NewKey:
    return api_keys.NewKey(owner, name, name, "digest", "signing", (), None, lasts_s, "tester", parent)


async def test_a_key_is_revoked_and_used_alone(desk: Desk) -> None:
    for key in (new_key("a", ANNA), new_key("b", ANNA), new_key("c", BERT)):
        await desk.ledger.write(api_keys.CREATE_KEY, key)
    before = await rows_but(desk, "api_keys", "id", "a")
    await desk.ledger.write(api_keys.USED_KEY, "a")
    assert await desk.ledger.write(api_keys.REVOKE_KEY, api_keys.Revoke(BERT, "a", "tester")) is False
    assert await desk.ledger.write(api_keys.REVOKE_KEY, api_keys.Revoke(ANNA, "a", "tester")) is True
    assert await desk.ledger.write(api_keys.REVOKE_KEY, api_keys.Revoke(ANNA, "a", "tester")) is False
    assert await rows_but(desk, "api_keys", "id", "a") == before


async def test_a_new_session_removes_only_those_of_its_key_that_are_over(desk: Desk) -> None:
    for key in (new_key("a", ANNA), new_key("b", ANNA)):
        await desk.ledger.write(api_keys.CREATE_KEY, key)
    over = ("a-over", "a", -1.0), ("a-open", "a", 60.0), ("b-over", "b", -1.0)
    for name, parent, lasts_s in over:
        await desk.ledger.write(api_keys.CREATE_KEY, new_key(name, ANNA, parent, lasts_s))
    await desk.ledger.write(api_keys.CREATE_KEY, new_key("a-new", ANNA, "a", 60.0))
    assert {row[0] for row in await desk.rows("SELECT id FROM api_keys")} == {"a", "b", "a-open", "b-over", "a-new"}


# workers


async def test_a_heartbeat_and_an_end_concern_one_worker(desk: Desk) -> None:
    for name in ("w1", "w2"):
        await desk.ledger.write(workers.REGISTER, workers.Worker(WorkerId(name), "host", 1))
        await desk.started(f"/{name}", worker=name)
    await desk.rows("UPDATE workers SET seen_at = 1.0")
    before = await rows_but(desk, "workers", "id", "w1")
    await desk.ledger.write(leasing.HEARTBEAT, leasing.Beat(WorkerId("w1"), (), (), (), LEASE_S))
    assert await rows_but(desk, "workers", "id", "w1") == before
    assert await desk.one("SELECT seen_at FROM workers WHERE id = 'w1'") > 1.0
    await desk.ledger.write(leasing.LEAVE, WorkerId("w1"))
    assert await desk.rows("SELECT id FROM workers") == [("w2",)]
    assert await desk.rows("SELECT worker_id FROM steps WHERE status = 'RUNNING'") == [("w2",)]


# generations and events


async def test_i5_a_generation_that_is_no_longer_built_is_not_written(desk: Desk) -> None:
    step = await desk.indexing()
    await desk.rows("UPDATE generations SET state = 'SUPERSEDED'")
    writing = generations.Writing(step.lease.step_id, step.lease.token, step.generation_id)
    assert await desk.ledger.write(generations.WRITE, writing) is None
    assert await desk.rows("SELECT * FROM placements") == []


async def test_events_that_were_dispatched_are_not_waited_for(desk: Desk) -> None:
    await desk.submit("/a")
    await desk.rows(
        "INSERT INTO events (kind, owner, snapshot, attempt, body, at, dispatched) "
        "VALUES ('ITEM_END', 'anna', 'snapshot', 0, '{}', 1.0, 1)"
    )
    assert (await desk.ledger.read(outbox.waiting)).new is False
    assert await desk.ledger.write(outbox.DISPATCH, outbox.FAN_OUT) == 0


async def test_an_action_that_is_over_is_neither_taken_nor_worked_on(desk: Desk) -> None:
    held, _ = await two_actions(desk, ANNA)
    assert await desk.ledger.write(actions.CANCEL_ACTION, (ANNA, "first")) is True
    # As if it were still held: its state alone says that it is over.
    await desk.rows("UPDATE actions SET token = 'token of first' WHERE id = 'first'")
    before = await desk.rows("SELECT * FROM actions ORDER BY id")
    assert await desk.ledger.write(actions.ACT, actions.Act(held, ((0, "d1"),))) is None
    assert await desk.ledger.write(actions.CHOOSE, actions.Choice(held, ("d3",), over=True)) is False
    assert await desk.ledger.write(actions.END_ACTION, held) is False
    assert await desk.ledger.write(actions.CANCEL_ACTION, (ANNA, "first")) is False
    assert await desk.rows("SELECT * FROM actions ORDER BY id") == before
    await desk.rows("UPDATE actions SET token = NULL WHERE id = 'first'")
    assert await desk.ledger.write(actions.TAKE_ACTION, actions.Take("third", LEASE_S)) is None


async def test_a_document_of_an_action_counts_once(desk: Desk) -> None:
    held, _ = await two_actions(desk, ANNA)
    await desk.ledger.write(actions.ACT, actions.Act(held, ((0, "d1"),), error="it failed"))
    assert await desk.rows("SELECT ordinal, state FROM action_items WHERE action_id = 'first' ORDER BY ordinal") == [
        (0, "FAILED"),
        (1, "WAITING"),
    ]
    await desk.ledger.write(actions.ACT, actions.Act(held, ((0, "d1"),)))
    assert await desk.one("SELECT state FROM action_items WHERE action_id = 'first' AND ordinal = 0") == "FAILED"


async def test_bytes_are_added_where_the_last_ones_ended_and_only_to_an_open_upload(desk: Desk) -> None:
    await two_uploads(desk, BERT)
    before = await desk.rows("SELECT id, received, state FROM uploads ORDER BY id")
    for part in (uploads.Part(3, 6, "x"), uploads.Part(5, 5, "x"), uploads.Part(4, 7, "x")):
        assert (
            await desk.ledger.write(uploads.ADD_PARTS, uploads.Added(ANNA, "first", "first", (part,), 9.0, 9.0)) is None
        )
    assert await desk.rows("SELECT id, received, state FROM uploads ORDER BY id") == before
    assert await desk.ledger.write(uploads.END_UPLOAD, uploads.Ended(ANNA, "first", "first", None, "{}"))
    part = uploads.Part(4, 6, "x")
    assert await desk.ledger.write(uploads.ADD_PARTS, uploads.Added(ANNA, "first", "first", (part,), 9.0, 9.0)) is None
    assert await desk.ledger.write(uploads.END_UPLOAD, uploads.Ended(ANNA, "first", "first", None, "[]")) is None


async def test_two_uploads_under_one_token_are_changed_one_at_a_time(desk: Desk) -> None:
    await two_uploads(desk, ANNA)
    await desk.rows("UPDATE uploads SET token = 'ours'")
    before = await other_upload(desk)
    rest = uploads.Part(4, 6, "first/4")
    assert await desk.ledger.write(uploads.HOLD_UPLOAD, uploads.Hold(ANNA, "first", "ours", LEASE_S))
    assert await desk.ledger.write(uploads.ADD_PARTS, uploads.Added(ANNA, "first", "ours", (rest,), 1.0, 9.0))
    assert [p.key for p in await desk.ledger.read(lambda c: uploads.parts(ANNA, c, "first"))] == ["first/0", "first/4"]
    assert await desk.ledger.write(uploads.END_UPLOAD, uploads.Ended(ANNA, "first", "ours", None, "{}"))
    keys: list[str] = await desk.ledger.write(uploads.REMOVE_UPLOAD, uploads.Removed(ANNA, "first", "ours", False))
    assert sorted(keys) == ["first/0", "first/4"]
    await desk.ledger.write(uploads.LET_UPLOAD_GO, uploads.Hold(ANNA, "first", "ours", LEASE_S))
    assert await other_upload(desk) == before


async def test_an_upload_that_has_expired_is_not_there_and_only_such_ones_are_removed(desk: Desk) -> None:
    await two_uploads(desk, BERT)
    rest = uploads.Part(4, 6, "first/4")
    await desk.ledger.write(uploads.ADD_PARTS, uploads.Added(ANNA, "first", "first", (rest,), LEASE_S, 60.0))
    await desk.rows("UPDATE uploads SET expires_at = 1.0 WHERE id = 'first'")
    assert await desk.ledger.write(uploads.EXPIRE_UPLOADS, 9) == (0, []), "a process holds it"
    await desk.ledger.write(uploads.LET_UPLOAD_GO, uploads.Hold(ANNA, "first", "first", LEASE_S))
    await desk.ledger.write(uploads.LET_UPLOAD_GO, uploads.Hold(BERT, "second", "second", LEASE_S))
    assert await desk.ledger.read(lambda c: uploads.get(ANNA, c, "first")) is None
    assert await desk.ledger.read(lambda c: uploads.whole(c, 9)) == []
    assert await desk.ledger.write(uploads.HOLD_UPLOAD, uploads.Hold(ANNA, "first", "new", 9.0)) is None
    count, keys = await desk.ledger.write(uploads.EXPIRE_UPLOADS, 9)
    assert (count, sorted(keys)) == (1, [("first/0", 4), ("first/4", 6)])
    assert await desk.rows("SELECT id FROM uploads") == [("second",)]


async def test_only_open_uploads_are_gone_on_with(desk: Desk) -> None:
    for name, kind in (("tus", "tus"), ("ended", "tus"), ("other", "presigned")):
        made = uploads.Creation(name, ANNA, kind, 4, "{}", 60.0, 100)
        assert await desk.ledger.write(uploads.CREATE_UPLOAD, made) is not None
        await desk.ledger.write(uploads.HOLD_UPLOAD, uploads.Hold(ANNA, name, name, LEASE_S))
        part = uploads.Part(0, 4, f"{name}/0")
        await desk.ledger.write(uploads.ADD_PARTS, uploads.Added(ANNA, name, name, (part,), LEASE_S, 60.0))
        if name == "ended":
            await desk.ledger.write(uploads.END_UPLOAD, uploads.Ended(ANNA, name, name, None, "{}"))
        await desk.ledger.write(uploads.LET_UPLOAD_GO, uploads.Hold(ANNA, name, name, LEASE_S))
    assert await desk.ledger.read(lambda c: uploads.whole(c, 9)) == [(ANNA, "other"), (ANNA, "tus")]


async def test_the_answer_to_a_request_is_its_own(desk: Desk) -> None:
    await two_requests(desk)
    answer = requests.StoreAnswer(ANNA, "k1", Token("t1"), "print", 200, "{}", b"body")
    assert await desk.ledger.write(requests.STORE_ANSWER, answer) is True
    for owner, key, status in ((ANNA, "k1", 200), (ANNA, "k2", None), (BERT, "k1", None)):
        enter = requests.Enter(owner, key, "print", Token("new"), LEASE_S)
        found = await desk.ledger.write(requests.ENTER_REQUEST, enter)
        assert isinstance(found, requests.Stored)
        assert found.status == status


async def test_i3_a_generation_is_written_only_under_the_lease_of_its_step(desk: Desk) -> None:
    first = await desk.indexing("/a")
    await desk.to_index("/b")
    [stranger] = await desk.rows(f"SELECT id FROM generations WHERE id <> {first.generation_id}")
    lease = first.lease
    stale = generations.Writing(lease.step_id, Token("stale"), first.generation_id)
    assert await desk.ledger.write(generations.WRITE, stale) is None
    assert await desk.rows("SELECT * FROM placements") == []
    assert await desk.rows("SELECT written FROM generations WHERE written = 1") == []
    writing = generations.Writing(lease.step_id, lease.token, first.generation_id)
    assert await desk.ledger.write(generations.WRITE, writing) is False
    assert await desk.rows("SELECT generation_id FROM placements") == [(first.generation_id,)]
    assert await desk.ledger.write(generations.WRITE, writing) is True
    assert await desk.one(f"SELECT written FROM generations WHERE id = {stranger[0]}") == 0


async def test_locks_are_released_one_by_one_and_a_worker_that_ends_frees_only_its_own(desk: Desk) -> None:
    taken = []
    for owner, worker in ((ANNA, "w1"), (BERT, "w2")):
        await desk.to_index("/a", owner=owner)
        taken += await desk.claim_keyed(worker=worker)
    assert len(taken) == 2
    held = "SELECT resource_key, worker_id FROM locks WHERE token IS NOT NULL ORDER BY resource_key"
    before = await desk.rows(held)
    assert [row[1] for row in before] == ["w1", "w2"]
    await desk.ledger.write(leasing.LEAVE, WorkerId("w1"))
    assert await desk.rows(held) == before[1:]
    # Both under one token: the key alone says which one it is.
    await desk.rows("UPDATE locks SET token = 'one', worker_id = 'w2', lease_until = 9e12")
    assert await desk.ledger.write(locks.RELEASE, (KEY, Token("two"))) is False
    assert await desk.ledger.write(locks.RELEASE, (KEY, Token("one"))) is True
    assert [row[0] for row in await desk.rows(held)] == ["index:bert/default/1"]
