"""Keys over HTTP: who gets in, sessions with CSRF tokens, and what the admin may do."""

from collections.abc import AsyncIterator

import httpx2
import pytest
from tests.conftest import StartApp
from tests.kit.service import client_of

from penstock.api.app import make_api
from penstock.app import App
from penstock.ledger.database.connection import Connection, Row


@pytest.fixture
async def app(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url)


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    """From another machine."""
    async with client_of(app, client="10.1.2.3") as made:
        yield made


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", **more}


async def admin(app: App, *scopes: str, **more: object) -> str:
    return (await app.create_key(scopes=scopes or ["admin"], **more)).secret  # type: ignore[arg-type]


async def test_a_key_lets_in_from_everywhere_and_nothing_else_does(app: App, client: httpx2.AsyncClient) -> None:
    assert (await client.get("documents")).status_code == 401
    key = await admin(app, "read")
    assert (await client.get("documents", headers=bearer(key))).status_code == 200
    assert (await client.get("documents", headers={"X-API-Key": key})).status_code == 200
    for headers in ({}, bearer("x"), {"Authorization": key}, {"Authorization": "Basic YTpi"}, bearer(key + "0")):
        refused = await client.get("documents", headers=headers)
        assert (refused.status_code, refused.headers["content-type"]) == (401, "application/problem+json")
        assert refused.headers["www-authenticate"].startswith("Bearer")
    assert (await client.get("keys", headers=bearer(key))).json()["scope"] == "admin"
    async with client_of(app) as local:
        assert (await local.get("documents")).status_code == 401, "this machine needs a key too, once there is one"


async def test_keys_are_managed_over_http(app: App, client: httpx2.AsyncClient) -> None:
    boss = bearer(await admin(app))
    made = await client.post("keys", headers=boss, json={"name": "portal", "scopes": ["read"], "expires_in": 60})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    key, secret = made.json()["key"], made.json()["secret"]
    assert (await client.get("documents", headers=bearer(secret))).status_code == 200
    listed = (await client.get("keys?limit=1", headers=boss)).json()
    rest = (await client.get(f"keys?cursor={listed['next']}", headers=boss)).json()
    assert key["id"] in [one["id"] for one in listed["keys"] + rest["keys"]]
    assert secret not in str(rest) + str(listed)
    assert (await client.delete(f"keys/{key['id']}", headers=boss)).json()["revoked_at"].endswith("Z")
    assert (await client.get("documents", headers=bearer(secret))).status_code == 401
    assert (await client.delete("keys/none", headers=boss)).status_code == 404
    mistakes: list[dict[str, object]] = [
        {"scopes": ["all"]}, {"scopes": []}, {"expires_in": -1}, {"collections": ["../x"]}, {"owner": "b"},
    ]  # fmt: skip
    for wrong in mistakes:
        assert (await client.post("keys", headers=boss, json=wrong)).status_code == 422
    entries = (await client.get("audit?limit=2", headers=boss)).json()["entries"]
    assert [one["action"] for one in entries] == ["key.revoke", "key.create"]
    assert entries[0]["actor"].startswith("key:")


async def test_only_an_admin_acts_for_another_owner(app: App, client: httpx2.AsyncClient) -> None:
    await app.for_owner("anna").ingest(data=b"her words", name="a.txt", wait=False)
    boss, other, limited = await admin(app), await admin(app, "read"), await admin(app, "admin", collections=["a"])
    as_anna = {"X-Penstock-Owner": "anna"}
    found = (await client.get("documents", headers=bearer(boss, **as_anna))).json()["documents"]
    assert [one["name"] for one in found] == ["a.txt"]
    assert (await client.get("documents", headers=bearer(boss))).json()["documents"] == []
    for key in (other, limited):
        assert (await client.get("documents", headers=bearer(key, **as_anna))).status_code == 403
    wrong = bearer(boss, **{"X-Penstock-Owner": "../anna"})
    assert (await client.get("documents", headers=wrong)).status_code == 422


async def test_a_tenant_token_reads_and_makes_nothing(app: App, client: httpx2.AsyncClient) -> None:
    key = bearer(await admin(app))
    made = await client.post("tokens", headers=key, json={"collections": ["a"], "expires_in": 60})
    token = bearer(made.json()["token"])
    assert (await client.get("documents?collection=a", headers=token)).status_code == 200
    assert (await client.get("documents?collection=b", headers=token)).status_code == 404
    for method, path in (("POST", "tokens"), ("POST", "keys"), ("GET", "audit")):
        assert (await client.request(method, path, headers=token, json={})).status_code == 403
    assert (await client.post("session", json={"key": made.json()["token"]})).status_code == 403
    assert (await client.get("session", headers=token)).json()["scopes"] == ["read", "search"]


async def test_a_browser_session_needs_its_csrf_token_for_changes(app: App, client: httpx2.AsyncClient) -> None:
    opened = await client.post("session", json={"key": await admin(app)})
    cookie = opened.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"))
    assert "Secure" not in cookie, "over plain HTTP"
    csrf = opened.json()["csrf"]
    # The client sends the cookie from here on.
    assert (await client.get("documents")).status_code == 200
    assert (await client.get("session")).json()["csrf"] == csrf
    for headers in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": csrf[:-1] + "é"}, {"X-CSRF-Token": "0" * 64}):
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        assert (await client.post("keys", json={}, headers=raw)).status_code == 403
    assert (await client.post("keys", json={}, headers={"X-CSRF-Token": csrf})).status_code == 201
    value = client.cookies["penstock_session"]
    client.cookies.clear()
    assert (await client.get("documents", headers=bearer(value))).status_code == 401, "only as a cookie"
    client.cookies.set("penstock_session", value)
    assert (await client.delete("session", headers={"X-CSRF-Token": csrf})).status_code == 204
    client.cookies.clear()
    client.cookies.set("penstock_session", value)
    assert (await client.get("documents")).status_code == 401


async def test_a_session_over_tls_is_never_sent_in_the_clear(app: App) -> None:
    transport = httpx2.ASGITransport(make_api(app), client=("10.1.2.3", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="https://host/api/v1/") as client:
        opened = await client.post("session", json={"key": await admin(app)})
    assert "Secure" in opened.headers["set-cookie"]


async def test_a_secret_is_not_stored_for_a_repeated_request(app: App, client: httpx2.AsyncClient) -> None:
    headers = bearer(await admin(app), **{"Idempotency-Key": "k1"})
    made = (await client.post("keys", headers=headers, json={"name": "once"})).json()["secret"]
    assert made not in repr(await app.ledger.read(_rows))
    assert await app.ledger.read(_rows) == []


def _rows(connection: Connection) -> list[Row]:
    return connection.script("SELECT * FROM requests")


async def test_a_stored_answer_is_not_for_another_key(app: App, client: httpx2.AsyncClient) -> None:
    boss = bearer(await admin(app), **{"Idempotency-Key": "k1"})
    made = (await app.create_key()).key
    first, second = [await client.delete(f"keys/{made.id}", headers=boss) for _ in range(2)]
    assert (first.json(), second.headers["idempotency-replayed"]) == (second.json(), "true")
    other = bearer(await admin(app, "search"), **{"Idempotency-Key": "k1"})
    assert (await client.delete(f"keys/{made.id}", headers=other)).status_code == 422
