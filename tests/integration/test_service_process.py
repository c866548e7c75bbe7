"""A real server: killed in the middle of uploads, with a large upload, with a stalled client, and with the page's
curl lines."""

import asyncio
import hashlib
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from tests.kit.memory import tree_megabytes
from tests.kit.service import Served, serving

from penstock.app import open_app

ROOT = Path(__file__).parents[2]
CLIENTS, EACH = 8, 40
LARGE_MB = 300


def content(number: int) -> bytes:
    return f"Document {number} tells of matter{number}. ".encode() * 60


class Service:
    """A server that is started again on the same port whenever it was killed."""

    def __init__(self, home: Path, *arguments: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}/api/v1/"
        self._home, self._arguments = home, arguments

    def start(self) -> "Iterator[Served]":
        with serving(self._home, "--port", self._port, *self._arguments) as served:
            yield served


def upload(url: str, number: int, deadline: float) -> str:
    """Send one document until it is accepted, as an idempotent client does."""
    with httpx2.Client(timeout=20) as client:
        while True:
            try:
                answer = client.put(f"{url}documents", params={"source": f"{number}.txt"}, content=content(number))
                if answer.status_code in (200, 201):
                    accepted: str = answer.json()["id"]
                    return accepted
                assert answer.status_code in (429, 503), answer.text
            except httpx2.TransportError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.05)


async def test_i1_uploads_that_were_answered_survive_kills_and_none_is_there_twice(tmp_path: Path) -> None:
    home = tmp_path / "home"
    service = Service(home, "--no-worker")
    deadline = time.monotonic() + 200
    count = CLIENTS * EACH
    answered: dict[int, str] = {}

    def one(number: int) -> None:
        answered[number] = upload(service.url, number, deadline)

    kills = 0
    with ThreadPoolExecutor(CLIENTS) as pool:
        work = [pool.submit(one, number) for number in range(count)]
        while not all(task.done() for task in work):
            for served in service.start():
                if kills < 3:
                    mark = len(answered)
                    while len(answered) < min(count, mark + count // 5) and not all(task.done() for task in work):  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                    kills += 1
                    served.kill()
                else:
                    while not all(task.done() for task in work):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
        for task in work:
            task.result()
    assert kills == 3
    assert len(answered) == count
    async with open_app(home=home, embedder="fake") as app:
        found = await app.list_documents(limit=2 * count)
        assert {one.id for one in found} == set(answered.values())
        assert len(found) == count
        assert {one.source: one.size for one in found} == {f"{n}.txt": len(content(n)) for n in range(count)}
        assert (await app.check()).ok


def test_a_large_upload_needs_little_memory_and_comes_back_whole(tmp_path: Path) -> None:
    piece = bytes(range(256)) * 4096
    sha256 = hashlib.sha256()

    def body() -> Iterator[bytes]:
        for _ in range(LARGE_MB):
            sha256.update(piece)
            yield piece

    with serving(tmp_path / "home", "--no-worker") as served, httpx2.Client(timeout=120) as client:
        client.put(f"{served.api}documents?source=first", content=piece * 2).raise_for_status()
        before = peak = tree_megabytes(served.process.pid)
        over = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not over.wait(0.05):
                peak = max(peak, tree_megabytes(served.process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            made = client.put(f"{served.api}documents?source=large", content=body()).raise_for_status().json()
        finally:
            over.set()
            watcher.join()
        assert made["size"] == LARGE_MB << 20
        assert peak - before <= 48, (before, peak)
        back = hashlib.sha256()
        with client.stream("GET", f"{served.api}documents/{made['id']}/raw") as answer:
            for part in answer.iter_bytes():
                back.update(part)
    assert back.digest() == sha256.digest()


def test_a_stalled_client_is_cut_off_and_harms_nobody(tmp_path: Path) -> None:
    with serving(tmp_path / "home", "--no-worker", PENSTOCK_SERVE__IDLE_S="1") as served:
        host, port = "127.0.0.1", int(served.url.rpartition(":")[2])
        with socket.create_connection((host, port)) as stalled:
            stalled.settimeout(60)
            stalled.sendall(
                b"PUT /api/v1/documents?source=stalled HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n\r\nx"
            )
            answer = httpx2.put(f"{served.api}documents?source=other", content=b"words", timeout=30)
            assert answer.status_code == 201
            assert stalled.recv(12) == b"HTTP/1.1 408"
        listed = httpx2.get(f"{served.api}documents").json()["documents"]
        assert [one["source"] for one in listed] == ["other"]


def test_a_head_that_does_not_end_and_an_answer_that_is_not_read_are_cut_off(tmp_path: Path) -> None:
    with serving(tmp_path / "home", "--no-worker", PENSTOCK_SERVE__IDLE_S="1") as served:
        address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        large = b"x" * (8 << 20)
        made = httpx2.put(f"{served.api}documents?source=large", content=large, timeout=60).json()["id"]
        with (
            socket.create_connection(address) as silent,
            socket.create_connection(address) as slow,
            socket.socket() as deaf,
        ):
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.connect(address)
            deaf.sendall(f"GET /api/v1/documents/{made}/raw HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHo")
            for one in (silent, slow):
                one.settimeout(60)
                assert one.recv(100) == b""
            assert httpx2.get(f"{served.url}/healthz", timeout=30).status_code == 200
            time.sleep(3)
            deaf.settimeout(60)
            read = 0
            with suppress(ConnectionError):
                while piece := deaf.recv(1 << 20):
                    read += len(piece)
            assert read < len(large)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_lines_of_the_page_work(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "service.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()]
    lines = [line for line in lines if line.startswith(("curl", "ID="))]
    assert len(lines) >= 8
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "turbine.txt").write_text("The turbine runs at 375 revolutions a minute.")
    (folder / "dam.md").write_text("# Dam\n\nThe dam is inspected every spring.")
    with serving(tmp_path / "home") as served:
        script = "\n".join(["set -eo pipefail", *lines]).replace("http://127.0.0.1:8440", served.url)
        done = subprocess.run(
            ["bash", "-c", script.replace("curl ", "curl -sS --fail-with-body ")],
            cwd=folder, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "375 revolutions" in done.stdout
