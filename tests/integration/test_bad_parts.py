"""A slide, sheet, chapter or message on which the parser process fails costs that part alone, as a page of a PDF."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import StartApp
from tests.integration.test_bad_pages import REASONS
from tests.integration.test_pdf import pages_of
from tests.kit import ole, parts
from tests.kit.apps import named, only
from tests.unit.test_whole import File

from penstock.app import App
from penstock.errors import ParserBreach
from penstock.extractors.base import FileContent, Raw
from penstock.extractors.formats import PPTX, of
from penstock.extractors.numbered import GROUP
from penstock.extractors.whole import WholeFileExtractor
from penstock.model.items import Page

Files = Callable[..., Path]
Curse = Callable[[str], None]


def deck(count: int) -> bytes:
    return parts.pptx([parts.shape(parts.paragraph(f"slideword{number}")) for number in range(1, count + 1)])


def mail(count: int) -> bytes:
    made = parts.message("outer", "mailword0")
    for number in range(1, count):
        made.add_attachment(parts.message("inner", f"mailword{number}", f"<p>mailword{number}</p>"))
    return made.as_bytes()


def book(count: int) -> bytes:
    return parts.epub({f"c{n}": f"<h1>Title {n}</h1><p>bookword{n}</p>" for n in range(1, count + 1)})


def odp(count: int) -> bytes:
    slides = (f"<draw:page><text:p>openword{n}</text:p></draw:page>" for n in range(1, count + 1))
    return parts.opendocument("presentation", "".join(slides))


def cells(word: str, count: int) -> dict[str, list[list[str]]]:
    return {f"Sheet {n}": [["name", "value"], [f"{word}{n}", "1"]] for n in range(1, count + 1)}


class Spans:
    """Lists the calls for parts, by span; None for the whole file."""

    def __init__(self, app: App) -> None:
        self.seen: list[tuple[int, ...] | None] = []
        parsers: Any = app.resources.parsers
        call = parsers.call

        async def counted(reader: str, arguments: dict[str, Any], **more: Any) -> bytes:
            self.seen.append(tuple(arguments["span"]) if "span" in arguments else None)
            answer: bytes = await call(reader, arguments, **more)
            return answer

        parsers.call = counted


async def test_i9_a_bad_part_of_any_numbered_format_is_skipped_alone(
    start_app: StartApp, files: Files, curse: Curse
) -> None:
    curse("stumble:slide 3|Sheet 3|chapter 3|enclosed message 2")
    long = {**cells("sheetword", 4), "Sheet 2": [["name"], *([f"row{n}"] for n in range(1, 1200))]}
    folder = files(
        **{
            "a.pptx": deck(4),
            "b.odp": odp(4),
            "c.xlsx": parts.xlsx(long),
            "d.xls": ole.excel(cells("oldword", 4)),
            "e.epub": book(4),
            "f.eml": mail(4),
        }
    )
    app = await start_app(parsers={"children": 2})
    assert (await app.ingest([folder])).completed == 6
    words = {"a.pptx": "slideword4", "b.odp": "openword4", "c.xlsx": "sheetword4", "d.xls": "oldword4"}
    for name, word in {**words, "e.epub": "bookword4", "f.eml": "mailword3"}.items():
        details = await app.status((await named(app, name)).id)
        bad = 5 if name == "c.xlsx" else 3
        assert [(skip["page"], skip["reason"]) for skip in details.pages_skipped] == [(bad, "parser_error")], name
        pages = await pages_of(app, details.id)
        assert [page.number for page in pages] == list(range(1, bad + 2)), "a long sheet has three pages"
        assert [page.number for page in pages if page.skipped is not None] == [bad]
        label = pages[bad - 1].label
        assert label in ("slide 3", "Sheet 3", "chapter 3", "enclosed message 2")
        assert label in details.pages_skipped[0]["error"]
        assert details.pages_skipped[0]["label"] == label
        assert word in pages[-1].text
        hits = [hit for hit in await app.search(word, 5, mode="text") if hit.name == name]
        assert {hit.pages_skipped for hit in hits} == {(bad,)}, name
    assert (await app.check()).ok


@pytest.mark.parametrize("kind", ["crash", "memory", "hang"])
async def test_i9_a_slide_that_fails_is_tried_again_once_and_then_skipped(
    start_app: StartApp, files: Files, curse: Curse, kind: str
) -> None:
    curse(f"{kind}:slide 10")
    folder = files(**{"a.pptx": deck(12)})
    app = await start_app(parsers={"children": 2, "timeout_s": 1.0})
    spans = Spans(app)
    assert (await app.ingest([folder])).completed == 1
    alone = [(8, 1), (9, 1), (9, 1), (10, 1), (11, 1)]
    assert spans.seen == [None, (0, 0), (0, GROUP), (GROUP, 4), *alone]
    [skip] = (await app.status((await only(app)).id)).pages_skipped
    assert (skip["page"], skip["reason"]) == (10, REASONS[kind])


async def test_i9_more_than_the_set_share_of_bad_slides_fails_it_and_a_higher_share_completes_it(
    start_app: StartApp, files: Files, curse: Curse
) -> None:
    curse("stumble:slide 2|slide 4|slide 5")
    folder = files(**{"a.pptx": deck(6)})
    app = await start_app()
    assert (await app.ingest([folder])).failed == 1
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, letter.page) == ("parser_error", 2)
    assert "3 of 6 pages cannot be read" in letter.error
    higher = await start_app(limits={"bad_pages": 0.5})
    await higher.retry([(await only(higher)).id])
    assert (await higher.run()).completed == 1
    assert [skip["page"] for skip in (await higher.status((await only(higher)).id)).pages_skipped] == [2, 4, 5]


async def test_i9_a_mail_whose_only_text_is_bad_fails_and_its_attachment_lives(
    start_app: StartApp, files: Files, curse: Curse
) -> None:
    curse("stumble:message")
    made = parts.message("outer", "mailword0")
    made.add_attachment("attachedword", filename="inside.txt")
    app = await start_app()
    summary = await app.ingest([files(**{"a.eml": made.as_bytes()})])
    assert (summary.completed, summary.failed) == (1, 1)
    assert {hit.name for hit in await app.search("attachedword", 5, mode="text")} == {"inside.txt"}


class Failing:
    """Parser processes that read a deck of twenty slides, but never the fifth."""

    width = 1

    async def call(self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path | None = None) -> bytes:
        first, count = arguments.get("span", (0, 20))
        if first <= 4 < first + count:
            raise ParserBreach("the parser crashed", reason="parser_crash")
        numbers = range(first + 1, min(20, first + count) + 1)
        pages = [Page(place, f"text {n}", f"slide {n}") for place, n in enumerate(numbers, 1)]
        return msgspec.msgpack.encode(FileContent(pages, {}, [f"slide {n}" for n in range(1, 21)]))


async def test_i12_parts_are_the_same_from_any_cursor(tmp_path: Path) -> None:
    path = tmp_path / "a.pptx"
    path.write_bytes(b"")
    extractor = WholeFileExtractor(Failing(), of(PPTX))

    async def batches(cursor: dict[str, Any]) -> list[tuple[dict[str, Any], list[Page]]]:
        return [(batch.cursor, batch.pages) async for batch in extractor.extract(File(path), PPTX, {}, cursor)]

    whole = await batches({})
    every = [page for _, found in whole for page in found]
    assert [page.number for page in every] == list(range(1, 21))
    assert [page.label for page in every] == [f"slide {n}" for n in range(1, 21)]
    assert [page.number for page in every if page.skipped is not None] == [5]
    for done, (cursor, _) in enumerate(whole, 1):
        rest = [page for _, found in await batches(cursor) for page in found]
        assert rest == [page for _, found in whole[done:] for page in found]
