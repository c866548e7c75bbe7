"""Webhooks that owners create: signed, durable, held while they fail, disabled after long failure, and behind walls."""

import asyncio
import base64
import hashlib
import hmac
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conftest import StartApp
from tests.integration.test_webhooks import BAD, Receiver
from tests.kit.apps import until
from tests.kit.cli import COMMAND
from tests.kit.service import client_of

from penstock.app import App
from penstock.errors import NotFound, UsageError
from penstock.events import retry, sender, signing
from penstock.ledger.database.connection import Connection
from penstock.ledger.engine.webhook_sending import LONG_S
from penstock.ledger.engine.webhooks import WebhookDelivery


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "WEBHOOK_S", 0.05)


PRIVATE: dict[str, Any] = {"serve": {"private_webhooks": True}}


@pytest.fixture
async def app(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url, **PRIVATE)


@pytest.fixture
async def small(start_app: StartApp) -> App:
    """On SQLite only."""
    return await start_app(**PRIVATE)


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app) as made:
        yield made


async def script(app: App, text: str) -> None:
    def run() -> None:
        connection: Connection = app.ledger.database.connect()
        connection.script(text)
        connection.close()

    await app.runtime.run_blocking("read", run)


async def deliveries(app: App, webhook: str, **options: Any) -> list[WebhookDelivery]:
    return await app.list_webhook_deliveries(webhook, **options)


def test_the_signature_is_that_of_the_standard() -> None:
    """The example of the libraries of Standard Webhooks."""
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    made = signing.signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_i8_what_ends_is_told_and_signed(app: App, receiver: Receiver) -> None:
    made = await app.create_webhook(receiver.url, events=["item_end", "item_failed", "group_end"])
    assert made.secret.startswith("whsec_")
    assert made.secret not in repr(made.webhook)
    await app.ingest(data=b"words", name="a.txt")
    await app.ingest(data=BAD, name="b.bin")
    told = {(event["kind"], event["name"], event["status"]): event for event in receiver.events}
    assert set(told) == {
        ("ITEM_END", "a.txt", "COMPLETED"), ("ITEM_FAILED", "b.bin", "FAILED"), ("GROUP_END", None, None),
    }  # fmt: skip
    assert told["ITEM_END", "a.txt", "COMPLETED"]["meta"] == {"pages": 1, "chunks": 1}
    failed = told["ITEM_FAILED", "b.bin", "FAILED"]
    assert failed["meta"]["reason"]
    assert failed["error"]
    assert failed["workflow"] == "default"
    assert sum(event["kind"] == "GROUP_END" for event in receiver.events) == 2
    key = base64.b64decode(made.secret.removeprefix("whsec_"))
    for headers, body, _ in receiver.got:
        signed = f"{headers['Webhook-Id']}.{headers['Webhook-Timestamp']}.".encode() + body
        wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert headers["Webhook-Signature"] == f"v1,{wanted}"
        assert headers["Webhook-Id"] == json.loads(body)["id"]
    ended = await deliveries(app, made.webhook.id)
    assert {one.status for one in ended} == {"DELIVERED"}
    assert {one.attempts for one in ended} == {1}
    assert [one.id for one in ended] == sorted((one.id for one in ended), reverse=True)


async def test_only_chosen_events_and_collections_are_told(small: App, receiver: Receiver) -> None:
    await small.create_webhook(receiver.url, events=["item_end"], collections=["wanted"])
    for collection in ("wanted", "other"):
        await small.ingest(data=b"words", name="a.txt", collection=collection)
        await small.ingest(data=BAD, name="b.bin", collection=collection)
    assert [(event["kind"], event["collection"]) for event in receiver.events] == [("ITEM_END", "wanted")]


async def test_i10_no_owner_hears_of_another_or_sees_its_webhooks(small: App, receiver: Receiver) -> None:
    anna, bert = small.for_owner("anna"), small.for_owner("bert")
    hers = (await anna.create_webhook(receiver.url)).webhook.id
    await bert.ingest(data=b"words", name="a.txt")
    assert receiver.got == []
    assert await anna.list_webhook_deliveries(hers) == []
    await anna.ingest(data=b"words", name="a.txt")
    [told] = await anna.list_webhook_deliveries(hers)
    for call in (
        bert.webhook(hers),
        bert.change_webhook(hers, active=False),
        bert.delete_webhook(hers),
        bert.test_webhook(hers),
        bert.list_webhook_deliveries(hers),
        bert.redeliver_webhook(hers, told.id),
    ):
        with pytest.raises(NotFound):
            await call
    assert await bert.list_webhooks() == []
    assert len(receiver.got) == 1
    own = (await bert.create_webhook(receiver.url)).webhook.id
    with pytest.raises(NotFound):
        await bert.redeliver_webhook(own, told.id)


async def test_a_cancelled_document_and_one_without_text_are_told(small: App, receiver: Receiver) -> None:
    hook = (await small.create_webhook(receiver.url)).webhook.id
    await small.ingest(data=b"words", name="a.txt", wait=False)
    [document] = await small.list_documents()
    await small.cancel([document.id])
    await small.ingest(data=b"  ", name="blank.txt")
    assert {(e["name"], e["status"]) for e in receiver.events} == {
        ("a.txt", "CANCELLED"),
        ("blank.txt", "NOT_INDEXABLE"),
    }
    assert len(await deliveries(small, hook)) == 2


async def test_one_that_fails_is_held_and_tried_one_at_a_time(app: App, receiver: Receiver) -> None:
    hook = (await app.create_webhook(receiver.url)).webhook.id
    receiver.answers = [(500, {}, "down")] * 3
    for i in range(6):
        await app.ingest(data=f"words {i}".encode(), name=f"{i}.txt", wait=False)

    async def told() -> bool:
        await app.run()
        return all(one.status == "DELIVERED" for one in await deliveries(app, hook))

    await until(told)
    found = await deliveries(app, hook)
    assert len({headers["Webhook-Id"] for headers, _, _ in receiver.got}) == 6
    assert sum(one.attempts for one in found) == len(receiver.got) <= 6 + 3
    assert (await app.webhook(hook)).failing_since is None


async def test_a_failure_is_shown_with_the_answer(
    small: App, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "WEBHOOK_S", 1e6)
    monkeypatch.setattr(retry, "WEBHOOK_CAP_S", 1e6)
    hook = (await small.create_webhook(receiver.url)).webhook.id
    receiver.answers = [(503, {}, "come again")]
    await small.ingest(data=b"words", name="a.txt")
    [one] = await deliveries(small, hook)
    assert (one.status, one.answer_status, one.answer, one.error) == ("PENDING", 503, "come again", "it answered 503")
    assert one.retry_at is not None
    assert one.retry_at > time.time()
    held = await small.webhook(hook)
    assert held.failing_since is not None
    assert held.held_until is not None
    assert held.held_until > time.time()
    await small.ingest(data=b"more words", name="b.txt")
    assert len(receiver.got) == 1, "the next waits, too"


async def test_after_long_failure_it_is_disabled_with_a_reason(
    app: App, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "WEBHOOK_S", 1e3)
    hook = (await app.create_webhook(receiver.url)).webhook.id
    receiver.answers = [(500, {}, "")]
    await app.ingest(data=b"words", name="a.txt")
    long_ago = time.time() - LONG_S - 1
    await script(app, f"UPDATE webhooks SET failing_since = {long_ago}, held_until = 0")
    await script(app, "UPDATE webhook_deliveries SET not_before = 0")
    receiver.answers = [(500, {}, "")]
    await app.run()
    disabled = await app.webhook(hook)
    assert disabled.state == "DISABLED"
    assert disabled.reason is not None
    assert "no delivery succeeded for 3 days" in disabled.reason
    assert "500" in disabled.reason
    assert [one.status for one in await deliveries(app, hook)] == ["FAILED"]
    assert "webhook.disable" in {entry.action for entry in await app.list_audit()}
    with pytest.raises(UsageError, match="enable it first"):
        await app.redeliver_webhook(hook, (await deliveries(app, hook))[0].id)
    await app.ingest(data=b"other words", name="b.txt")
    assert len(receiver.got) == 2, "nothing is sent to one that is disabled"
    assert (await app.change_webhook(hook, active=True)).webhook.reason is None
    await app.redeliver_webhook(hook, (await deliveries(app, hook))[0].id)
    await app.run()
    assert [one.status for one in await deliveries(app, hook)] == ["DELIVERED"]


async def test_410_disables_it_at_once(small: App, receiver: Receiver) -> None:
    hook = (await small.create_webhook(receiver.url)).webhook.id
    receiver.answers = [(410, {}, "")]
    await small.ingest(data=b"words", name="a.txt")
    assert (await small.webhook(hook)).state == "DISABLED"
    assert len(receiver.got) == 1


async def test_a_slow_one_delays_no_other(small: App, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "TIMEOUT_S", 4.0)
    slow = Receiver()
    slow.answers = [lambda: time.sleep(5)] * 50
    try:
        await small.for_owner("anna").create_webhook(slow.url)
        for i in range(20):
            await small.for_owner("anna").ingest(data=f"words {i}".encode(), name=f"{i}.txt", wait=False)
        bert = small.for_owner("bert")
        await bert.create_webhook(receiver.url)
        await bert.ingest(data=b"words", name="a.txt", wait=False)
        working = asyncio.create_task(small.work())

        async def told() -> bool:
            return bool(receiver.got)

        await until(told, seconds=30)
        assert len(slow.got) <= sender.AT_ONCE
        small.stop()
        await working
    finally:
        slow.close()


async def test_private_addresses_are_refused_unless_allowed(start_app: StartApp, receiver: Receiver) -> None:
    app = await start_app()
    for url in (receiver.url, "http://localhost:1/", "https://10.0.0.1/", "http://[::1]/", "http://169.254.169.254/"):
        with pytest.raises(UsageError, match="private address"):
            await app.create_webhook(url)
    for url in ("ftp://example.com", "x", "http://"):
        with pytest.raises(UsageError):
            await app.create_webhook(url)
    hook = (await app.create_webhook("https://93.184.216.34/hook")).webhook.id
    # A name may lead to a private address later.
    await script(app, f"UPDATE webhooks SET url = '{receiver.url}'")
    sent = await app.test_webhook(hook)
    assert sent.status == "FAILED"
    assert "private address" in (sent.error or "")
    assert receiver.got == []


async def test_a_deleted_webhook_is_told_nothing_and_prune_removes_its_deliveries(
    app: App, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "WEBHOOK_S", 1e3)
    hook = (await app.create_webhook(receiver.url)).webhook.id
    receiver.answers = [(500, {}, "")]
    await app.ingest(data=b"words", name="a.txt")
    await app.delete_webhook(hook)
    await app.run()
    assert len(receiver.got) == 1
    with pytest.raises(NotFound):
        await deliveries(app, hook)
    await script(app, "UPDATE webhook_deliveries SET created_at = 0")
    assert (await app.prune(older_than_s=0)).webhook_deliveries == 1


async def test_the_routes(app: App, client: httpx2.AsyncClient, receiver: Receiver) -> None:
    made = await client.post("webhooks", json={"url": receiver.url, "events": ["item_end"], "name": "desk"})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    hook, secret = made.json()["webhook"], made.json()["secret"]
    shown = (await client.get(f"webhooks/{hook['id']}")).json()
    assert shown == hook
    assert "secret" not in shown
    assert secret not in json.dumps((await client.get("webhooks")).json())
    await app.ingest(data=b"words", name="a.txt")
    await app.ingest(data=b"other", name="b.txt")
    page = (await client.get(f"webhooks/{hook['id']}/deliveries?limit=1")).json()
    rest = (await client.get(f"webhooks/{hook['id']}/deliveries?limit=1&cursor={page['next']}")).json()
    assert [page["deliveries"][0]["status"], rest["deliveries"][0]["status"]] == ["DELIVERED"] * 2
    assert page["deliveries"][0]["id"] > rest["deliveries"][0]["id"]
    again = await client.post(f"webhooks/{hook['id']}/deliveries/{rest['deliveries'][0]['id']}/redeliver")
    assert again.status_code == 202
    assert again.json()["status"] == "PENDING"
    await app.run()
    ids = [headers["Webhook-Id"] for headers, _, _ in receiver.got]
    assert len(ids) == 3
    assert len(set(ids)) == 2
    tested = (await client.post(f"webhooks/{hook['id']}/test")).json()
    assert (tested["event"], tested["status"], tested["answer_status"]) == ("TEST", "DELIVERED", 204)
    changed = (await client.patch(f"webhooks/{hook['id']}", json={"active": False, "new_secret": True})).json()
    assert changed["webhook"]["state"] == "DISABLED"
    assert changed["secret"] not in (None, secret)
    assert (await client.patch(f"webhooks/{hook['id']}", json={"collections": ["a"]})).json()["secret"] is None
    assert (await client.patch(f"webhooks/{hook['id']}", json={"collections": None})).json()["webhook"][
        "collections"
    ] is None
    assert (await client.delete(f"webhooks/{hook['id']}")).status_code == 204
    assert (await client.delete(f"webhooks/{hook['id']}")).status_code == 404
    for wrong in (
        {"url": receiver.url, "events": ["step_end"]},
        {"url": "x"},
        {"url": receiver.url, "collections": []},
    ):
        assert (await client.post("webhooks", json=wrong)).status_code == 422


@pytest.mark.parametrize("place", ["ledger.take_webhooks.after", "ledger.settle_webhook.before"])
async def test_i8_a_killed_worker_loses_no_delivery(start_app: StartApp, receiver: Receiver, place: str) -> None:
    app = await start_app(**PRIVATE)
    hook = (await app.create_webhook(receiver.url)).webhook.id
    await app.ingest(data=b"words", name="a.txt", wait=False)
    home = Path(app.config.home)
    command = [*COMMAND, "--home", str(home), "run"]
    settings = {"PENSTOCK_EMBEDDER": "fake", "PENSTOCK_SERVE__PRIVATE_WEBHOOKS": "true", "PATH": "/usr/bin:/bin"}
    killed = await app.runtime.run_blocking(
        "io", lambda: subprocess.run(command, env={**settings, "PENSTOCK_FAILPOINTS": f"{place}=kill@1"}, timeout=120)
    )
    assert killed.returncode == -signal.SIGKILL
    assert [one.status for one in await deliveries(app, hook)] == ["PENDING"]
    assert len(receiver.got) == (0 if "take" in place else 1)

    async def told() -> bool:
        await app.run()
        return [one.status for one in await deliveries(app, hook)] == ["DELIVERED"]

    await until(told)
    assert len({headers["Webhook-Id"] for headers, _, _ in receiver.got}) == 1
    assert len(receiver.got) == (1 if "take" in place else 2)
