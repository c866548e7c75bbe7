"""The REST surface: documents, search, groups, dead letters, the catalog, operations."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from tests.conftest import StartApp
from tests.integration.test_service import Somebody, problem
from tests.kit.apps import text
from tests.kit.service import client_of

from penstock.api.app import make_api
from penstock.app import App
from penstock.model.nouns import Owner

POEM = b"The penstock feeds the turbine.\n\nThe turbine turns."


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app) as made:
        yield made


async def put(client: httpx2.AsyncClient, source: str, data: bytes = POEM, **values: str) -> str:
    answer = await client.put("documents", params={"source": source, **values}, content=data)
    assert answer.status_code in (200, 201), answer.text
    made: str = answer.json()["id"]
    return made


async def test_documents_are_listed_page_by_page(app: App, client: httpx2.AsyncClient) -> None:
    made = [await put(client, f"{i}.txt", metadata=f'{{"n": {i}}}') for i in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await client.get("documents", params=params)).json()
        seen += [one["id"] for one in page["documents"]]
        if (cursor := page["next"]) is None:
            break
    assert seen == made[::-1]
    found = (await client.get("documents", params={"filter": '{"n": {"$gte": 3}}'})).json()["documents"]
    assert [one["name"] for one in found] == ["4.txt", "3.txt"]
    assert (await client.get("documents", params={"name": "1*"})).json()["documents"][0]["name"] == "1.txt"
    assert (await client.get("documents?status=FAILED")).json()["documents"] == []
    for wrong in ("status=ODD", "filter=x", "filter=[]", 'filter={"$odd":1}', "limit=501", "cursor=" + "x" * 27):
        problem(await client.get(f"documents?{wrong}"), 422)


async def test_a_document_is_followed_to_its_end(app: App, client: httpx2.AsyncClient) -> None:
    made = await put(client, "a.txt")
    first = await client.get(f"documents/{made}")
    tag = first.headers["etag"]
    same = await client.get(f"documents/{made}", headers={"If-None-Match": f'"x", {tag}'})
    assert (same.status_code, same.content) == (304, b"")
    waiting = asyncio.create_task(client.get(f"documents/{made}?wait=20"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await app.run()
    ended = (await waiting).json()
    assert ended["status"] == "COMPLETED"
    assert [step["status"] for step in ended["steps"]] == ["COMPLETED"] * len(ended["steps"])
    changed = await client.get(f"documents/{made}", headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert (await client.get(f"documents/{made}?wait=0.05")).json()["status"] == "COMPLETED"


async def test_a_wait_ends_with_the_server(app: App) -> None:
    api = make_api(app)
    transport = httpx2.ASGITransport(api)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1/") as client:
        made = await put(client, "a.txt")
        waiting = asyncio.create_task(client.get(f"documents/{made}?wait=60"))
        await asyncio.sleep(0.1)
        api.state.service.stopping.set()
        async with asyncio.timeout(2):
            assert (await waiting).json()["status"] == "PENDING"


async def test_a_document_is_changed_and_deleted(app: App, client: httpx2.AsyncClient) -> None:
    made = await put(client, "a.txt", metadata='{"old": 1}')
    changed = await client.patch(f"documents/{made}", json={"set": {"year": 2020}, "remove": ["old"]})
    assert changed.json()["metadata"] == {"year": 2020}
    problem(await client.patch(f"documents/{made}", json={"odd": 1}), 422)
    assert (await client.post(f"documents/{made}/cancel")).json() == {"cancelled": True}
    assert (await client.get(f"documents/{made}")).json()["status"] == "CANCELLED"
    assert (await client.post(f"documents/{made}/retry")).json() == {"retried": True}
    for path in ("penstock.yaml", "/etc/passwd", "..\\x"):
        refused = await client.post(f"documents/{made}/retry", json={"workflow": path})
        assert (refused.status_code, "by its id" in refused.text) == (422, True), "a path is a file of the server"
    assert (await client.delete(f"documents/{made}")).status_code == 204
    problem(await client.get(f"documents/{made}"), 404)
    problem(await client.delete(f"documents/{made}"), 404)


async def test_the_raw_bytes_come_back(client: httpx2.AsyncClient) -> None:
    data = bytes(range(256)) * 9_000
    made = await put(client, "a.bin", data)
    url = f"documents/{made}/raw"
    whole = await client.get(url)
    assert whole.content == data
    assert whole.headers["content-disposition"] == "attachment"
    for asked, part in (("0-0", data[:1]), ("5-9", data[5:10]), ("-3", data[-3:]), (f"{len(data) - 2}-", data[-2:])):
        answer = await client.get(url, headers={"Range": f"bytes={asked}"})
        assert (answer.status_code, answer.content) == (206, part)
    assert (await client.get(url, headers={"Range": "bytes=1-0"})).status_code == 200
    beyond = await client.get(url, headers={"Range": f"bytes={len(data)}-"})
    problem(beyond, 416)
    assert beyond.headers["content-range"] == f"bytes */{len(data)}"
    empty = await put(client, "empty", b"")
    assert (await client.get(f"documents/{empty}/raw")).content == b""


async def test_pages_and_chunks_are_read(app: App, client: httpx2.AsyncClient) -> None:
    made = await put(client, "a.txt", text(200).encode())
    await app.run()
    chunks: list[Any] = []
    cursor: int | None = 0
    while cursor is not None:
        page = (await client.get(f"documents/{made}/chunks?limit=5&cursor={cursor}")).json()
        chunks += page["chunks"]
        cursor = page["next"]
    assert [one["ordinal"] for one in chunks] == list(range(len(chunks)))
    assert len(chunks) > 10
    pages = (await client.get(f"documents/{made}/pages")).json()["pages"]
    assert "subject1" in pages[0]["text"]


async def test_search_finds_what_the_caller_may_see(app: App, client: httpx2.AsyncClient) -> None:
    await put(client, "a.txt", metadata='{"year": 2020}')
    await put(client, "b.txt", metadata='{"year": 2021}')
    await app.run()
    found = (await client.post("search", json={"query": "turbine", "mode": "text", "explain": True})).json()
    assert {hit["name"] for hit in found["hits"]} == {"a.txt", "b.txt"}
    assert found["explain"]["mode"] == "text"
    one = {"query": "turbine", "mode": "text", "filter": {"year": 2021}}
    assert {hit["name"] for hit in (await client.post("search", json=one)).json()["hits"]} == {"b.txt"}
    for wrong in ({}, {"query": "x", "k": 0}, {"query": "x", "rerank": "../x"}, {"query": "x", "odd": 1}):
        problem(await client.post("search", json=wrong), 422)
    problem(await client.post("search", json={"query": "x", "collections": ["none"]}), 404)
    narrow = Somebody(filter={"year": 2020})
    async with client_of(app, narrow) as other:
        assert {hit["name"] for hit in (await other.post("search", json=one | {"filter": None})).json()["hits"]} == {
            "a.txt"
        }
        assert (await other.post("search", json=one)).json()["hits"] == []
        assert [one["name"] for one in (await other.get("documents")).json()["documents"]] == ["a.txt"]
        [hidden] = [one.id for one in await app.list_documents() if one.name == "b.txt"]
        problem(await other.get(f"documents/{hidden}"), 404)
        problem(await other.get("groups"), 403)


async def test_batches_and_groups(app: App, client: httpx2.AsyncClient) -> None:
    await put(client, "a.txt", batch="monday")
    await app.run()
    assert (await client.get("batches")).json()["batches"][0]["name"] == "monday"
    started = await client.post("batches/monday/start", json={"again": True})
    assert started.json()["started"] == 1, started.text
    problem(await client.post("batches/tuesday/start"), 404)
    groups = (await client.get("groups?batch=monday")).json()["groups"]
    shown = (await client.get(f"groups/{groups[0]['id']}")).json()
    assert shown["group"]["total"] == 1
    assert (await client.post(f"groups/{groups[0]['id']}/cancel")).json() == {"cancelled": 1}
    assert (await client.post(f"groups/{groups[0]['id']}/retry?cancelled=true")).json() == {"retried": 1}
    problem(await client.get("groups/none"), 404)


async def test_dead_letters(app: App, client: httpx2.AsyncClient) -> None:
    await put(client, "broken.pdf", b"%PDF-1.4 this is no PDF")
    await app.run()
    found = (await client.get("dead-letters")).json()
    assert found["total"] == 1, found
    number = found["letters"][0]["id"]
    assert (await client.get(f"dead-letters/{number}")).json()["reason"] == found["letters"][0]["reason"]
    problem(await client.get("dead-letters/999"), 404)
    problem(await client.post("dead-letters/replay", json={}), 422)
    assert (await client.post("dead-letters/replay", json={"letters": [number], "dry_run": True})).status_code == 200
    assert (await client.post("dead-letters/discard", json={"letters": [number]})).status_code == 200
    assert (await client.get("dead-letters")).json()["total"] == 0


async def test_the_catalog_and_collections(app: App, client: httpx2.AsyncClient) -> None:
    await put(client, "a.txt", collection="papers")
    assert [one["name"] for one in (await client.get("collections")).json()["collections"]] == ["papers"]
    assert (await client.get("collections/papers")).json()["documents"] == 1
    problem(await client.get("collections/none"), 404)
    assert "default" in [one["id"] for one in (await client.get("workflows")).json()["workflows"]]
    assert (await client.get("parameter-sets")).json()["parameter_sets"][0]["id"] == "default"
    async with client_of(app, Somebody(collections=("mine",))) as other:
        assert (await other.get("collections")).json()["collections"] == []
        problem(await other.get("collections/papers"), 404)
        problem(await other.delete("collections/papers"), 403)
    assert (await client.delete("collections/papers")).json()["documents"] == 1
    problem(await client.delete("collections/papers"), 404)


async def test_operations(app: App, client: httpx2.AsyncClient) -> None:
    await put(client, "a.txt")
    assert (await client.get("status")).json()["documents"] == {"PENDING": 1}
    assert (await client.get("steps")).json()["steps"][0]["status"] == "PENDING"
    assert (await client.get("workers")).json() == {"workers": []}
    assert (await client.get("locks")).json()["locks"] == []
    assert (await client.post("checks")).status_code == 200
    assert (await client.post("maintenance/prune", json={"dry_run": True})).status_code == 200
    assert (await client.post("maintenance/vacuum")).status_code == 200
    problem(await client.post("maintenance/odd"), 422)
    ready = await client.get("http://127.0.0.1/readyz")
    assert ready.json() == {"status": "ok", "ledger": True, "blobs": True, "index": True, "accepting": True}
    metrics = await client.get("http://127.0.0.1/metrics")
    assert "penstock_ledger_up 1" in metrics.text
    assert "<script" not in (await client.get("http://127.0.0.1/docs")).text


PATHS = {
    "document_id": "01M7GZQJXCK1BXB2ZYP1YTP0G8",
    "letter": "1",
    "group": "x",
    "batch": "x",
    "name": "x",
    "verb": "vacuum",
}


async def test_i10_no_operation_shows_or_changes_what_another_owner_has(app: App) -> None:
    """Each operation of the document, with the ids of another owner; and each without its scope."""
    async with client_of(app) as client:
        mine = await put(client, "a.txt", batch="monday", collection="papers")
        group = (await client.get("groups")).json()["groups"][0]["id"]
    there = {**PATHS, "document_id": mine, "group": group, "batch": "monday", "name": "papers"}
    # tests/integration/test_api_walls.py asks those with other ids, too.
    paths = {
        path: {method: spec for method, spec in methods.items() if method != "options"}
        for path, methods in make_api(app).openapi()["paths"].items()
        if set(re.findall(r"{(\w+)}", path)) <= set(there)
    }
    before = (await app.status(mine)).status
    for path, methods in paths.items():
        for method, operation in methods.items():
            if not path.startswith("/api/v1/") or "{" not in path or "maintenance" in path:
                continue
            if "keys" in operation["tags"]:
                # tests/integration/test_api_walls.py
                continue
            async with client_of(app, Somebody(owner=Owner("other"))) as client:
                answer = await client.request(method, f"http://127.0.0.1{path.format(**there)}", json={})
            assert answer.status_code in (404, 422), (operation["operationId"], answer.status_code, answer.text)
            assert "a.txt" not in answer.text
    for path, methods in paths.items():
        for method, operation in methods.items():
            if path.startswith("/api/v1/") and "keys" not in operation["tags"]:
                async with client_of(app, Somebody(scopes=frozenset())) as client:
                    answer = await client.request(
                        method, f"http://127.0.0.1{path.format(**there)}", params={"source": "x"}, json={"query": ""}
                    )
                assert answer.status_code == 403, (path, answer.text)
    assert (await app.status(mine)).status == before


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in the OpenAPI document."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from schemas(inner)


async def test_the_openapi_document_has_only_schemas_of_its_version(app: App) -> None:
    document = make_api(app).openapi()
    found = [one for one in schemas(document) if isinstance(one.get("items"), list) or "prefixItems" in one]
    assert found == []
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert all(
        "401" in one["responses"]
        for path, methods in document["paths"].items()
        if "api" in path
        for one in methods.values()
    )


async def test_names_of_files_do_not_become_headers_or_pages(start_app: StartApp) -> None:
    app = await start_app()
    async with client_of(app) as client:
        made = await put(client, 'a"\r\nSet-Cookie: x=1\r\n.html', b"<script>alert(1)</script>")
        answer = await client.get(f"documents/{made}/raw")
    assert "set-cookie" not in answer.headers
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_documents_are_listed_by_what_they_belong_to(app: App, client: httpx2.AsyncClient) -> None:
    await app.ingest(data=b"one", name="a.txt", batch="monday", wait=False)
    await app.ingest(data=b"two", name="b.txt", batch="monday", hold=True)
    await app.ingest(data=b"\x00\x01\x02", name="c.pdf")
    started = await app.start_batch("monday")

    async def names(**params: Any) -> list[str]:
        answer = await client.get("documents", params=params)
        assert answer.status_code == 200, answer.text
        return [one["name"] for one in answer.json()["documents"]]

    assert await names(batch="monday") == ["b.txt", "a.txt"]
    assert await names(batch="monday", limit=1) == ["b.txt"]
    assert await names(batch="monday", name="a*") == ["a.txt"]
    assert await names(batch="other") == []
    assert started.group is not None
    assert set(await names(group=started.group)) <= {"a.txt", "b.txt"}
    assert "b.txt" in await names(group=started.group)
    assert await names(updated_since=4e9) == []
    assert await names(updated_since=0) == ["c.pdf", "b.txt", "a.txt"]
    assert await names(reason="damaged") == []
    refused = await client.get("documents", params={"batch": "monday", "reason": "damaged"})
    assert (refused.status_code, "one of parent, batch" in refused.json()["detail"]) == (422, True)
