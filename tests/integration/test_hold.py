"""Documents that are accepted and not started: they wait, and are started with other values."""

from typing import Any

import httpx2
import pytest
from tests.conftest import StartApp
from tests.integration.test_service_rest import put
from tests.kit.apps import found, named
from tests.kit.service import client_of

from penstock.app import App
from penstock.errors import NotFound
from penstock.model.nouns import Owner

OTTER = b"the otter lives in the river"


async def hold(app: App, data: bytes = OTTER, name: str = "o.txt", **more: Any) -> Any:
    receipts: list[Any] = []
    await app.ingest(data=data, name=name, batch="spring", hold=True, on_receipt=receipts.append, **more)
    return receipts[0]


async def test_a_held_document_waits_until_it_is_started_with_other_values(app: App) -> None:
    receipt = await hold(app, workflow="batch")
    assert (receipt.outcome, receipt.status) == ("held", "HELD")
    assert (await app.run()).completed == 0
    view = await app.status(receipt.id)
    assert (view.status, {step.status for step in view.steps}) == ("HELD", {"PENDING"})
    assert [one.status for one in await app.list_documents(status="HELD")] == ["HELD"]
    assert (await app.list_batches())[0].documents == {"HELD": 1}
    again = await hold(app, workflow="batch")
    assert (again.id, again.outcome, again.status) == (receipt.id, "skipped", "HELD")
    started = await app.start_batch("spring", values={"chunk": {"size": 77}}, priority=3)
    assert (started.started, started.done) == (1, 0)
    assert (await app.run()).completed == 1
    [group] = await app.list_groups(batch="spring")
    assert (group.id, group.workflow, group.total, group.completed) == (started.group, "batch", 1, 1)
    assert await found(app, "otter") == {"o.txt"}
    assert (await app.start_batch("spring", workflow="batch", values={"chunk": {"size": 77}})).done == 1
    assert (await app.check()).problems == []


async def test_a_held_version_leaves_the_former_one_searchable(app: App) -> None:
    await app.ingest(data=b"the heron lives here", name="o.txt")
    receipt = await hold(app)
    assert receipt.outcome == "held"
    assert await found(app, "heron") == {"o.txt"}
    view = await app.status(receipt.id)
    assert (view.status, view.searchable, view.stale) == ("HELD", True, True)
    # Another version takes the place of the one that waits, and is started by itself.
    assert (await hold(app, b"the newt lives here")).outcome == "held"
    assert (await app.start_document(receipt.id)).started == 1
    await app.run()
    assert (await found(app, "newt"), await found(app, "heron")) == ({"o.txt"}, set())
    assert (await app.check()).problems == []


async def test_an_ingest_without_hold_starts_what_is_held(app: App) -> None:
    receipt = await hold(app)
    summary = await app.ingest(data=OTTER, name="o.txt")
    assert (summary.submitted, summary.completed) == (1, 1)
    assert (await app.status(receipt.id)).status == "COMPLETED"


async def test_held_documents_are_cancelled_and_deleted_like_others(app: App) -> None:
    receipt, other = await hold(app), await hold(app, name="p.txt")
    assert (await app.cancel([receipt.id])) == {receipt.id}
    assert (await app.status(receipt.id)).status == "CANCELLED"
    await app.delete([other.id])
    assert [one.status for one in await app.list_documents()] == ["CANCELLED"]
    await app.retry([receipt.id])
    assert (await app.run()).completed == 1
    assert (await app.check()).problems == []


async def test_i10_nobody_starts_held_documents_of_another_owner(app: App) -> None:
    receipt = await hold(app)
    with pytest.raises(NotFound):
        await app.for_owner(Owner("bert")).start_document(receipt.id)
    assert (await app.status(receipt.id)).status == "HELD"


async def test_a_reindex_starts_a_held_version(app: App) -> None:
    await app.ingest(data=b"the heron lives here", name="o.txt")
    await hold(app)
    await app.reindex(again=True)
    assert (await app.status((await named(app, "o.txt")).id)).status == "COMPLETED"
    assert await found(app, "otter") == {"o.txt"}
    assert (await app.check()).problems == []


async def test_held_documents_on_postgres(start_app: StartApp, postgres: str) -> None:
    app = await start_app(database=postgres)
    receipt = await hold(app)
    assert (receipt.outcome, (await app.run()).completed) == ("held", 0)
    assert (await hold(app, b"the newt lives here")).outcome == "held"
    assert (await app.start_batch("spring")).started == 1
    assert (await app.run()).completed == 1
    assert await found(app, "newt") == {"o.txt"}
    assert (await app.check()).problems == []


async def test_uploads_are_held_and_a_batch_is_started_over_http(app: App) -> None:
    async with client_of(app) as client:
        made = await put(client, "a.txt", OTTER, hold="true", batch="spring")
        same = await client.put("documents", params={"source": "a.txt", "hold": "true"}, content=OTTER)
        assert (same.status_code, same.json()["outcome"], same.json()["status"]) == (200, "unchanged", "HELD")
        form = await client.post("documents?hold=true&batch=spring", json={"text": "a newt", "name": "n.txt"})
        assert form.json()["receipts"][0]["outcome"] == "held"
        tus = await _tus(client)
        assert tus["receipt"]["outcome"] == "held"
        done = await client.post("batches/spring/start", json={"values": {"chunk": {"size": 99}}, "priority": 1})
        assert (done.status_code, done.json()["started"]) == (200, 2)
        assert (await client.get(f"documents/{made}")).json()["status"] == "PENDING"
        assert (await client.get(f"documents/{tus['document']}")).json()["status"] == "HELD"


async def _tus(client: httpx2.AsyncClient) -> dict[str, Any]:
    headers = {
        "Tus-Resumable": "1.0.0", "Upload-Length": "5", "Content-Type": "application/offset+octet-stream",
        "Upload-Metadata": "filename eC50eHQ=,hold dHJ1ZQ==",
    }  # fmt: skip
    made = await client.post("uploads", headers=headers, content=b"xyzzy")
    assert made.status_code == 201, made.text
    wrong = await client.post("uploads", headers=headers | {"Upload-Metadata": "filename eC50eHQ=,hold eA=="})
    assert wrong.status_code == 422
    found: dict[str, Any] = (await client.get(f"uploads/{made.headers['location'].rpartition('/')[2]}")).json()
    return found
