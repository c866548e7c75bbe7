"""The MCP server, used by the official client: in the same process, and as the command that an agent starts."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from tests.kit import pdfs

from penstock.api.app import make_api
from penstock.app import App, open_app
from penstock.mcp.access import Access
from penstock.mcp.server import make_server
from penstock.mcp.tools import LONGEST

QUERY = "how fast does the turbine turn?"
TURBINE = "The turbine runs at 375 revolutions a minute."


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with open_app(home=tmp_path / "home") as opened:
        await opened.ingest(data=TURBINE.encode(), name="turbine.txt", metadata={"year": 2020})
        yield opened


async def call(access: Access, tool: str, ingest: bool = True, **arguments: Any) -> dict[str, Any]:
    async with Client(make_server(lambda: access, ingest=ingest)) as client:
        answer = await client.call_tool(tool, arguments)
        assert not answer.is_error, answer.content
        content: dict[str, Any] | None = answer.structured_content
        assert content is not None
        return content


async def error(access: Access, tool: str, **arguments: Any) -> str:
    async with Client(make_server(lambda: access, ingest=True)) as client:
        answer = await client.call_tool(tool, arguments)
        assert answer.is_error
        return str(answer.content[0].text)  # type: ignore[union-attr]


async def test_an_agent_finds_a_passage_and_reads_its_document(app: App) -> None:
    access = Access(app)
    found = await call(access, "search", query=QUERY)
    [result] = found["results"]
    assert (result["text"], result["title"], result["page"]) == (TURBINE, "turbine.txt", 1)
    assert result["metadata"]["year"] == 2020
    read = await call(access, "fetch", id=result["id"])
    assert (read["text"], read["pages"], read["next_page"]) == (TURBINE, 1, None)
    async with Client(make_server(lambda: access, ingest=False)) as client:
        page = await client.read_resource(result["url"])
        assert page.contents[0].text == TURBINE  # type: ignore[union-attr]


async def test_tools_that_read_say_so_and_others_are_offered_only_on_request(app: App) -> None:
    async with Client(make_server(lambda: Access(app), ingest=False)) as client:
        tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
    assert set(tools) == {"search", "fetch", "list_documents", "document_status"}
    assert all(hints is not None and hints.read_only_hint for hints in tools.values())
    async with Client(make_server(lambda: Access(app), ingest=True)) as client:
        more = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
    added = {name: hints for name, hints in more.items() if name not in tools}
    assert set(added) == {"ingest_text", "ingest_url", "retry"}
    assert not any(hints is None or hints.read_only_hint for hints in added.values())


async def test_a_long_document_is_read_in_parts(app: App, tmp_path: Path) -> None:
    lines = [[f"Line {line} of page {n} says what it is." for line in range(40)] for n in range(1, 41)]
    (tmp_path / "long.pdf").write_bytes(pdfs.pdf(*[pdfs.page(*some) for some in lines]))
    await app.ingest(tmp_path / "long.pdf")
    whole = [page.text async for page in app.show("long.pdf", "pages")]
    parts: list[dict[str, Any]] = []
    page: int | None = 1
    while page is not None:
        parts.append(await call(Access(app), "fetch", id="long.pdf", page=page))
        page = parts[-1]["next_page"]
    assert len(parts) > 1
    assert "\n\n".join(part["text"] for part in parts) == "\n\n".join(whole)
    assert all(len(part["text"]) <= LONGEST + 10 for part in parts)


async def test_every_failure_is_an_error(app: App) -> None:
    access = Access(app, can_ingest=True)
    assert "no document" in await error(access, "fetch", id="nothing.txt")
    assert "no page 9" in await error(access, "fetch", id="turbine.txt", page=9)
    assert "no collection" in await error(access, "search", query=QUERY, collection="missing")
    assert "filter" in await error(access, "search", query=QUERY, filter={"year": {"$nope": 1}})
    assert "private address" in await error(access, "ingest_url", url="http://127.0.0.1:1/")
    assert "fetch" in await error(access, "fetch", id="turbine.txt", page=0)
    await app.submit(data=b"not processed yet", name="later.txt").__anext__()
    assert "PENDING" in await error(access, "fetch", id="later.txt")
    async with Client(make_server(lambda: access, ingest=False)) as client:
        for uri in ("penstock://documents/turbine.txt/pages/9", "penstock://documents/x/pages/1"):
            with pytest.raises(MCPError, match="no "):
                await client.read_resource(uri)
        with pytest.raises(MCPError, match="expected a number"):
            await client.read_resource("penstock://documents/turbine.txt/pages/one")


async def test_an_unexpected_error_tells_the_agent_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("secret-value")

    monkeypatch.setattr(type(app), "search", broken)
    assert "secret-value" not in await error(Access(app), "search", query=QUERY)


async def test_an_agent_that_may_only_read_cannot_submit(app: App) -> None:
    access = Access(app, can_ingest=False)
    for tool, arguments in (
        ("ingest_text", {"name": "a.txt", "text": "x"}),
        ("ingest_url", {"url": "https://example.org/"}),
        ("retry", {"id": "turbine.txt"}),
    ):
        assert "may only read" in await error(access, tool, **arguments)
    assert len(await app.list_documents()) == 1


async def test_i10_an_agent_sees_only_its_owner_and_its_collections(app: App) -> None:
    await app.ingest(data=b"The secret turbine turns at 9 revolutions.", name="secret.txt", collection="secret")
    [secret] = await app.list_documents(collection="secret")
    outside = Access(app.for_owner("other"), can_ingest=True)
    assert "no " in await error(outside, "fetch", id=secret.id)
    assert (await call(outside, "list_documents"))["documents"] == []
    limited = Access(app, can_ingest=True, collections=("default",))
    assert [one["title"] for one in (await call(limited, "search", query=QUERY))["results"]] == ["turbine.txt"]
    assert [one["name"] for one in (await call(limited, "list_documents"))["documents"]] == ["turbine.txt"]
    for tool in ("fetch", "document_status", "retry"):
        assert "no document" in await error(limited, tool, id=secret.id)
    assert "no collection" in await error(limited, "search", query=QUERY, collection="secret")
    assert "no collection" in await error(limited, "list_documents", collection="secret")
    assert "no collection" in await error(limited, "ingest_text", name="a.txt", text="x", collection="secret")
    async with Client(make_server(lambda: limited, ingest=False)) as client:
        with pytest.raises(MCPError, match="no document"):
            await client.read_resource(f"penstock://documents/{secret.id}/pages/1")


async def test_lists_are_read_page_by_page(app: App) -> None:
    for n in range(4):
        await app.ingest(data=b"text", name=f"{n}.txt")
    names: list[str] = []
    after = None
    while True:
        part = await call(Access(app), "list_documents", limit=2, **({"after": after} if after else {}))
        names += [one["name"] for one in part["documents"]]
        if (after := part["next"]) is None:
            break
    assert names == ["3.txt", "2.txt", "1.txt", "0.txt", "turbine.txt"]


def command(home: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", "mcp", "--home", str(home), *options]


async def test_an_agent_starts_the_command_and_ingests(tmp_path: Path) -> None:
    words = command(tmp_path / "home", "--ingest")
    async with Client(stdio_client(StdioServerParameters(command=words[0], args=words[1:]))) as client:
        made = await client.call_tool("ingest_text", {"name": "crane.md", "text": "# Hall\n\nThe crane lifts 40 tons."})
        assert made.structured_content is not None
        async with asyncio.timeout(60):
            while True:
                told = await client.call_tool("document_status", {"id": made.structured_content["id"]})
                assert told.structured_content is not None
                if told.structured_content["searchable"]:
                    break
                await asyncio.sleep(0.05)
        found = await client.call_tool("search", {"query": "what does the crane lift?"})
        assert found.structured_content is not None
        assert "40 tons" in found.structured_content["results"][0]["text"]


def test_the_command_ends_when_it_is_told_to_while_its_client_says_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path / "home"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    # The answer to a ping shows that it listens.
    process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    process.stdin.flush()
    assert b'"id":1' in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()


@asynccontextmanager
async def over_http(app: App, key: str = "") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    transport = httpx2.ASGITransport(app=make_api(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
        async with Client(streamable_http_client("http://127.0.0.1/mcp", http_client=http)) as client:
            yield client


async def test_an_agent_uses_the_tools_over_http(app: App) -> None:
    async with over_http(app) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} >= {"search", "fetch", "ingest_text"}
        found = await client.call_tool("search", {"query": QUERY})
        assert found.structured_content is not None
        assert found.structured_content["results"][0]["text"] == TURBINE
        failed = await client.call_tool("fetch", {"id": "nothing.txt"})
        assert failed.is_error


async def test_i10_over_http_a_key_says_what_an_agent_may_do(app: App) -> None:
    await app.ingest(data=b"The secret turbine turns at 9 revolutions.", name="secret.txt", collection="secret")
    theirs = app.for_owner("other")
    await theirs.ingest(data=b"Their turbine turns too.", name="theirs.txt")
    reader = (await app.create_key(scopes=("search", "read"), collections=["default"])).secret
    other = (await theirs.create_key(scopes=("search", "read", "ingest"))).secret
    async with over_http(app, reader) as mine, over_http(app, other) as foreign:
        assert "ingest_text" not in {tool.name for tool in (await mine.list_tools()).tools}
        assert "ingest_text" in {tool.name for tool in (await foreign.list_tools()).tools}
        for client, name in ((mine, "turbine.txt"), (foreign, "theirs.txt")):
            listed = (await client.call_tool("list_documents", {})).structured_content
            assert listed is not None
            assert [one["name"] for one in listed["documents"]] == [name]


async def test_over_http_a_request_without_a_key_is_refused(app: App) -> None:
    searcher = (await app.create_key(scopes=("search",))).secret
    transport = httpx2.ASGITransport(app=make_api(app))
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.post("/mcp", json=ping)).status_code == 401
        refused = await http.post("/mcp", json=ping, headers={"Authorization": f"Bearer {searcher}"})
        assert refused.status_code == 403
        assert refused.headers["content-type"] == "application/problem+json"
        assert (await http.get("/mcp")).status_code == 405
