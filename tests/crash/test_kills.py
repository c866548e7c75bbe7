"""The acceptance run: many files, a `penstock` process that is killed again and again at any instant, readers all the
while, and one `penstock run` at the end. Nothing may tell it from a run that nobody disturbed."""

import asyncio
import json
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.crash.harness import LONG, Picture, command, environment, open_home, picture, said

from penstock.app import App

SEED = 20_240_811
FILES, LARGEST, KILLS = (300, 5 << 20, 30) if LONG else (48, 1 << 20, 6)
SLOW = 60 if LONG else 4
"""Files for the run that is done a second at a time: each second costs the start of a process."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
READS = 4
"""Documents that a reader looks at closely each time."""

Chunks = dict[str, int]


@dataclass(frozen=True)
class Corpus:
    folder: Path
    reference: Picture
    chunks: Chunks
    """What each document has when it is whole, by name."""


def word(number: int) -> str:
    """A word that only this document has, and that every chunk of it has."""
    return "zq" + LETTERS[number // 26] + LETTERS[number % 26] + "mark"


def write(folder: Path) -> None:
    """Sizes from 1 KB on, spread evenly over their logarithm."""
    chance = random.Random(SEED)
    folder.mkdir(parents=True)
    for number in range(FILES):
        size = int(1024 * (LARGEST / 1024) ** chance.random())
        pieces: list[str] = []
        length = 0
        while length < size:
            words = " ".join(chance.choice(WORDS) for _ in range(12))
            pieces.append(f"{word(number)} {words}.\n" + "\n" * (len(pieces) % 7 == 6))
            length += len(pieces[-1])
        (folder / f"{number:03d}.txt").write_text("".join(pieces)[:size])


WORDS = [
    "".join(random.Random(number).choice(LETTERS) for _ in range(4 + number % 6)) for number in range(400)
]  # fmt: skip


def process(home: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(*arguments, "--json", "--home", str(home)),
        env=environment(EMBEDDER="fake"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def finish(home: Path, *arguments: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    running = process(home, *arguments)
    output, _ = running.communicate(timeout=600)
    assert running.returncode in codes, output
    answer: dict[str, Any] = json.loads(output)
    return answer | {"code": running.returncode}


def look(home: Path) -> Any:
    return open_home(home, chunk={"unit": "characters"})


async def whole(app: App, corpus: Corpus, chance: random.Random) -> int:
    """Only whole documents can be seen (I5). Returns how many."""
    listed = await app.list_documents(limit=10_000)
    seen = {entry.name: entry for entry in listed if entry.searchable}
    for name, entry in seen.items():
        assert entry.status == "COMPLETED"
        assert entry.chunks == corpus.chunks[name]
    names = sorted(entry.name for entry in listed)
    for name in chance.sample(names, min(READS, len(names))):
        hits = await app.search(word(int(name[:3])), k=9_000, mode="text")
        mine = [(hit.start, hit.page) for hit in hits if hit.name == name]
        assert len(mine) == len(set(mine)), f"{name}: a chunk was found twice"
        assert len(hits) == len(mine), f"{name}: its word was found elsewhere"
        assert len(mine) in (0, corpus.chunks[name]), f"{name}: a part of it was found"
        if name in seen:
            assert mine, f"{name} is searchable, but was not found"
    return len(seen)


async def begun(app: App, running: "subprocess.Popen[str]") -> None:
    """It has started working."""
    before = await app.status()
    for _ in range(3000):
        if running.poll() is not None or (await app.status()) != before:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never began")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("kills")
    write(folder / "files")
    began = time.monotonic()
    assert finish(folder / "home", "ingest", str(folder / "files"))["completed"] == FILES
    took = time.monotonic() - began

    async def reference() -> Picture:
        async with look(folder / "home") as app:
            return await picture(app, words())

    end = asyncio.run(reference())
    chunks = {name: len(ones) for name, ones in end.chunks.items()}
    assert all(end.rows[name] == [(i, digest) for i, (_, digest) in enumerate(end.rows[name])] for name in chunks)
    assert took > 1
    return Corpus(folder / "files", end, chunks)


def words() -> tuple[str, ...]:
    return tuple(word(number) for number in range(0, FILES, 10))


async def test_i5_i12_killed_again_and_again_it_ends_as_if_it_was_not_killed(corpus: Corpus, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    home = tmp_path / "home"
    kills = 0
    async with look(home) as reader:
        while kills < KILLS:
            running = process(home, "ingest", str(corpus.folder))
            await begun(reader, running)
            deadline = time.monotonic() + chance.uniform(0.0, 1.2)
            while time.monotonic() < deadline and running.poll() is None:
                await whole(reader, corpus, chance)
            running.send_signal(signal.SIGKILL)
            output, _ = running.communicate()
            await whole(reader, corpus, chance)
            kills += running.returncode == -signal.SIGKILL
            if running.returncode == 0:
                assert json.loads(output)["pending"] == 0
                break
        accepted = await reader.list_documents(limit=10_000)
        assert kills >= 3
        finish(home, "ingest", str(corpus.folder), "--no-wait")
        finish(home, "run")
        assert {entry.name for entry in accepted} <= set(corpus.chunks)
        seen = await whole(reader, corpus, chance)
        assert [entry for entry in await reader.list_documents(limit=10_000) if not entry.searchable] == []
        assert seen == FILES
        assert await picture(reader, words()) == corpus.reference
        report = await reader.check()
        assert report.ok, said(report)
        assert (await reader.status()).dead_letters == 0


async def test_i12_a_second_at_a_time_gives_the_same(corpus: Corpus, tmp_path: Path) -> None:
    home = tmp_path / "home"
    names = sorted(corpus.chunks)[:SLOW]
    finish(home, "ingest", *(str(corpus.folder / name) for name in names), "--no-wait")
    for _ in range(40 * SLOW):
        answer = finish(home, "run", "--budget", "1s", codes=(0, 3))
        if answer["code"] == 0:
            break
    else:
        raise AssertionError("it never ends")
    async with look(home) as app:
        end = await picture(app, tuple(word(number) for number in range(SLOW)))
        whole = corpus.reference
        for name in names:
            assert end.documents[name] == whole.documents[name]
            assert end.chunks[name] == whole.chunks[name]
            assert end.rows[name] == whole.rows[name]
        for number, name in enumerate(names):
            assert len(end.found[word(number)]) == corpus.chunks[name]
        report = await app.check()
        assert report.ok, said(report)
