"""Signing in to the dashboard with an account of a real provider, which authlib serves."""

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

# The provider of the tests speaks HTTP.
os.environ.setdefault("AUTHLIB_INSECURE_TRANSPORT", "1")

from tests.conftest import StartApp
from tests.kit.oidc_server import CLIENT, SECRET, Provider, a_provider

from penstock.app import App
from penstock.errors import ConfigError
from penstock.web.app import make_site

SITE = "http://127.0.0.1"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with a_provider() as made:
        made.redirects.add(f"{SITE}/login/oidc/callback")
        made.account = {"sub": "u1", "email": "anna@acme.example", "tenant": "acme", "groups": ["readers", "other"]}
        yield made


def settings(provider: Provider, **more: Any) -> dict[str, Any]:
    return {
        "issuer": provider.url, "client_id": CLIENT, "client_secret": SECRET, "owner_claim": "tenant",
        "owners": {"acme": "acme"}, "grants": {"readers": ["read", "search"], "editors": ["ingest"]}, **more,
    }  # fmt: skip


@pytest.fixture
async def app(start_app: StartApp, provider: Provider) -> App:
    return await start_app(serve={"oidc": settings(provider)})


@pytest.fixture
async def browser(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    await app.create_key()
    site = make_site(app)
    transport = httpx2.ASGITransport(site, client=("127.0.0.1", 50_000))
    async with httpx2.AsyncClient(transport=transport, base_url=SITE) as made:
        yield made
    for close in site.state.service.closing:
        await close()


async def asked(browser: httpx2.AsyncClient, next: str = "/documents") -> str:
    """The URL of the provider that the browser is sent to."""
    begun = await browser.get("/login/oidc", params={"next": next})
    assert begun.status_code == 303, begun.text
    return begun.headers["location"]


async def provided(url: str) -> str:
    """Where the provider sends the browser back to."""
    async with httpx2.AsyncClient() as there:
        answer = await there.get(url)
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])


async def test_an_account_signs_in_with_the_owner_and_scopes_of_its_claims(
    app: App, browser: httpx2.AsyncClient
) -> None:
    await app.for_owner("acme").ingest(data=b"words", name="of-acme.txt")
    await app.ingest(data=b"words", name="of-another.txt")
    assert "/login/oidc?next=/documents" in (await browser.get("/login?next=/documents")).text
    url = await asked(browser)
    query = parse_qs(urlsplit(url).query)
    assert query["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= set(query)
    done = await browser.get(await provided(url))
    assert done.status_code == 200
    assert 'content="0;url=/documents"' in done.text
    assert "httponly" in done.headers["set-cookie"].lower()
    page = await browser.get("/documents")
    assert "of-acme.txt" in page.text
    assert "of-another.txt" not in page.text
    shown = (await browser.get("/api/v1/session")).json()
    assert (shown["owner"], shown["scopes"]) == ("acme", ["read", "search"])
    assert (await browser.put("/api/v1/documents?source=a", content=b"x")).status_code == 403
    [key] = await app.for_owner("acme").list_keys()
    assert key.name == "oidc anna@acme.example"
    await app.for_owner("acme").revoke_key(key.id)
    assert (await browser.get("/api/v1/session")).status_code == 401


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"tenant": "other"}, "belongs to no owner"),
        ({"tenant": None}, "belongs to no owner"),
        ({"groups": ["other"]}, "may do nothing"),
        ({"groups": {"readers": 1}}, "may do nothing"),
    ],
)
async def test_i10_an_account_that_the_settings_do_not_name_stays_out(
    app: App, browser: httpx2.AsyncClient, provider: Provider, claims: dict[str, Any], said: str
) -> None:
    provider.account |= claims
    answer = await browser.get(await provided(await asked(browser)))
    assert answer.status_code == 401
    assert said in answer.text
    assert "penstock_session" not in browser.cookies
    assert len(await app.for_owner("acme").list_keys()) == 0


async def test_i10_a_callback_that_the_browser_did_not_begin_is_refused(
    app: App, browser: httpx2.AsyncClient, provider: Provider
) -> None:
    stolen = await provided(await asked(browser))
    for change in ("cookie", "state", "none"):
        browser.cookies.clear()
        if change == "cookie":
            await asked(browser)
        elif change == "state":
            begun = await browser.get("/login/oidc")
            cookie = begun.cookies["penstock_oidc"]
            browser.cookies.clear()
            browser.cookies.set("penstock_oidc", cookie[:-1] + ("0" if cookie[-1] != "0" else "1"))
        answer = await browser.get(stolen)
        assert answer.status_code == 401, change
        assert "begin again" in answer.text
    refused = await browser.get("/login/oidc/callback?error=access_denied&state=x")
    assert refused.status_code == 401


async def test_a_code_is_good_once_and_a_token_of_another_issuer_or_key_is_refused(
    app: App, browser: httpx2.AsyncClient, provider: Provider
) -> None:
    back = await provided(await asked(browser))
    assert (await browser.get(back)).status_code == 200
    assert (await browser.get(back)).status_code == 401
    provider.issuer = "http://127.0.0.1:1"
    answer = await browser.get(await provided(await asked(browser)))
    assert answer.status_code == 401
    assert "ID token is not valid" in answer.text
    provider.issuer = ""
    # New keys of the provider are fetched.
    provider.key = Provider().key
    assert (await browser.get(await provided(await asked(browser)))).status_code == 200


async def test_the_path_to_continue_at_is_on_this_server(app: App, browser: httpx2.AsyncClient) -> None:
    done = await browser.get(await provided(await asked(browser, "https://evil.example/")))
    assert 'content="0;url=/"' in done.text


async def test_incomplete_settings_are_refused_and_without_any_there_is_no_way_in(
    start_app: StartApp, provider: Provider
) -> None:
    for more, said in (({"client_secret": ""}, "client_secret"), ({"grants": {"a": ["all"]}}, "no scope")):
        app = await start_app(serve={"oidc": settings(provider, **more)})
        with pytest.raises(ConfigError, match=said):
            make_site(app)
    plain = make_site(await start_app())
    transport = httpx2.ASGITransport(plain, client=("127.0.0.1", 50_000))
    async with httpx2.AsyncClient(transport=transport, base_url=SITE) as browser:
        assert (await browser.get("/login/oidc")).status_code == 404
        assert "Sign in with your account" not in (await browser.get("/login")).text
