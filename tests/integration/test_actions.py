"""Bulk actions: one verb on all documents that match, whatever dies meanwhile."""

from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.service import client_of

from penstock.app import App
from penstock.errors import NotFound, StorageError, UsageError
from penstock.ledger.engine import actions as rows
from penstock.verbs import actions, replays
from penstock.verbs.actions import Criteria


@pytest.fixture
async def app(start_app: StartApp, database_url: str, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr(actions, "BATCH", 4)
    return await start_app(database=database_url)


async def submitted(app: Any, count: int, **options: Any) -> list[str]:
    found = []
    for i in range(count):
        async for receipt in app.submit(data=f"words {i}".encode(), name=f"{i}.txt", **options):
            found.append(receipt.id)
    return found


async def test_a_dry_run_counts_and_an_action_changes_what_matches(app: App) -> None:
    await submitted(app, 6)
    await submitted(app, 3, collection="other")
    criteria = Criteria(collection="other")
    assert (await app.count_action("cancel", criteria)).count == 3
    assert await app.count_documents(status="PENDING") == await app.count_documents()
    made = await app.start_action("cancel", criteria)
    assert made.state == "CHOOSING"
    assert await app.run_actions() == 1
    done = await app.action(made.id)
    assert (done.state, done.total, done.changed, done.unchanged, done.failed) == ("DONE", 3, 3, 0, 0)
    assert (await app.status()).documents == {"PENDING": 6, "CANCELLED": 3}
    again = await app.start_action("retry", Criteria(status="CANCELLED"))
    assert await app.run_actions() == 1
    assert (await app.action(again.id)).changed == 3
    assert (await app.status()).documents == {"PENDING": 9}
    gone = await app.start_action(
        "delete", ids=[d.id for d in await app.list_documents(collection="other")] + ["01NONE"]
    )
    assert await app.run_actions() == 1
    done = await app.action(gone.id)
    assert (done.changed, done.unchanged) == (3, 1)
    assert (await app.status()).documents == {"PENDING": 6}
    assert [one.id for one in await app.list_actions()] == [gone.id, again.id, made.id]


@pytest.mark.parametrize("dies_after", range(5))
async def test_i6_an_action_that_dies_goes_on_and_acts_on_no_document_twice(
    app: App, monkeypatch: pytest.MonkeyPatch, dies_after: int
) -> None:
    monkeypatch.setattr(actions, "LEASE_S", -1.0)
    await submitted(app, 10)
    await app.start_action("cancel", Criteria(status="PENDING"))
    await app.run_actions()
    made = await app.start_action("retry", Criteria(status="CANCELLED"))
    real, writes = app.ledger.write, 0

    async def dies(verb: Any, item: Any) -> Any:
        nonlocal writes
        if verb in (rows.ACT, rows.CHOOSE):
            writes += 1
            if writes > dies_after:
                raise StorageError("the process died here")
        return await real(verb, item)

    with monkeypatch.context() as patch:
        patch.setattr(app.ledger, "write", dies)
        with pytest.raises(StorageError):
            await app.run_actions()
    # What was retried fails again before the action goes on: it is not retried once more.
    await app.cancel([d.id for d in await app.list_documents(status="PENDING")])
    await app.run_actions()
    done = await app.action(made.id)
    assert (done.state, done.total, done.changed) == ("DONE", 10, 10)
    assert {(await app.status(d.id)).retry_count for d in await app.list_documents()} == {1}


async def test_a_cancelled_action_ends(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    await submitted(app, 10)
    made = await app.start_action("cancel", Criteria(status="PENDING"))
    real = app.ledger.write

    async def write(verb: Any, item: Any) -> Any:
        answer = await real(verb, item)
        if verb is rows.ACT:
            await real(rows.CANCEL_ACTION, (app.owner, made.id))
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(app.ledger, "write", write)
        await app.run_actions()
    done = await app.action(made.id)
    assert (done.state, done.changed) == ("CANCELLED", 4)
    assert (await app.status()).documents == {"PENDING": 6, "CANCELLED": 4}


async def test_what_fails_is_listed_and_stops_nothing_else(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await submitted(app, 6)
    await app.cancel(ids)
    real = replays.replayer

    def refuses(*given: Any) -> Any:
        made = real(*given)
        retry = made.retry

        async def one(documents: Any) -> Any:
            if ids[2] in documents:
                raise UsageError("this one cannot be retried")
            return await retry(documents)

        monkeypatch.setattr(made, "retry", one)
        return made

    made = await app.start_action("retry", ids=ids)
    monkeypatch.setattr(actions, "replayer", refuses)
    await app.run_actions()
    done = await app.action(made.id)
    assert (done.state, done.changed, done.failed) == ("DONE", 5, 1)
    assert [(one.document, one.error) for one in done.failures] == [(ids[2], "this one cannot be retried")]


async def test_i10_actions_stay_within_the_owner(app: App) -> None:
    anna, bert = app.for_owner("anna"), app.for_owner("bert")
    mine, theirs = await submitted(anna, 2), await submitted(bert, 2)
    made = await anna.start_action("delete", ids=[*mine, *theirs])
    await app.run_actions()
    assert (await anna.action(made.id)).changed == 2
    assert len(await bert.list_documents()) == 2
    with pytest.raises(NotFound):
        await bert.action(made.id)
    with pytest.raises(NotFound):
        await bert.cancel_action(made.id)
    assert await bert.list_actions() == []


async def test_what_is_not_valid_starts_nothing(app: App) -> None:
    for verb, criteria, options in (
        ("explode", Criteria(status="FAILED"), {}),
        ("retry", Criteria(), {}),
        ("retry", None, {}),
        ("retry", None, {"ids": []}),
        ("retry", None, {"ids": ["\0"]}),
        ("retry", Criteria(status="NONE"), {}),
        ("retry", Criteria(filter={"$odd": 1}), {}),
        ("delete", Criteria(status="FAILED"), {"values": {"chunk": {"size": 1}}}),
        ("delete", Criteria(status="FAILED"), {"ids": ["01"]}),
    ):
        with pytest.raises(UsageError):
            await app.start_action(verb, criteria, **options)
    assert await app.list_actions() == []


async def test_actions_over_http(start_app: StartApp) -> None:
    app = await start_app()
    await submitted(app, 3)
    async with client_of(app) as client:
        asked = {"verb": "cancel", "filter": {"status": "PENDING"}}
        dry = await client.post("actions", json=asked | {"dry_run": True})
        assert (dry.status_code, dry.json()["count"]) == (200, 3)
        made = await client.post("actions", json=asked)
        assert made.status_code == 202, made.text
        place = made.headers["location"].removeprefix("/api/v1/")
        await app.run_actions()
        done = (await client.get(place)).json()
        assert (done["state"], done["changed"]) == ("DONE", 3)
        assert (await client.get("actions")).json()["actions"][0]["id"] == done["id"]
        assert (await client.post(f"{place}/cancel")).json()["state"] == "DONE"
        assert (await client.get("actions/01NONE")).status_code == 404
        for bad in ({"verb": "cancel"}, {"verb": "x", "ids": ["a"]}, {"verb": "cancel", "ids": ["\0"]}):
            assert (await client.post("actions", json=bad)).status_code == 422
