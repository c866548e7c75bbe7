"""Ledger in PostgreSQL, blobs in S3, vectors in pgvector: workers are killed at any instant, and the S3 server is
killed and started again in the middle. The end is that of a home that nobody disturbed, on local stores."""

import asyncio
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.harness import LONG, REPOSITORY, Picture, command, environment, open_home, picture, said
from tests.integration.test_object_blobs import own_server as own_server
from tests.integration.test_object_blobs import shelf as shelf
from tests.kit import s3
from tests.kit.apps import until
from tests.kit.pdfs import numbered, pdf
from tests.kit.s3 import S3Server

from penstock.app import App

SEED = 20_261_119
TEXTS, PAGES, KILLS = (60, 900, 25) if LONG else (8, 120, 3)
AWAY_S = 5.0 if LONG else 1.0
QUICK = {"HTTP__PATIENCE_S": "0.3", "HTTP__TIMEOUT_S": "5", "PARSERS__CHILDREN": "2"}


def word(number: int) -> str:
    return f"zq{chr(97 + number // 26)}{chr(97 + number % 26)}mark"


def write(folder: Path) -> None:
    chance = random.Random(SEED)
    folder.mkdir()
    for number in range(TEXTS):
        lines = (f"{word(number)} line {line} {chance.random()}." for line in range(chance.randrange(20, 900)))
        (folder / f"{number:03d}.txt").write_text("\n\n".join(lines))
    (folder / "long.pdf").write_bytes(pdf(*numbered(PAGES)))


def worker(folder: Path, settings: dict[str, str]) -> "subprocess.Popen[bytes]":
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command("worker", "--home", str(folder / "home")),
            cwd=REPOSITORY,
            env=environment(EMBEDDER="fake", **QUICK, **settings),
            stdout=log,
            stderr=log,
        )


async def whole(app: App, reference: Picture, chance: random.Random) -> None:
    """A search shows all of a document or nothing (I5)."""
    number = chance.randrange(TEXTS)
    name = f"{number:03d}.txt"
    hits = [hit for hit in await app.search(word(number), k=2000, mode="text") if hit.name == name]
    places = [hit.start for hit in hits]
    assert len(places) == len(set(places)), "a chunk is shown twice"
    assert len(places) in (0, len(reference.chunks[name])), "a part of a document is shown"


async def read_on(app: App, reference: Picture) -> None:
    chance = random.Random(SEED + 1)
    while True:
        await whole(app, reference, chance)
        await app.runtime.sleep(0.05)


@pytest.fixture
async def reference(tmp_path: Path) -> Picture:
    write(tmp_path / "files")
    async with open_home(tmp_path / "undisturbed", chunk={"unit": "characters"}) as app:
        await app.ingest(tmp_path / "files")
        return await picture(app, (word(0), word(1)))


async def test_i5_i12_killed_with_remote_stores_it_ends_as_if_nothing_was_killed(
    tmp_path: Path,
    reference: Picture,
    shelf: s3.Prefix,
    own_server: S3Server,
    make_postgres: Callable[[], str],
) -> None:
    chance = random.Random(SEED)
    named: dict[str, Any] = {"database": make_postgres(), "blobs": shelf.url, "index": "pgvector"}
    variables = {name.upper(): value for name, value in named.items()}
    settings = {**named, "chunk": {"unit": "characters"}, "http": {"patience_s": 0.3, "timeout_s": 5}}
    async with open_home(tmp_path / "home", **settings) as app:
        receipts = [receipt async for receipt in app.submit(tmp_path / "files")]
        assert len(receipts) == TEXTS + 1
        reading, running = asyncio.create_task(read_on(app, reference)), worker(tmp_path, variables)
        try:
            outage = KILLS // 2
            for number in range(KILLS):
                await begun(app, running)
                await asyncio.sleep(chance.uniform(0.0, 0.6))
                if number == outage:
                    own_server.kill()
                    await asyncio.sleep(chance.uniform(0.0, AWAY_S))
                running.kill()
                running.wait()
                running = worker(tmp_path, variables)
                if number == outage:
                    await asyncio.sleep(AWAY_S)
                    await asyncio.to_thread(own_server.start)
                assert not reading.done(), reading.result()
            await until(lambda: ended(app), 300)
        finally:
            running.kill()
            running.wait()
            reading.cancel()
        seen = await picture(app, (word(0), word(1)))
        assert (await app.list_dead_letters()).total == 0, (tmp_path / "log").read_text()[-3000:]
        assert (seen.documents, seen.chunks) == (reference.documents, reference.chunks)
        assert (seen.rows, seen.found) == (reference.rows, reference.found)
        report = await app.check()
        assert report.ok, said(report)


async def begun(app: App, running: "subprocess.Popen[bytes]") -> None:
    """The worker has started working, or there is nothing left to do."""
    before = await app.status()

    async def moved() -> bool:
        return running.poll() is not None or await app.status() != before or await ended(app)

    await until(moved, 60)


async def ended(app: App) -> bool:
    return set((await app.status()).documents) <= {"COMPLETED"}
