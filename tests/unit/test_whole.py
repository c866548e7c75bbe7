from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from tests.kit.office import BREAK, make, par, run
from tests.kit.providers import DIRECT

from penstock.extractors import office
from penstock.extractors.base import Extracted, Raw
from penstock.extractors.formats import DOCX, HTML, PDF, PLAIN, Parts, make_extractors, of
from penstock.extractors.whole import BATCH, WholeFileExtractor


class Here:
    """Reads in this process what a parser process would."""

    width = 1
    calls = 0

    async def call(self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path | None = None) -> bytes:
        assert reader == "office"
        assert document is not None
        self.calls += 1
        with document.open("rb") as file:
            return msgspec.msgpack.encode(office.read(file, **arguments))


class File:
    name = "a.docx"
    flow = ("anna", "file")

    def __init__(self, path: Path) -> None:
        self._path = path
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

    parser_s = 0.0
    providers = DIRECT

    def may_parse(self) -> None:
        pass

    def parsed(self, seconds: float) -> None:
        self.parser_s += seconds


async def test_i12_batches_are_the_same_from_any_cursor(tmp_path: Path) -> None:
    path = make(tmp_path / "a.docx", "".join(par(run(f"page {i}") + BREAK) for i in range(2 * BATCH + 5)))
    parsers = Here()
    extractor = WholeFileExtractor(parsers, of(DOCX))

    async def batches(cursor: dict[str, Any]) -> list[Extracted]:
        return [batch async for batch in extractor.extract(File(path), DOCX, {}, cursor)]

    whole = await batches({})
    pages = [page for batch in whole for page in batch.pages]
    assert [page.text for page in pages] == [f"page {i}" for i in range(2 * BATCH + 5)]
    assert whole[-1].cursor == {"pages": len(pages), "of": len(pages)}
    assert whole[0].cursor == {"pages": BATCH, "of": len(pages)}
    for done, batch in enumerate(whole, 1):
        assert await batches(batch.cursor) == whole[done:]
    assert parsers.calls == len(whole), "what is done is not read again"
    assert extractor.version(DOCX, {}) == "office-2"


def test_versions_name_the_libraries_that_decide_the_output() -> None:
    parsers: Any = None
    runtime: Any = None
    extractors = make_extractors(Parts(runtime, parsers))
    for media_type, name in ((HTML, "charset-normalizer"), (PLAIN, "charset-normalizer"), (PDF, "pypdfium2")):
        assert f"/{name}-{version(name)}" in extractors[media_type].version(media_type, {})
