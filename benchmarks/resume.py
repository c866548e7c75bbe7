"""A resumable upload whose server or client is killed again and again."""

import asyncio
import hashlib
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.load import free_port
from benchmarks.processes import PENSTOCK, ROOT
from benchmarks.service import environment
from benchmarks.table import Row

MEGABYTES, KILLS = 1_024, 20
UPLOADS = "/api/v1/uploads"
MOST_AGAIN = 8 << 20
PIECE = 1 << 18


def content(place: int, length: int) -> bytes:
    """Bytes that tell their place."""
    first, last = place // 8, (place + length + 7) // 8
    return b"".join(number.to_bytes(8, "big") for number in range(first, last))[place % 8 :][:length]


class _Server:
    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self._command = [*PENSTOCK, "--home", str(home), "serve", "--port", str(self.port), "--no-worker"]
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        quiet = subprocess.DEVNULL
        return subprocess.Popen(self._command, cwd=ROOT, env=environment(), stdout=quiet, stderr=quiet)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.process = self._start()


async def _headers(port: int, text: str) -> dict[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text.replace("\n", "\r\n").encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    finally:
        writer.close()
    pairs = [line.split(": ", 1) for line in answer.splitlines()[1:] if ": " in line]
    return {"status": answer.split()[1]} | {name.lower(): value for name, value in pairs}


async def _patiently(port: int, text: str) -> dict[str, str]:
    """Ask until the server is there, and nobody else works on the upload."""
    while True:
        with suppress(OSError, EOFError):
            found = await _headers(port, text)
            if found["status"] not in ("423", "503"):
                return found
        await asyncio.sleep(0.05)


async def upload(home: Path, megabytes: int = MEGABYTES, kills: int = KILLS) -> dict[str, Any]:
    """Return how many bytes each kill made the client send again, and whether the document has the right bytes."""
    size, server = megabytes << 20, _Server(home)
    again: list[int] = []
    base = "Host: 127.0.0.1\nTus-Resumable: 1.0.0\nConnection: close\n"
    try:
        made = await _patiently(
            server.port, f"POST {UPLOADS} HTTP/1.1\n{base}Upload-Length: {size}\nContent-Length: 0\n\n"
        )
        place = re.sub("^https?://[^/]+", "", made["location"])
        while True:
            found = await _patiently(server.port, f"HEAD {place} HTTP/1.1\n{base}\n")
            offset, number = int(found["upload-offset"]), len(again)
            if offset == size:
                break
            stop = size if number >= kills else (number + 1) * size // (kills + 1) + number * 1_000_003 % (1 << 20)
            if await _send(server, place, base, offset, stop, size, by_server=number % 2 == 0):
                found = await _patiently(server.port, f"HEAD {place} HTTP/1.1\n{base}\n")
                again.append(stop - int(found["upload-offset"]))
            else:
                # Another request still holds the upload: that of the client that has gone.
                await asyncio.sleep(0.1)
        document = (await _patiently(server.port, f"HEAD {place} HTTP/1.1\n{base}\n"))["penstock-document"]
        right = await _is_right(server.port, document, size)
    finally:
        server.kill()
    return {"again": again, "right": right}


async def _send(server: _Server, place: str, base: str, offset: int, stop: int, size: int, *, by_server: bool) -> bool:
    """Send up to `stop`, and cut. Return whether all of it was handed to the connection, and a cut was made."""
    opened = socket.create_connection(("127.0.0.1", server.port))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
    reader, writer = await asyncio.open_connection(sock=opened)
    sent = offset
    try:
        kind = "Content-Type: application/offset+octet-stream\n"
        head = f"PATCH {place} HTTP/1.1\n{base}{kind}Upload-Offset: {offset}\nContent-Length: {size - offset}\n\n"
        writer.write(head.replace("\n", "\r\n").encode())
        while sent < stop:
            piece = content(sent, min(PIECE, stop - sent))
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        if stop == size:
            await reader.readuntil(b"\r\n\r\n")
            return False
        if by_server:
            server.restart()
        return True
    except (OSError, EOFError):
        return False
    finally:
        writer.transport.abort()


async def _is_right(port: int, document: str, size: int) -> bool:
    wanted, found = hashlib.sha256(), hashlib.sha256()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"GET /api/v1/documents/{document}/raw HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    for place in range(0, size, 1 << 20):
        wanted.update(content(place, min(1 << 20, size - place)))
        found.update(await reader.readexactly(min(1 << 20, size - place)))
    writer.close()
    return wanted.digest() == found.digest()


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as work:
        result = asyncio.run(upload(Path(work) / "home"))
    what = f"tus, {MEGABYTES:,} MB with {KILLS} kills of server or client"
    yield Row(f"{what}: most that is sent again for a kill", max(result["again"]) / (1 << 20), "MB", 1, most=8)
    yield Row(f"{what}: the same bytes", float(result["right"]), least=1)
