"""The pages for webhooks, and pausing the intake."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from tests.integration.test_webhooks import Receiver
from tests.kit.dashboard import browser as browser
from tests.kit.dashboard import confirmed, hidden, ingest, send, told

from penstock.app import App, open_app
from penstock.errors import PenstockError


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with open_app(home=tmp_path / "home", serve={"private_webhooks": True}) as opened:
        yield opened


async def created(app: App, browser: httpx2.AsyncClient, receiver: Receiver, name: str = "") -> str:
    made = await send(
        browser, "/webhooks", [("url", receiver.url), ("name", name), ("event", "item_end"), ("event", "item_failed")]
    )
    assert made.status_code == 200, made.text
    return (await app.list_webhooks())[-1].id


async def test_a_webhook_is_created_and_its_secret_shown_once(
    app: App, browser: httpx2.AsyncClient, receiver: Receiver
) -> None:
    assert "No webhooks yet" in (await browser.get("/webhooks")).text
    made = await send(browser, "/webhooks", [("url", receiver.url), ("name", "<i>mine</i>"), ("event", "item_end")])
    secret = re.search(r'<code class="secret" tabindex="0">(whsec_[^<]+)</code>', made.text)
    assert secret is not None
    [hook] = await app.list_webhooks()
    for page in (await browser.get("/webhooks"), await browser.get(f"/webhooks/{hook.id}")):
        assert page.status_code == 200
        assert secret[1] not in page.text
        assert "<i>mine" not in page.text
        assert "&lt;i&gt;mine" in page.text
    for wrong in ([("url", "no-url"), ("event", "item_end")], [("url", receiver.url)]):
        assert (await send(browser, "/webhooks", wrong)).status_code == 422


async def test_a_test_is_sent_and_says_what_came_of_it(
    app: App, browser: httpx2.AsyncClient, receiver: Receiver
) -> None:
    hook = await created(app, browser, receiver)
    assert told(await send(browser, f"/webhooks/{hook}/test", [])) == "The test was answered with 204."
    receiver.answers = [(500, {}, "<b>broken</b>")]
    assert "The test failed" in told(await send(browser, f"/webhooks/{hook}/test", []))
    page = (await browser.get(f"/webhooks/{hook}")).text
    assert "<b>broken" not in page
    assert "FAILED" in page


async def test_deliveries_are_listed_and_sent_again(app: App, browser: httpx2.AsyncClient, receiver: Receiver) -> None:
    hook = await created(app, browser, receiver)
    await ingest(app, one="text")
    assert len(receiver.got) == 1
    page = (await browser.get(f"/webhooks/{hook}?status=DELIVERED")).text
    again = re.search(rf'action="(/webhooks/{hook}/deliveries/\d+/redeliver)"', page)
    assert again is not None
    assert "sent again" in told(await send(browser, again[1], []))
    await app.run()
    assert len(receiver.got) == 2
    assert "No deliveries of this kind yet" in (await browser.get(f"/webhooks/{hook}?status=FAILED")).text
    assert (await send(browser, f"/webhooks/{hook}/deliveries/99/redeliver", [])).status_code == 404


async def test_a_webhook_is_disabled_given_a_new_secret_and_deleted(
    app: App, browser: httpx2.AsyncClient, receiver: Receiver
) -> None:
    hook = await created(app, browser, receiver)
    await send(browser, f"/webhooks/{hook}/disable", [])
    assert "DISABLED" in (await browser.get(f"/webhooks/{hook}")).text
    await send(browser, f"/webhooks/{hook}/enable", [])
    assert (await app.webhook(hook)).state == "ACTIVE"
    asked = await send(browser, f"/webhooks/{hook}/secret", [])
    assert "Make a new secret?" in asked.text
    assert "whsec_" in (await confirmed(browser, asked)).text
    await confirmed(browser, await send(browser, f"/webhooks/{hook}/delete", []))
    assert await app.list_webhooks() == []
    assert (await browser.get(f"/webhooks/{hook}")).status_code == 404
    assert (await send(browser, f"/webhooks/{hook}/explode", [])).status_code == 404


async def test_i10_a_webhook_of_another_owner_is_not_found(
    app: App, browser: httpx2.AsyncClient, receiver: Receiver
) -> None:
    theirs = await app.for_owner("other").create_webhook(receiver.url, name="secret-name")
    path = f"/webhooks/{theirs.webhook.id}"
    assert "secret-name" not in (await browser.get("/webhooks")).text
    assert (await browser.get(path)).status_code == 404
    for verb in ("test", "disable", "delete", "secret", "deliveries/1/redeliver"):
        assert (await send(browser, f"{path}/{verb}", [("sure", "yes")])).status_code == 404
    assert (await app.for_owner("other").webhook(theirs.webhook.id)).state == "ACTIVE"
    assert receiver.got == []


async def test_the_intake_is_paused_and_resumed(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, one="text")
    assert "Pause the intake" in (await browser.get("/")).text
    assert "paused" in told(await send(browser, "/intake/pause", [("reason", "<b>disk</b>")]))
    page = (await browser.get("/")).text
    assert "<b>disk" not in page
    assert "The intake is paused" in page
    assert "Resume the intake" in page
    with pytest.raises(PenstockError, match="paused"):
        await ingest(app, two="more text")
    assert "open again" in told(await send(browser, "/intake/resume", []))
    await ingest(app, two="more text")
    key = (await app.create_key(scopes=["read"])).secret
    await send(browser, "/login", [("key", key)])
    page = (await browser.get("/")).text
    assert "Pause the intake" not in page
    assert (await send(browser, "/intake/pause", hidden(page)[:1])).status_code == 403
