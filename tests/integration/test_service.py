"""The service as a whole: who may call, what errors look like, start and stop."""

import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.kit.service import client_of, serving

from penstock.api.app import make_api
from penstock.api.callers import ALL_SCOPES, Caller, WithoutKeys
from penstock.app import App
from penstock.errors import ConfigError
from penstock.model.callers import KeyScope
from penstock.model.nouns import Owner


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app) as made:
        yield made


class Somebody:
    """Answers with a given caller."""

    def __init__(self, **values: Any) -> None:
        self.caller_is = Caller(**{"owner": Owner("default"), "scopes": ALL_SCOPES, **values})

    async def caller(self, request: Any) -> Caller:
        return self.caller_is

    async def check_bind(self, host: str) -> None: ...


def problem(response: httpx2.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["error"] == body["detail"]
    assert body["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    return body


async def test_errors_are_problems(client: httpx2.AsyncClient) -> None:
    assert problem(await client.get("documents/none"), 404)["type"] == "/problems#not_found"
    assert "limit" in problem(await client.get("documents?limit=0"), 422)["detail"]
    problem(await client.get("nothing"), 404)
    problem(await client.delete("documents"), 405)


async def test_a_wrong_method_names_all_methods_of_the_path(client: httpx2.AsyncClient) -> None:
    for path, allowed in (
        ("documents", "GET, HEAD, PUT, POST"),
        ("documents/x", "GET, HEAD, PATCH, DELETE"),
        ("dead-letters/replay", "POST"),
    ):
        refused = await client.request("OPTIONS", path)
        problem(refused, 405)
        assert refused.headers["allow"] == allowed


async def test_head_has_the_head_of_the_answer_to_get(client: httpx2.AsyncClient) -> None:
    made = (await client.put("documents", params={"source": "a.txt"}, content=b"x" * 3_000)).json()["id"]
    for path in (f"documents/{made}/raw", f"documents/{made}", "http://127.0.0.1/healthz"):
        whole, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == whole.headers["content-length"]
        assert head.headers["content-type"] == whole.headers["content-type"]
    # A stream ends with its head.
    assert (await client.head("events")).headers["content-type"].startswith("text/event-stream")
    assert (await client.head("documents/none")).status_code == 404
    assert (await client.head("uploads/none", headers={"Tus-Resumable": "1.0.0"})).status_code == 404


async def test_an_unexpected_error_shows_no_traceback(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: Any) -> Caller:
        raise ZeroDivisionError("a secret")

    authority = Somebody()
    monkeypatch.setattr(authority, "caller", broken)
    async with client_of(app, authority) as client:
        answer = await client.get("documents")
    assert "secret" not in answer.text
    said = problem(answer, 500)
    assert any(said["request_id"] in record.getMessage() and record.exc_info for record in caplog.records)


async def test_a_missing_scope_is_refused(app: App) -> None:
    async with client_of(app, Somebody(scopes=frozenset({KeyScope.SEARCH}))) as client:
        assert problem(await client.get("documents"), 403)["scope"] == "read"


async def test_i10_another_owner_s_document_is_not_there(app: App) -> None:
    await app.ingest(data=b"some words", name="a.txt", wait=False)
    [document] = await app.list_documents()
    async with client_of(app, Somebody(owner=Owner("other"))) as client:
        problem(await client.get(f"documents/{document.id}"), 404)
        assert (await client.get("documents")).json()["documents"] == []
    async with client_of(app, Somebody(collections=("mine",))) as client:
        problem(await client.get(f"documents/{document.id}"), 404)
        problem(await client.get("documents?collection=default"), 404)
    async with client_of(app) as client:
        assert (await client.get(f"documents/{document.id}")).json()["id"] == document.id
        # Only the id in full is a name.
        problem(await client.get(f"documents/{document.id[:20]}"), 404)
        problem(await client.get("documents/a.txt"), 404)


async def test_without_a_key_only_this_machine_may_call(app: App) -> None:
    async with client_of(app, client="10.1.2.3") as client:
        problem(await client.get("documents"), 401)
    async with client_of(app) as client:
        problem(await client.get("documents", headers={"Host": "rebound.example"}), 403)
        problem(await client.get("documents", headers={"Origin": "http://evil.example"}), 403)
        assert (await client.get("documents", headers={"Origin": "http://127.0.0.1"})).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com"])
async def test_without_a_key_another_address_is_refused(app: App, host: str) -> None:
    with pytest.raises(ConfigError, match="there is no key yet"):
        await WithoutKeys(app).check_bind(host)


async def test_the_access_log_cannot_be_forged(client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.access")
    await client.get("documents/%0Aid=1%20status=200")
    [record] = [record for record in caplog.records if record.name == "penstock.access"]
    assert "\n" not in record.getMessage()
    assert r"\n" in record.getMessage()
    assert "status=404" in record.getMessage()


async def test_a_request_id_is_passed_on_only_if_it_is_harmless(client: httpx2.AsyncClient) -> None:
    given = await client.get("http://127.0.0.1/healthz", headers={"X-Request-ID": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    odd = await client.get("http://127.0.0.1/healthz", headers={"X-Request-ID": "a b\tc"})
    assert odd.headers["x-request-id"] != "a b\tc"


async def test_every_operation_needs_a_caller(app: App) -> None:
    """Except those that say whether the server is alive."""
    api = make_api(app)
    open_paths = {path for path in api.openapi()["paths"] if not path.startswith(("/api/", "/v1/"))}
    assert open_paths == {"/healthz", "/readyz", "/problems", "/metrics"}


def test_a_server_starts_answers_and_stops(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as served:
        assert httpx2.get(f"{served.url}/healthz").json() == {"status": "ok"}
        assert httpx2.get(f"{served.url}/readyz").json()["status"] == "ok"
        assert httpx2.get(f"{served.api}documents").json() == {"documents": [], "next": None}
        with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as stalled:
            stalled.sendall(b"PUT /api/v1/documents?source=x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n")
            assert served.stop(20) == 0


def test_a_port_in_use_is_an_error_of_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "penstock.cli.main", "--home", str(tmp_path), "serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"penstock: cannot listen on 127.0.0.1 port {port}: Address already in use"]
