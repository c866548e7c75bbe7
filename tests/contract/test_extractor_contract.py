"""What every extractor must do, for every row of the table of formats. A new format joins with a sample."""

import asyncio
import bz2
import importlib
import json
import lzma
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit import ole, parts, pdfs
from tests.kit.archives import make_7z, make_tar, make_tar_gz, make_zip
from tests.kit.office import BREAK, make, par, run, styled
from tests.kit.providers import DIRECT

from penstock.errors import StepError
from penstock.extractors import formats
from penstock.extractors.base import Extracted, Extractor
from penstock.extractors.formats import (
    BZIP2,
    DOC,
    DOCX,
    EML,
    EPUB,
    FORMATS,
    GZIP,
    HTML,
    MARKDOWN,
    MSG,
    ODP,
    ODS,
    ODT,
    PDF,
    PLAIN,
    PPTX,
    RTF,
    SEVEN_ZIP,
    TAR,
    XLS,
    XLSX,
    XZ,
    ZIP,
    Format,
    Ole,
    Text,
)
from penstock.extractors.media import detect
from penstock.extractors.properties import bounded
from penstock.extractors.text import TextExtractor
from penstock.runtime import Runtime
from penstock.worker.parsers.pool import ParserPool

READ = [row for row in FORMATS if row.adapter is not None and not row.media_type.startswith(("audio/", "image/"))]
"""Formats with text. Sound and images have tests of their own, because a transcriber or OCR makes their text."""
COUNT = 40
"""Pages or sections of a sample: more than one batch of any extractor."""


def paragraphs(mark: str = "") -> list[str]:
    return [f"{mark}Section {i} tells of otter{i} at some length. {'And so on. ' * 700}" for i in range(COUNT)]


def word(path: Path) -> bytes:
    pages = (par(run(f"Section {i} tells of otter{i}") + BREAK) for i in range(COUNT))
    return make(path, styled("Otters", "Heading1") + "".join(pages)).read_bytes()


def rows() -> list[list[str]]:
    return [["Otter", "Note"], *([f"otter{i}", "And so on."] for i in range(COUNT))]


def ods_rows() -> str:
    cell = '<table:table-cell office:value-type="string"><text:p>{}</text:p></table:table-cell>'
    return "".join(f"<table:table-row>{''.join(map(cell.format, row))}</table:table-row>" for row in rows())


def members() -> dict[str, str]:
    return {f"{i}.txt": text for i, text in enumerate(paragraphs())}


def items(found: list[Extracted]) -> list[Any]:
    """Pages and children. A child can be read only once, so its bytes count."""
    return [item for one in found for item in (*one.pages, *((c.member, c.name, c.data) for c in one.children))]


SAMPLES: dict[str, Callable[[Path], bytes]] = {
    PLAIN: lambda path: "\n\n".join(paragraphs()).encode(),
    MARKDOWN: lambda path: ("# Otters\n\n" + "\n\n".join(paragraphs("## "))).encode(),
    HTML: lambda path: f"<html><body><h1>Otters</h1><p>{'<p>'.join(paragraphs())}</body></html>".encode(),
    PDF: lambda path: pdfs.pdf(*pdfs.numbered(COUNT, "otter")),
    DOCX: word,
    PPTX: lambda path: parts.pptx([parts.shape(parts.paragraph(text), "") for text in paragraphs()]),
    XLSX: lambda path: parts.xlsx({"Otters": rows()}),
    XLS: lambda path: ole.excel({"Otters": rows()}),
    ODS: lambda path: parts.opendocument("spreadsheet", f'<table:table table:name="O">{ods_rows()}</table:table>'),
    ODT: lambda path: parts.opendocument("text", "".join(f"<text:p>{text}</text:p>" for text in paragraphs())),
    ODP: lambda path: parts.opendocument(
        "presentation", "".join(f"<draw:page><text:p>{text}</text:p></draw:page>" for text in paragraphs())
    ),
    EPUB: lambda path: parts.epub({f"c{i}": f"<p>{text}" for i, text in enumerate(paragraphs())}),
    EML: lambda path: parts.message("Otters", "\n\n".join(paragraphs())).as_bytes(),
    MSG: lambda path: ole.outlook("Otters", "\r\n\r\n".join(paragraphs())),
    DOC: lambda path: ole.word("\r".join(paragraphs()) + "\r"),
    ZIP: lambda path: make_zip(members()),
    TAR: lambda path: make_tar(members()),
    GZIP: lambda path: make_tar_gz(members()),
    BZIP2: lambda path: bz2.compress(make_tar(members())),
    XZ: lambda path: lzma.compress(make_tar(members())),
    SEVEN_ZIP: lambda path: make_7z(members()),
    RTF: lambda path: ("{\\rtf1\\ansi " + "\\par ".join(paragraphs()) + "}").encode(),
    formats.XML: lambda path: f"<?xml version='1.0'?><o><p>{'</p><p>'.join(paragraphs())}</p></o>".encode(),
    formats.JSON: lambda path: json.dumps([{"text": text} for text in paragraphs()]).encode(),
    formats.NOTEBOOK: lambda path: json.dumps(
        {"cells": [{"cell_type": "markdown", "source": text} for text in paragraphs()]}
    ).encode(),
    formats.JSON_LINES: lambda path: "\n".join(json.dumps({"text": text}) for text in paragraphs()).encode(),
    formats.CSV: lambda path: "\n".join(f"{n},{text}" for n, text in enumerate(paragraphs())).encode(),
}

SAMPLES |= {row.media_type: SAMPLES[PLAIN] for row in READ if row.sign == Text() and row.media_type not in SAMPLES}


class File:
    flow = ("anna", "file")
    parser_s = 0.0
    providers = DIRECT

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = path.name
        self.size = path.stat().st_size

    async def password(self) -> str | None:
        return None

    async def read_range(self, offset: int, length: int) -> bytes:
        return self._path.read_bytes()[offset : offset + length]

    @asynccontextmanager
    async def file(self) -> AsyncIterator[Path]:
        yield self._path

    def waiting(self, on: str | None) -> None:
        pass

    def may_parse(self) -> None:
        pass

    def parsed(self, seconds: float) -> None:
        self.parser_s += seconds


@pytest.fixture(params=READ, ids=lambda row: row.suffixes[0])
def row(request: pytest.FixtureRequest) -> Format:
    chosen: Format = request.param
    return chosen


@pytest.fixture
async def extractors(runtime: Runtime) -> AsyncIterator[dict[str, Extractor]]:
    parsers = ParserPool(children=1, memory_mb=512, timeout_s=30)
    yield formats.make_extractors(formats.Parts(runtime, parsers))
    await parsers.close()


@pytest.fixture
def extractor(row: Format, extractors: dict[str, Extractor]) -> Extractor:
    return extractors[row.media_type]


@pytest.fixture
def sample(row: Format, tmp_path: Path) -> Path:
    path = tmp_path / f"sample.{row.suffixes[0]}"
    path.write_bytes(SAMPLES[row.media_type](tmp_path / "made"))
    return path


async def batches(extractor: Extractor, path: Path, row: Format, cursor: dict[str, Any]) -> list[Extracted]:
    async with aclosing(extractor.extract(File(path), row.media_type, {}, cursor)) as found:
        return [batch async for batch in found]


def test_every_format_that_is_read_has_an_extractor_and_a_sample(extractors: dict[str, Extractor]) -> None:
    assert set(SAMPLES) == {row.media_type for row in READ}
    assert set(extractors) == {row.media_type for row in FORMATS if row.adapter is not None}


def test_a_sample_is_recognised(row: Format, sample: Path) -> None:
    head = sample.read_bytes()[:8192]
    for suffix in row.suffixes:
        assert detect(head, f"a.{suffix}") == detect(head, f"A.{suffix.upper()}") == row.media_type
    if row.sign not in (Text(), Ole()):
        assert detect(head, "noname") == row.media_type, "by its content"


async def test_the_text_is_found_page_by_page(row: Format, extractor: Extractor, sample: Path) -> None:
    found = await batches(extractor, sample, row, {})
    pages = [page for batch in found for page in batch.pages]
    assert [page.number for page in pages] == list(range(1, len(pages) + 1))
    text = "\n".join(page.text for page in pages)
    text += "\n".join((child.data or b"").decode() for batch in found for child in batch.children)
    assert all(f"otter{i}" in text for i in range(1, COUNT))
    for batch in found:
        assert isinstance(batch.keep, bool)
        assert not batch.children or row.members is not None
        assert bounded(batch.metadata) == batch.metadata, "plain values"


async def test_i12_extraction_goes_on_from_any_cursor(row: Format, extractor: Extractor, sample: Path) -> None:
    whole = await batches(extractor, sample, row, {})
    all_items = items(whole)
    done = 0
    for batch in whole:
        done += len(items([batch]))
        kept = msgspec.json.decode(msgspec.json.encode(batch.cursor))
        rest = await batches(extractor, sample, row, kept)
        assert items(rest) == all_items[done:]
    assert done == len(all_items)


async def test_an_extraction_that_is_left_leaves_nothing_behind(
    row: Format, extractor: Extractor, sample: Path
) -> None:
    async with aclosing(extractor.extract(File(sample), row.media_type, {}, {})) as found:
        first = await anext(found)
    again = await batches(extractor, sample, row, {})
    assert items(again)[: len(items([first]))] == items([first])


@pytest.mark.parametrize("kind", ["half", "zeros", "reversed", "first"])
async def test_a_damaged_file_gives_pages_or_a_reason(
    row: Format, extractor: Extractor, sample: Path, kind: str
) -> None:
    data = sample.read_bytes()
    damaged = {
        "half": data[: len(data) // 2],
        "zeros": data[:100] + bytes(len(data)),
        "reversed": data[::-1],
        "first": data[:1],
    }
    sample.write_bytes(damaged[kind])
    outcomes = await asyncio.gather(batches(extractor, sample, row, {}), return_exceptions=True)
    outcome: list[Extracted] | BaseException = outcomes[0]
    if isinstance(outcome, BaseException):
        assert isinstance(outcome, StepError), outcome
        assert outcome.reason
    else:
        assert all(isinstance(page.text, str) for batch in outcome for page in batch.pages)


def test_a_version_is_asked_with_media_type_and_parameters(row: Format, extractor: Extractor) -> None:
    version = extractor.version(row.media_type, {})
    assert version.startswith(f"{row.version}/" if row.libraries else row.version)
    assert extractor.version(row.media_type, {"unknown": 1}) == version
    assert extractor.paid in (True, False)


def test_a_new_version_of_one_reader_is_of_no_other_format(
    row: Format, extractors: dict[str, Extractor], runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: extractor.version(name, {}) for name, extractor in extractors.items()}
    newer = tuple(msgspec.structs.replace(r, version="newer-9") if r == row else r for r in FORMATS)
    monkeypatch.setattr(formats, "FORMATS", newer)
    parsers: Any = None
    after = {
        name: one.version(name, {}) for name, one in formats.make_extractors(formats.Parts(runtime, parsers)).items()
    }
    assert {name for name in before if before[name] != after[name]} == {row.media_type}


def test_what_a_parser_process_runs_is_there(row: Format) -> None:
    readers = [reader for reader in (row.reader, row.members) if reader is not None]
    if not readers:
        assert row.adapter == "penstock.extractors.text:make"
        assert TextExtractor.paid is False
        return
    for reader in readers:
        assert callable(importlib.import_module(reader.module).read)
        for module in reader.late:
            importlib.import_module(module)
    assert f".{row.suffixes[0]}" in formats.PARSED


def test_rows_do_not_contradict_each_other() -> None:
    suffixes = [suffix for row in FORMATS for suffix in row.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert all(suffix == suffix.lower() and "." not in suffix for suffix in suffixes)
    assert len({row.media_type for row in FORMATS}) == len({row.label for row in FORMATS}) == len(FORMATS)
    assert all(row.version for row in READ)


def test_a_media_type_without_a_row_has_a_plain_one() -> None:
    assert formats.of("image/xcf") == Format(media_type="image/xcf", label="image/xcf")
    assert formats.of(None).media_type == PLAIN
