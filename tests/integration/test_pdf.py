"""PDFs from submit to searchable: whole, locked, damaged, hostile and long."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.crash.harness import LONG, command, environment
from tests.kit.apps import chunks, found, named, only, penstock, until
from tests.kit.parsers import ODD, PATHS, alive, gone
from tests.kit.pdfs import Entry, Lock, Pages, devouring, hanging, numbered, page, pdf
from tests.kit.providers import DIRECT

from penstock.app import App
from penstock.extractors.base import Raw
from penstock.extractors.pdf import CALLS, PAGES, PdfExtractor
from penstock.model.items import Page
from penstock.worker.parsers import process
from penstock.worker.parsers.pool import ParserPool

Files = Callable[..., Path]
ROOT = Path(__file__).parents[2]


def uneven(pages: int) -> bytes:
    """Every third page takes some twenty times longer than its neighbours; with labels and an outline."""
    contents = [
        page(f"Page {i} of chapter {i // 10}", f"tells of matter{i}", *(["and so on and on " * 5] * 40 * (i % 3 == 0)))
        for i in range(pages)
    ]
    outline = [Entry(f"Page {i} of chapter {i // 10}", i) for i in range(0, pages, 10)]
    return pdf(*contents, outline=outline, labels=b"0 <</S /r>> 8 <</S /D>>")


async def pages_of(app: App, document: str) -> list[Page]:
    return [page async for page in app.show(document, "pages")]


async def seen(app: App) -> tuple[object, ...]:
    """All that a reader can notice of the one document."""
    document = await only(app)
    assert document.status == "COMPLETED", document.error
    hits = [(h.page, h.start, h.end, h.text) for h in await app.search("matter23", 50, mode="text")]
    assert hits
    return await pages_of(app, document.id), await chunks(app, document.id), hits


def children(app: App) -> list[int]:
    processes = [child._process for child in app.resources.parsers._children]
    return [process.pid for process in processes if process is not None]


class Calls:
    """What the parser processes of an app are asked for, from now on."""

    def __init__(self, parsers: ParserPool) -> None:
        self.batches: list[tuple[int, int]] = []
        self._parsers = parsers
        vars(parsers)["call"] = self._call

    async def _call(
        self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path | None = None
    ) -> bytes:
        self.batches.append((arguments["first"], arguments["count"]))
        return await ParserPool.call(self._parsers, reader, arguments, source=source, document=document)


# Pages in order, whoever reads them and however often


class File:
    """A source without an app around it."""

    name = "a.pdf"
    size = 0
    flow = ("anna", "file")

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read_range(self, offset: int, length: int) -> bytes:
        raise NotImplementedError

    async def password(self) -> str | None:
        return None

    @asynccontextmanager
    async def file(self) -> AsyncIterator[Path]:
        yield self._path

    def waiting(self, on: str | None) -> None:
        pass

    parser_s = 0.0
    providers = DIRECT

    def may_parse(self) -> None:
        pass

    def parsed(self, seconds: float) -> None:
        self.parser_s += seconds


@asynccontextmanager
async def pool(children: int) -> AsyncIterator[ParserPool]:
    made = ParserPool(children=children, memory_mb=512, timeout_s=30)
    try:
        yield made
    finally:
        await made.close()


async def extracted(parsers: ParserPool, path: Path, cursor: dict[str, Any]) -> list[Page]:
    """All pages from a cursor on."""
    pages: list[Page] = []
    async for batch in PdfExtractor(parsers).extract(File(path), "application/pdf", {}, cursor):
        pages += batch.pages
        assert batch.cursor == {"pages": pages[-1].number, "of": batch.cursor["of"]}
        assert batch.keep == (pages[-1].number < batch.cursor["of"])
    return pages


async def test_i12_extraction_goes_on_from_any_page_and_in_page_order(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(uneven(45))
    async with pool(3) as parsers:
        whole = await extracted(parsers, path, {})
        assert [p.number for p in whole] == list(range(1, 46))
        assert (whole[0].label, whole[-1].label, whole[23].path) == ("i", "37", ("Page 20 of chapter 2",))
        for done in (1, 7, 8, 9, 30, 44, 45):
            assert await extracted(parsers, path, {"pages": done, "of": 45}) == whole[done:]


async def test_an_extraction_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(hanging(40, 20))
    async with pool(1) as parsers:
        async with aclosing(PdfExtractor(parsers).extract(File(path), "", {}, {})) as batches:
            assert (await anext(batches)).cursor["pages"] == PAGES
            assert (await anext(batches)).cursor["pages"] == 2 * PAGES
            began = time.monotonic()
        assert time.monotonic() - began < 1.0, "it does not wait for the call that hangs"
        assert {task for task in asyncio.all_tasks() if "read" in str(task.get_coro())} == set()
        assert not parsers._waiting
        assert len(await extracted(parsers, path, {"pages": 35})) == 5


async def test_i9_a_page_that_cannot_be_read_is_never_passed_over(tmp_path: Path) -> None:
    """However many batches behind it have been read when what is before it is kept at last."""
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*numbered(27), None, *numbered(60)))
    async with pool(3) as parsers:
        pages: list[Page] = []
        async for batch in PdfExtractor(parsers).extract(File(path), "", {}, {}):
            await asyncio.sleep(0.2)
            pages += batch.pages
        assert [page.number for page in pages] == list(range(1, 89))
        assert [(page.number, page.skipped.reason) for page in pages if page.skipped] == [(28, "damaged")]


async def test_a_batch_that_only_fails_as_a_whole_is_read_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CHILD", ODD)
    monkeypatch.setenv("PYTHONPATH", PATHS)
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*numbered(PAGES + 3)))
    async with pool(1) as parsers:
        calls = Calls(parsers)
        assert [p.number for p in await extracted(parsers, path, {})] == list(range(1, PAGES + 4))
    assert calls.batches == [(0, PAGES), (PAGES, PAGES), (0, 0), *((i, 1) for i in range(PAGES, PAGES + 3))]


async def test_i4_what_is_handed_out_and_not_kept_is_bounded(tmp_path: Path) -> None:
    """However slowly what is read is being kept."""
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*numbered(150)))
    async with pool(2) as parsers:
        calls = Calls(parsers)
        kept = 0
        async for batch in PdfExtractor(parsers).extract(File(path), "", {}, {}):
            await asyncio.sleep(0.05)
            handed_out = sum(min(count, 150 - first) for first, count in calls.batches)
            assert handed_out - kept <= CALLS * PAGES * parsers.width
            kept = batch.cursor["pages"]
    assert (kept, len(calls.batches)) == (150, -(-150 // PAGES))


async def test_i12_the_same_with_one_two_and_four_children(start_app: StartApp, files: Files) -> None:
    folder = files(**{"a.pdf": uneven(70)})
    views = []
    for number in (1, 2, 4):
        app = await start_app(f"home{number}", parsers={"children": number})
        await app.ingest([folder])
        assert len(children(app)) == number
        views.append(await seen(app))
    assert views[0] == views[1] == views[2]


async def test_i12_the_same_in_many_small_pieces(start_app: StartApp, files: Files) -> None:
    folder = files(**{"a.pdf": uneven(70)})
    app = await start_app(parsers={"children": 2})
    await app.ingest([folder], wait=False)
    calls = Calls(app.resources.parsers)
    rounds = 0
    while (await app.run(budget_s=0.001)).budget_spent:
        rounds += 1
        assert rounds < 100
    assert rounds > 4
    firsts = [first for first, _ in calls.batches if first >= 0]
    assert len(firsts) <= 2 * (70 // PAGES + 1) + rounds, "what was read is not read again"
    undisturbed = await start_app("undisturbed")
    await undisturbed.ingest([folder])
    assert await seen(app) == await seen(undisturbed)


# Damaged and hostile

LIMITS = {"children": 2, "timeout_s": 2.0, "memory_mb": 96}


def scan() -> bytes:
    made = Pages(contents=[b"q 400 0 0 400 0 0 cm /I Do Q"] * 3)
    made.resources = b"/XObject <</I %d 0 R>>" % made.image()
    return made.write()


WHOLE = pdf(*numbered(40))


def dead() -> dict[str, tuple[bytes, str, int | None, str]]:
    """Content, reason, page and a part of the sentence."""
    return {
        "hangs.pdf": (hanging(30, 20, 25_000), "parser_timeout", 20, "page 20: the parser took longer than 2 s"),
        "eats.pdf": (devouring(30, 12, 120), "parser_memory", 12, "page 12: the parser needed more memory than 96 MB"),
        "eats-first.pdf": (devouring(3, 1, 120), "parser_memory", 1, "page 1: the parser needed more memory"),
        "hole.pdf": (pdf(*numbered(10), None, *numbered(9)), "damaged", 11, "page 11 of 20 cannot be read"),
        "hole-last.pdf": (pdf(*numbered(16), None), "damaged", 17, "page 17 of 17 cannot be read"),
        "lies.pdf": (pdf(*numbered(3), count=30), "damaged", 4, "page 4 of 30 cannot be read"),
        "half.pdf": (WHOLE[: len(WHOLE) // 2], "damaged", None, "damaged beyond reading"),
        "header.pdf": (b"%PDF-1.7\n", "damaged", None, "damaged beyond reading"),
        "noise.pdf": (b"%PDF-1.7\n" + bytes(range(256)) * 99, "damaged", None, "damaged beyond reading"),
        "nothing.pdf": (pdf(), "damaged", None, "it has no pages"),
        "locked.pdf": (pdf(*numbered(3), lock=Lock(b"sesame")), "encrypted", None, "locked by a password"),
    }


FINE = {
    "mended.pdf": (pdf(*numbered(20, "mendedword"), table=False), "COMPLETED", "mendedword7"),
    "good.pdf": (pdf(*numbered(100, "goodword")), "COMPLETED", "goodword99"),
    "text.pdf": (b"It is called textword, and is no PDF at all.", "COMPLETED", "textword"),
    "scan.pdf": (scan(), "NOT_INDEXABLE", None),
    "empty.pdf": (b"", "NOT_INDEXABLE", None),
    "garbage.pdf": (bytes(i * i % 251 for i in range(5000)), "UNSUPPORTED", None),
}


async def test_i9_every_damage_is_named_and_affects_no_other(start_app: StartApp, files: Files) -> None:
    app = await start_app(parsers=LIMITS, limits={"bad_pages": 0.0}, ocr={"mode": "off"})
    cursed = dead()
    folder = files(**{name: case[0] for name, case in (cursed | FINE).items()})
    summary = await app.ingest([folder])
    assert (summary.failed, summary.completed, summary.not_indexable) == (len(cursed), 3, 2)
    letters = {letter.name: letter for letter in (await app.list_dead_letters()).letters}
    assert set(letters) == set(cursed)
    for name, (_, reason, number, sentence) in cursed.items():
        letter, document = letters[name], await named(app, name)
        assert (letter.reason, letter.page) == (reason, number), name
        assert sentence in letter.error
        assert document.error == letter.error
        progress = (await app.status(document.id)).progress
        assert progress.pages == (number or 1) - 1, f"{name}: the pages before it are kept"
        kept = await pages_of(app, document.id)
        assert [p.number for p in kept] == list(range(1, number or 1))
    for name, (_, status, word) in FINE.items():
        assert (await named(app, name)).status == status
        if word is not None:
            assert await found(app, word) == {name}
    assert (await named(app, "text.pdf")).media_type == "text/plain"
    assert (await named(app, "good.pdf")).pages == 100
    assert (await app.check()).ok


async def test_i4_a_retry_with_higher_limits_goes_on_at_the_page_that_failed(start_app: StartApp, files: Files) -> None:
    folder = files(**{"eats.pdf": devouring(40, 19, 1)})
    app = await start_app(parsers=LIMITS, limits={"bad_pages": 0.0})
    assert (await app.ingest([folder])).failed == 1
    document = await only(app)
    before = await pages_of(app, document.id)
    assert len(before) == 18
    assert (await app.ingest([folder])).skipped == 1, "the same again is known to fail"
    generous = await start_app(parsers={"children": 2, "memory_mb": 700})
    calls = Calls(generous.resources.parsers)
    assert await generous.retry([document.id]) == {document.id}
    assert (await generous.run()).completed == 1
    assert min(first for first, _ in calls.batches) == 18
    assert sorted(first for first, _ in calls.batches) == [18, 26, 34]
    after = await pages_of(generous, document.id)
    assert [p.number for p in after] == list(range(1, 41))
    assert after[:18] == before
    assert after[18].text.startswith("abcdefghijabcdefghij")


# Passwords

SECRET = "open-sesame-42"


async def everything(app: App) -> str:
    """All that an app says about its documents."""
    listed = await app.list_documents()
    letters = await app.list_dead_letters()
    said: list[object] = [listed, letters, await app.status()]
    said += [await app.status(entry.id) for entry in listed]
    said += [await app.dead_letter(letter.id) for letter in letters.letters]
    return repr(said)


async def test_a_locked_document_is_opened_by_its_password(
    start_app: StartApp, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    contents = numbered(20, "lockedword")
    folder = files(**{"a.pdf": pdf(*contents, lock=Lock(SECRET.encode()))})
    app = await start_app(parsers={"children": 2})
    said = ""
    assert (await app.ingest([folder])).failed == 1
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, letter.page) == ("encrypted", None)
    assert "locked by a password" in letter.error
    assert "penstock retry" in letter.error
    said += await everything(app)
    assert (await app.ingest([folder])).skipped == 1

    assert (await app.ingest([folder], password=f"{SECRET}-not")).failed == 1, "taken up without `retry`"
    [letter] = (await app.list_dead_letters()).letters
    assert "does not open it" in letter.error
    said += await everything(app)

    document = await only(app)
    await app.retry([document.id], password=SECRET)
    assert (await app.run()).completed == 1
    assert await found(app, "lockedword20") == {"a.pdf"}
    said += await everything(app)
    assert SECRET not in said
    assert SECRET not in caplog.text

    plain = await start_app("plain")
    await plain.ingest([files(**{"a.pdf": pdf(*contents)})])
    assert await pages_of(app, document.id) == await pages_of(plain, (await only(plain)).id)


async def test_a_password_may_come_with_the_file_or_not_be_needed(start_app: StartApp, files: Files) -> None:
    folder = files(
        **{
            "user.pdf": pdf(*numbered(9, "userword"), lock=Lock(SECRET.encode(), revision=2)),
            "owner.pdf": pdf(*numbered(9, "ownerword"), lock=Lock(b"", SECRET.encode())),
            "plain.pdf": pdf(*numbered(9, "plainword")),
        }
    )
    app = await start_app(parsers={"children": 1})
    assert (await app.ingest([folder], password=SECRET)).completed == 3
    assert SECRET not in await everything(app)
    app = await start_app("other", parsers={"children": 1})
    summary = await app.ingest([folder])
    assert (summary.completed, summary.failed) == (2, 1)
    assert await found(app, "ownerword1") == {"owner.pdf"}
    [letter] = (await app.list_dead_letters()).letters
    assert letter.name == "user.pdf"


def test_the_command_never_prints_a_password(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*numbered(2), lock=Lock(b"else")))
    home = tmp_path / "home"
    ended = penstock(home, "ingest", str(path), "--password", SECRET, "--json")
    assert json.loads(ended.stdout)["failed"] == 1
    looks = [("list",), ("dlq", "list"), ("dlq", "show", "1"), ("status",)]
    answers = [ended, *(penstock(home, *arguments, *mode) for arguments in looks for mode in ((), ("--json",)))]
    assert all(b"a.pdf" in answer.stdout for answer in answers[1:7])
    assert SECRET.encode() not in b"".join(answer.stdout + answer.stderr for answer in answers)


# Stopped in the middle of a page that never ends


async def test_cancel_of_a_document_that_is_busy_in_a_child_takes_effect_within_two_seconds(
    start_app: StartApp, files: Files
) -> None:
    app = await start_app(parsers={"children": 2, "timeout_s": 30})
    folder = files(**{"a.pdf": hanging(30, 20)})
    ingest = asyncio.create_task(app.ingest([folder]))

    async def stuck() -> bool:
        listed = await app.list_documents()
        return bool(listed) and (await app.status(listed[0].id)).progress.pages == 16

    await until(stuck)
    before = children(app)
    document = await only(app)
    began = time.monotonic()
    await app.cancel([document.id])
    summary = await ingest
    assert time.monotonic() - began < 2.0
    assert summary.cancelled == 1
    async with asyncio.timeout(2):
        while all(alive(pid) for pid in before):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert sum(alive(pid) for pid in before) == 1, "only the child that was busy with it is killed"
    assert (await app.ingest([files(**{"b.pdf": pdf(*numbered(3, "nextword"))}) / "b.pdf"])).completed == 1


async def test_sigterm_while_a_page_hangs_ends_soon_keeps_the_work_and_leaves_no_child(
    start_app: StartApp, files: Files, tmp_path: Path
) -> None:
    folder = files(**{"a.pdf": hanging(30, 20)})
    home = tmp_path / "home"
    running = subprocess.Popen(
        command("ingest", str(folder), "--json", "--home", str(home)),
        env=environment(EMBEDDER="fake", PARSERS__CHILDREN="2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    app = await start_app()

    async def stuck() -> bool:
        listed = await app.list_documents()
        return bool(listed) and (await app.status(listed[0].id)).progress.pages == 16

    await until(stuck)
    listing = [Path(f"/proc/{running.pid}/task/{name}/children") for name in os.listdir(f"/proc/{running.pid}/task")]
    busy = [int(pid) for path in listing for pid in path.read_text().split()]
    assert len(busy) == 2
    began = time.monotonic()
    running.send_signal(signal.SIGTERM)
    output, _ = await asyncio.to_thread(running.communicate, timeout=10)
    assert time.monotonic() - began < 3.0
    assert running.returncode == 143
    assert json.loads(output)["pending"] == 1
    await gone(*busy, within=0.5)
    status = await app.status((await only(app)).id)
    assert (status.progress.pages, status.steps[1].status) == (16, "PENDING")


# Long

MEASURE = """
import asyncio, json, resource, sys
from pathlib import Path
from penstock.app import open_app
from penstock.config import load_config
from penstock.worker.parsers import process
process.IDLE_S = 600.0  # They are measured at the end, however long that takes.
async def main():
    config = load_config({"home": sys.argv[2], "embedder": "fake", "parsers": {"children": 2}}, environment={})
    async with open_app(config) as app:
        summary = await app.ingest([sys.argv[1]])
        [entry] = await app.list_documents()
        numbers = [page.number async for page in app.show(entry.id, "pages")]
        statuses = [Path(f"/proc/{c._process.pid}/status").read_text() for c in app.resources.parsers._children]
    print(json.dumps({
        "completed": summary.completed,
        "pages": numbers == list(range(1, entry.pages + 1)) and entry.pages,
        "parent": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "children": max(int(s.split("VmHWM:")[1].split()[0]) >> 10 for s in statuses),
    }))
asyncio.run(main())
"""


def measured(folder: Path, pages: int) -> dict[str, int]:
    """Peaks of memory, in megabytes."""
    path = folder / f"{pages}.pdf"
    path.write_bytes(pdf(*numbered(pages)))
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), str(folder / f"home{pages}")],
        cwd=ROOT, capture_output=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, int] = json.loads(ran.stdout)
    return answer


def test_memory_stays_flat_however_long_a_document_is(tmp_path: Path) -> None:
    few, many = (2_000, 20_000) if LONG else (300, 3_000)
    short, long = measured(tmp_path, few), measured(tmp_path, many)
    assert (short["completed"], short["pages"], long["completed"], long["pages"]) == (1, few, 1, many)
    assert long["parent"] < short["parent"] + 60
    assert long["children"] < short["children"] + 40
