"""The pages for keys, the audit log, steps, workers and locks."""

import re
from contextlib import AsyncExitStack

import httpx2
import pytest
from tests.kit.dashboard import app as app
from tests.kit.dashboard import browser as browser
from tests.kit.dashboard import confirmed, hidden, ingest, send, told

from penstock.app import App
from penstock.errors import LeaseLost


def secret(page: str) -> str:
    found = re.search(r'<code class="secret" tabindex="0">(pk_[^<]+)</code>', page)
    assert found is not None
    return found[1]


async def test_the_first_key_is_shown_once_and_then_needed(app: App, browser: httpx2.AsyncClient) -> None:
    first = (await browser.get("/keys")).text
    assert "There is no key yet" in first
    assert re.search(r'value="admin" checked', first)
    made = await send(browser, "/keys", [("name", "<b>me</b>"), ("scope", "admin"), ("days", "30")])
    assert made.status_code == 200
    assert "no-store" in made.headers["cache-control"]
    key = secret(made.text)
    assert "<b>me" not in made.text
    assert (await browser.get("/keys")).headers["location"].startswith("/login")
    await send(browser, "/login", [("key", key)])
    page = (await browser.get("/keys")).text
    assert key not in page
    assert "&lt;b&gt;me" in page
    assert "active" in page
    audit = (await browser.get("/audit")).text
    assert "key.create" in audit
    assert "session.create" in audit
    assert "session.create" not in (await browser.get("/audit?action=key.create")).text.partition("<tbody>")[2]


async def test_a_key_is_revoked_after_a_question(app: App, browser: httpx2.AsyncClient) -> None:
    admin = await app.create_key(scopes=["admin"])
    other = await app.create_key(scopes=["read"], name="other")
    await send(browser, "/login", [("key", admin.secret)])
    csrf = hidden((await browser.get("/keys")).text)[:1]
    path = f"/keys/{other.key.id}/revoke"
    assert (await send(browser, path, [])).status_code == 403
    asked = await send(browser, path, csrf)
    assert "Revoke this key?" in asked.text
    assert all(key.revoked_at is None for key in await app.list_keys())
    assert "is revoked" in told(await confirmed(browser, asked))
    assert "revoked" in (await browser.get("/keys")).text
    assert [key.id for key in await app.list_keys() if key.revoked_at is not None] == [other.key.id]
    own = await send(browser, f"/keys/{admin.key.id}/revoke", csrf)
    assert "you are signed in with" in own.text


async def test_a_key_that_may_only_read_sees_no_page_of_the_operator(app: App, browser: httpx2.AsyncClient) -> None:
    key = await app.create_key(scopes=["read"])
    await send(browser, "/login", [("key", key.secret)])
    page = (await browser.get("/")).text
    for path in ("/keys", "/audit", "/steps", "/workers", "/upload", "/search"):
        assert f'href="{path}"' not in page.partition("</nav>")[0]
        assert (await browser.get(path)).status_code == 403
    assert (await send(browser, "/keys", hidden(page)[:1])).status_code == 403


async def test_i10_keys_and_changes_of_another_owner_are_not_shown(app: App, browser: httpx2.AsyncClient) -> None:
    theirs = await app.for_owner("other").create_key(name="secret-name", scopes=["admin"])
    mine = await app.create_key(scopes=["admin"])
    await send(browser, "/login", [("key", mine.secret)])
    page = await browser.get("/keys")
    assert "secret-name" not in page.text
    assert theirs.key.id not in (await browser.get("/audit")).text
    csrf = hidden(page.text)[:1]
    answer = await send(browser, f"/keys/{theirs.key.id}/revoke", [*csrf, ("sure", "yes")])
    assert answer.status_code == 404
    assert (await app.for_owner("other").list_keys())[0].revoked_at is None


async def test_a_wrong_key_form_says_what_to_do(browser: httpx2.AsyncClient) -> None:
    for fields in ([("days", "")], [("scope", "read"), ("days", "7")], [("scope", "all"), ("days", "")]):
        answer = await send(browser, "/keys", fields)
        assert answer.status_code == 422
        assert 'role="alert"' in answer.text


async def test_steps_that_make_no_progress_come_first(app: App, browser: httpx2.AsyncClient) -> None:
    async for _ in app.submit(data=b"text", name="waits.txt"):
        pass
    assert "waits.txt" not in (await browser.get("/steps")).text
    assert "waits.txt" in (await browser.get("/steps?status=PENDING")).text
    assert "waits.txt" not in (await browser.get("/steps?status=PENDING&kind=embed")).text
    assert (await browser.get("/steps?status=LOST")).status_code == 422


async def test_a_lock_is_released_after_a_question(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, one="text")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.hold_index())
        page = (await browser.get("/workers")).text
        key = dict(hidden(page.partition('action="/locks/release"')[2]))["key"]
        asked = await send(browser, "/locks/release", [("key", key)])
        assert "Release this lock by force?" in asked.text
        assert "released" in told(await confirmed(browser, asked))
        assert "Locks that were released by force" in (await browser.get("/workers")).text
        with pytest.raises(LeaseLost):
            await stack.aclose()
