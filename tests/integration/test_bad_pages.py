"""A page that cannot be read costs its page: it is skipped and recorded. Where no page may be bad, the pages before it
are kept and are not read again."""

import asyncio
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import StartApp
from tests.integration.test_pdf import Calls, File, pages_of
from tests.kit import parts
from tests.kit.apps import named, only
from tests.kit.pdfs import numbered, pdf

from penstock.app import App
from penstock.errors import Transient
from penstock.extractors.base import Raw
from penstock.extractors.pdf import PAGES, PdfExtractor
from penstock.model.items import Page

Files = Callable[..., Path]
REASONS = {
    "crash": "parser_crash",
    "hang": "parser_timeout",
    "memory": "parser_memory",
    "stumble": "parser_error",
}


@pytest.mark.parametrize("page", [1, PAGES + 1, 21])
@pytest.mark.parametrize("kind", ["crash", "memory", "stumble"])
async def test_i4_pages_before_a_bad_one_are_kept_and_a_retry_goes_on_there(
    start_app: StartApp, files: Files, curse: Callable[[str], None], kind: str, page: int
) -> None:
    await _read_to(page, kind, start_app, files, curse)


async def test_i4_pages_before_one_that_hangs_are_kept_and_a_retry_goes_on_there(
    start_app: StartApp, files: Files, curse: Callable[[str], None]
) -> None:
    await _read_to(21, "hang", start_app, files, curse)


async def _read_to(page: int, kind: str, start_app: StartApp, files: Files, curse: Callable[[str], None]) -> None:
    curse(f"{kind}:{page}")
    folder = files(**{"a.pdf": pdf(*numbered(30))})
    app = await start_app(parsers={"children": 2, "timeout_s": 1.0}, limits={"bad_pages": 0.0})
    calls = Calls(app.resources.parsers)
    assert (await app.ingest([folder])).failed == 1
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, letter.page) == (REASONS[kind], page)
    document = await only(app)
    before = await pages_of(app, document.id)
    assert [p.number for p in before] == list(range(1, page))
    good = [(first, count) for first, count in calls.batches if first + count < page]
    assert len(good) == len(set(good)), "none was read twice"
    curse("none:0")
    generous = await start_app(parsers={"children": 2})
    again = Calls(generous.resources.parsers)
    await generous.retry([document.id])
    assert (await generous.run()).completed == 1
    assert min(first for first, _ in again.batches) == page - 1
    after = await pages_of(generous, document.id)
    assert [p.number for p in after] == list(range(1, 31))
    assert after[: page - 1] == before


@pytest.mark.parametrize("kind", ["crash", "memory", "stumble", "hang"])
async def test_i9_a_page_that_fails_twice_is_skipped_and_every_view_says_so(
    start_app: StartApp, files: Files, curse: Callable[[str], None], kind: str
) -> None:
    curse(f"{kind}:12")
    folder = files(**{"a.pdf": pdf(*numbered(30)), "same.pdf": pdf(*numbered(30))})
    app = await start_app(parsers={"children": 2, "timeout_s": 1.0})
    calls = Calls(app.resources.parsers)
    assert (await app.ingest([folder / "a.pdf"])).completed == 1
    assert calls.batches.count((11, 1)) == 2, "it is tried again once"
    document = await only(app)
    await _records(app, document.id, kind)
    # Another document with the same bytes uses the same artifact, and must not look whole.
    await app.ingest([folder / "same.pdf"])
    await _records(app, (await named(app, "same.pdf")).id, kind)
    assert (await app.check()).ok


async def _records(app: App, document: str, kind: str) -> None:
    details = await app.status(document)
    [skip] = details.pages_skipped
    assert (skip["page"], skip["reason"]) == (12, REASONS[kind])
    assert "page 12" in skip["error"]
    [step] = [step for step in details.steps if step.kind == "extract"]
    assert step.meta["pages_skipped"] == details.pages_skipped
    pages = await pages_of(app, document)
    assert [page.number for page in pages] == list(range(1, 31))
    assert [page.number for page in pages if page.skipped is not None or not page.text] == [12]
    hits = [hit for hit in await app.search("subject29", 5, mode="text") if hit.document_id == document]
    assert hits
    assert {hit.pages_skipped for hit in hits} == {(12,)}
    assert hits[0].metadata["pages_skipped"] == [12]


async def test_i12_skipped_pages_are_recorded_the_same_however_often_it_is_interrupted(
    start_app: StartApp, files: Files
) -> None:
    holes = [None if number in (3, 20, 21, 39) else page for number, page in enumerate(numbered(40), 1)]
    folder = files(**{"a.pdf": pdf(*holes)})
    app = await start_app(parsers={"children": 2})
    await app.ingest([folder], wait=False)
    rounds = 0
    while (await app.run(budget_s=0.001)).budget_spent:
        rounds += 1
    assert rounds > 2
    undisturbed = await start_app("undisturbed")
    await undisturbed.ingest([folder])
    views = []
    for one in (app, undisturbed):
        details = await one.status((await only(one)).id)
        views.append((details.pages_skipped, await pages_of(one, details.id)))
    assert views[0] == views[1]
    assert [skip["page"] for skip in views[0][0]] == [3, 20, 21, 39]


async def test_i9_more_than_the_set_share_of_bad_pages_fails_the_document(start_app: StartApp, files: Files) -> None:
    """The pages before the one that was too many are kept, and a higher share continues there."""
    holes = [None if number in (3, 12, 13, 14, 19) else page for number, page in enumerate(numbered(20), 1)]
    folder = files(**{"a.pdf": pdf(*holes), "all.pdf": pdf(None, None, None), "one.pdf": pdf(*numbered(1), None)})
    app = await start_app(limits={"bad_pages": 0.2})
    assert (await app.ingest([folder])).failed == 2
    letters = {letter.name: letter for letter in (await app.list_dead_letters()).letters}
    assert set(letters) == {"a.pdf", "all.pdf"}, "one bad page of several is not too many"
    assert {(letter.reason, letter.page) for letter in letters.values()} == {("damaged", 3), ("damaged", 1)}
    assert "5 of 20 pages" in letters["a.pdf"].error
    assert "limits.bad_pages" in letters["a.pdf"].error
    document = await named(app, "a.pdf")
    assert [page.number for page in await pages_of(app, document.id)] == list(range(1, 19))
    assert [skip["page"] for skip in (await app.status(document.id)).pages_skipped] == [3, 12, 13, 14]
    higher = await start_app(limits={"bad_pages": 1.0})
    calls = Calls(higher.resources.parsers)
    await higher.retry([letter.document_id for letter in letters.values() if letter.document_id is not None])
    summary = await higher.run()
    assert (summary.completed, summary.failed) == (1, 1), "a document without a single good page always fails"
    assert (18, 8) in calls.batches
    assert [skip["page"] for skip in (await higher.status(document.id)).pages_skipped] == [3, 12, 13, 14, 19]


async def test_i9_a_damaged_slide_or_chapter_is_skipped_and_the_others_are_read(
    start_app: StartApp, files: Files
) -> None:
    slides = [parts.shape(parts.paragraph(f"slideword{number}")) for number in range(1, 6)]
    book = {f"c{number}": f"<h1>Title</h1><p>bookword{number}</p>" for number in range(1, 6)}
    folder = files(**{"a.pptx": _torn(parts.pptx(slides), "slide97.xml"), "b.epub": _torn(parts.epub(book), "c3")})
    app = await start_app()
    assert (await app.ingest([folder])).completed == 2
    for name, word in (("a.pptx", "slideword"), ("b.epub", "bookword")):
        details = await app.status((await named(app, name)).id)
        assert [(skip["page"], skip["reason"]) for skip in details.pages_skipped] == [(3, "damaged")]
        assert [page.number for page in await pages_of(app, details.id)] == [1, 2, 3, 4, 5]
        assert {hit.pages_skipped for hit in await app.search(f"{word}5", 1, mode="text")} == {(3,)}


def _torn(data: bytes, member: str) -> bytes:
    """The archive with another checksum for the member whose name contains this."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        [found] = [one for one in archive.infolist() if member in one.filename and "rels" not in one.filename]
    torn = found.CRC.to_bytes(4, "little")
    assert torn in data
    return data.replace(torn, bytes(byte ^ 255 for byte in torn))


class Ahead:
    """Parsers of which the second batch is lost before the first is read."""

    width = 1

    async def call(self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path | None = None) -> bytes:
        first = arguments["first"]
        if first == 2 * PAGES:
            raise Transient("no process could be started", reason="parser_start")
        await asyncio.sleep(0.05 if first == PAGES else 0)
        pages = [Page(i + 1, "text") for i in range(first, first + arguments["count"])]
        return msgspec.msgpack.encode((5 * PAGES, pages))


async def test_i4_a_batch_that_is_lost_takes_none_with_it_that_was_read(tmp_path: Path) -> None:
    kept: list[int] = []
    with pytest.raises(Transient, match="no process"):  # noqa: PT012
        async for batch in PdfExtractor(Ahead()).extract(File(tmp_path), "", {}, {}):
            kept += [page.number for page in batch.pages]
    assert kept == list(range(1, 2 * PAGES + 1))
