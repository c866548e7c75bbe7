"""Resumable uploads by the real tus client, and the change feed, over HTTP."""

import asyncio
import base64
import hashlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conftest import StartApp
from tests.kit.service import Served, client_of, serving
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError
from tusclient.uploader.uploader import Uploader

from penstock.app import App

TUS = {"Tus-Resumable": "1.0.0"}
BYTES = {"Content-Type": "application/offset+octet-stream"}
SIZE, KILLS = (1 << 30, 20) if os.environ.get("PENSTOCK_LONG") else (30 << 20, 3)
CHUNK = 4 << 20


@pytest.fixture
async def app(start_app: StartApp) -> App:
    return await start_app()


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app) as made:
        yield made


def metadata(**given: str) -> dict[str, str]:
    pairs = (f"{name} {base64.b64encode(value.encode()).decode()}" for name, value in given.items())
    return {"Upload-Metadata": ",".join(pairs)}


async def begin(client: httpx2.AsyncClient, size: int, **given: str) -> str:
    made = await client.post("uploads", headers=TUS | {"Upload-Length": str(size)} | metadata(**given))
    assert made.status_code == 201, made.text
    return made.headers["location"].removeprefix("/api/v1/")


async def test_the_life_of_an_upload(app: App, client: httpx2.AsyncClient) -> None:
    options = await client.options("uploads")
    assert options.headers["tus-extension"] == "creation,creation-with-upload,checksum,expiration,termination"
    place = await begin(client, 10, filename="a.txt", collection="notes", metadata='{"year": 2024}', strange="x")
    patch = {**TUS, **BYTES, "Upload-Offset": "0"}
    first = await client.patch(place, headers=patch, content=b"12345")
    assert (first.status_code, first.headers["upload-offset"]) == (204, "5")
    assert "upload-expires" in first.headers
    look = await client.head(place, headers=TUS)
    assert (look.headers["upload-offset"], look.headers["upload-length"]) == ("5", "10")
    assert look.headers["cache-control"] == "no-store"
    assert "strange" in look.headers["upload-metadata"]
    wrong = await client.patch(place, headers=patch, content=b"67890")
    assert (wrong.status_code, wrong.json()["status"]) == (409, 409)
    last = await client.patch(place, headers=patch | {"Upload-Offset": "5"}, content=b"67890")
    document = last.headers["penstock-document"]
    [entry] = await app.list_documents()
    assert (entry.id, entry.name, entry.collection, entry.metadata["year"]) == (document, "a.txt", "notes", 2024)
    assert (await client.head(place, headers=TUS)).headers["penstock-document"] == document
    assert (await client.get(place)).json()["receipt"]["outcome"] == "created"
    assert (await client.delete(place, headers=TUS)).status_code == 204
    assert (await client.head(place, headers=TUS)).status_code == 404
    assert len(await app.list_documents()) == 1


async def test_a_creation_with_all_bytes(app: App, client: httpx2.AsyncClient) -> None:
    headers = TUS | BYTES | {"Upload-Length": "5"} | metadata(filename="../../etc/passwd")
    made = await client.post("uploads", headers=headers, content=b"words")
    assert (made.status_code, made.headers["upload-offset"]) == (201, "5")
    assert made.headers["penstock-document"]
    [entry] = await app.list_documents()
    assert entry.name == "passwd"


async def test_a_wrong_checksum_keeps_nothing(client: httpx2.AsyncClient) -> None:
    place = await begin(client, 5, filename="a.txt")
    patch = {**TUS, **BYTES, "Upload-Offset": "0"}
    bad = base64.b64encode(hashlib.sha1(b"other", usedforsecurity=False).digest()).decode()
    answer = await client.patch(place, headers=patch | {"Upload-Checksum": f"sha1 {bad}"}, content=b"words")
    assert answer.status_code == 460
    assert (await client.head(place, headers=TUS)).headers["upload-offset"] == "0"
    good = base64.b64encode(hashlib.sha1(b"words", usedforsecurity=False).digest()).decode()
    answer = await client.patch(place, headers=patch | {"Upload-Checksum": f"sha1 {good}"}, content=b"words")
    assert answer.status_code == 204


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Upload-Length": "5"}, 412),
        (TUS, 400),
        (TUS | {"Upload-Length": "-1"}, 400),
        (TUS | {"Upload-Length": "9" * 19}, 400),
        (TUS | {"Upload-Length": "9" * 18}, 413),
        (TUS | {"Upload-Defer-Length": "1"}, 400),
        (TUS | {"Upload-Length": "5", "Upload-Metadata": "filename ***"}, 400),
        (TUS | {"Upload-Length": "5", "Upload-Metadata": "filename YQ==,filename YQ=="}, 400),
        (TUS | {"Upload-Length": "5", "Upload-Metadata": "filename " + "A" * 20_000}, 413),
        (TUS | {"Upload-Length": "5"} | metadata(filename="a\0b"), 422),
        (TUS | {"Upload-Length": "5"} | metadata(filename="x" * 5_000), 422),
        (TUS | {"Upload-Length": "5"} | metadata(filename="a", collection="../b"), 422),
        (TUS | {"Upload-Length": "5"} | metadata(filename="a", metadata="[1]"), 422),
        (TUS | {"Upload-Length": "5"} | metadata(filename="a", metadata="{"), 422),
        (TUS | {"Upload-Length": "5"} | metadata(filename="a", workflow="/etc/passwd"), 422),
    ],
)
async def test_a_creation_that_is_not_valid(
    app: App, client: httpx2.AsyncClient, headers: dict[str, str], status: int
) -> None:
    answer = await client.post("uploads", headers=headers)
    assert answer.status_code == status, answer.text


async def test_i10_uploads_of_others_are_not_there(app: App, client: httpx2.AsyncClient) -> None:
    made = await app.for_owner("bert").create_upload(5, name="a.txt")
    for method, more in (("HEAD", {}), ("GET", {}), ("DELETE", {}), ("PATCH", BYTES | {"Upload-Offset": "0"})):
        answer = await client.request(method, f"uploads/{made.id}", headers=TUS | more, content=b"x")
        assert answer.status_code == 404, method


def test_the_tus_client_and_kills_of_the_server(tmp_path: Path) -> None:
    """Whatever is killed, the bytes are the same, and little is sent again."""
    path, chosen = tmp_path / "large.bin", random.Random(3)
    with path.open("wb") as file:
        for _ in range(SIZE >> 20):
            file.write(chosen.randbytes(1 << 20))
    url, port, sent, kills = "", "0", 0, 0
    ended = False
    while not ended:
        # The client reopens files without closing them, but not a stream.
        with path.open("rb") as stream, serving(tmp_path / "home", "--no-worker", "--port", port) as served:
            port = served.url.rpartition(":")[2]
            client = TusClient(f"{served.api}uploads")
            uploader = client.uploader(
                file_stream=stream, chunk_size=CHUNK, url=url or None, metadata={"filename": "large.bin"}
            )
            url = url or uploader.create_url()
            uploader.set_url(url)
            timer = threading.Timer(chosen.uniform(0.02, 0.1), served.process.kill) if kills < KILLS else None
            try:
                while True:
                    uploader.offset = uploader.get_offset()
                    if uploader.offset == SIZE:
                        ended = True
                        break
                    sent += _send(uploader, timer)
            except (TusCommunicationError, ConnectionError, OSError):
                assert served.process.wait(10) == -signal.SIGKILL
                kills, sent = kills + 1, sent + CHUNK
            finally:
                if timer is not None:
                    timer.cancel()
            if ended:
                _check_ended(served, path, uploader)
    assert 1 <= kills <= KILLS, "a fast machine ends before the last one"
    assert sent <= SIZE + kills * (8 << 20)


def _send(uploader: Uploader, timer: threading.Timer | None) -> int:
    """Send a chunk, in which the server is killed. Return the bytes that it took; 0: a dead process has the lock."""
    before = uploader.offset
    if timer is not None and not timer.is_alive() and not timer.finished.is_set():
        timer.start()
    try:
        uploader.upload_chunk()  # type: ignore[no-untyped-call]
    except TusCommunicationError as error:
        if error.status_code != 423:
            raise
        time.sleep(0.3)
        return 0
    return uploader.offset - before


def _check_ended(served: Served, path: Path, uploader: Uploader) -> None:
    deadline = time.monotonic() + 60
    while not (listed := httpx2.get(f"{served.api}documents").json()["documents"]) and time.monotonic() < deadline:
        # The server was killed between the last byte and the document, and had the lock. A look brings the document.
        time.sleep(0.5)
        uploader.get_offset()
    assert len(listed) == 1
    assert listed[0]["size"] == SIZE
    blobs = path.parent / "home" / "blobs"
    kept = httpx2.get(f"{served.api}documents/{listed[0]['id']}/raw", timeout=60).content
    with path.open("rb") as sent:
        assert hashlib.sha256(kept).digest() == hashlib.file_digest(sent, "sha256").digest()
    assert not [one for one in blobs.rglob("*") if one.is_file() and "/uploads/" in str(one)]


async def messages(answer: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "data" in fields:
            yield {**json.loads(fields["data"]), "sse_id": fields.get("id"), "sse_event": fields["event"]}
            fields = {}


async def test_the_change_feed_resumes_and_ends_with_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as served:
        async with httpx2.AsyncClient(base_url=served.api, timeout=30) as http:
            seen: dict[str, dict[str, Any]] = {}
            async with http.stream("GET", "events") as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                put = await http.put("documents", params={"source": "a.txt"}, content=b"some words")
                async for message in messages(answer):
                    assert message["sse_event"] == message["event"]
                    seen[message["document"]] = message
                    if message["status"] == "COMPLETED":
                        break
            document = put.json()["id"]
            assert seen[document]["searchable"] is True
            place = seen[document]["sse_id"]
            other = (await http.put("documents", params={"source": "b.txt"}, content=b"more words")).json()["id"]
            async with http.stream("GET", "events", headers={"Last-Event-ID": place}) as answer:
                told = messages(answer)
                async for message in told:
                    if message["document"] == other and message["status"] == "COMPLETED":
                        break
                rest = asyncio.create_task(_rest(told))
                began = time.monotonic()
                assert await asyncio.to_thread(served.stop) == 0
                await rest
                assert time.monotonic() - began < 5


async def _rest(told: AsyncIterator[dict[str, Any]]) -> None:
    async for _ in told:
        pass
