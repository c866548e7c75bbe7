"""Tables, records, trees and reStructuredText become pages with structure."""

import csv
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.providers import DIRECT

from penstock.extractors import formats, records, tree_pages
from penstock.extractors.text import TextExtractor
from penstock.model.items import Page
from penstock.runtime import Runtime


class Bytes:
    """Raw bytes in memory."""

    parser_s = 0.0
    providers = DIRECT
    flow = ("owner", "document")

    def __init__(self, data: bytes, name: str = "file") -> None:
        self.data, self.name, self.size = data, name, len(data)

    async def read_range(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    async def password(self) -> str | None:
        return None

    @asynccontextmanager
    async def file(self) -> AsyncIterator[Path]:
        yield Path("text is not read from a file")

    def waiting(self, on: str | None) -> None: ...

    def may_parse(self) -> None: ...

    def parsed(self, seconds: float) -> None: ...


async def pages_of(data: bytes, media_type: str, window: int = 256 * 1024, stop_after: int | None = None) -> list[Page]:
    """The pages, read without a break or (`stop_after`) with a new start from the cursor after so many batches."""
    runtime = Runtime()
    try:
        found: list[Page] = []
        cursor: dict[str, Any] = {}
        while True:
            count = 0
            extractor = TextExtractor(runtime, window)
            async for batch in extractor.extract(Bytes(data), media_type, {}, json.loads(json.dumps(cursor))):
                found += batch.pages
                cursor = batch.cursor
                count += 1
                if count == stop_after:
                    break
            else:
                return found
    finally:
        runtime.close()


def cells(pages: list[Page]) -> Iterator[list[str]]:
    """The rows of all Markdown tables below their headers."""
    for page in pages:
        for line in page.text.splitlines()[2:]:
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


class TestTables:
    async def test_a_table_keeps_its_header_on_every_page(self) -> None:
        rows = "".join(f"{n},name {n}\n" for n in range(1200))
        pages = await pages_of(f"id,name\n{rows}".encode(), formats.CSV)
        assert len(pages) == 3
        assert all(page.text.startswith("| id | name |\n| --- | --- |\n") for page in pages)
        assert [row[0] for row in cells(pages)] == [str(n) for n in range(1200)]
        assert pages[0].blocks[0].kind == "table"

    @pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
    async def test_the_delimiter_is_found(self, delimiter: str) -> None:
        text = f"a{delimiter}b\n1{delimiter}2\n3{delimiter}4\n"
        assert list(cells(await pages_of(text.encode(), formats.CSV))) == [["1", "2"], ["3", "4"]]

    async def test_rows_with_long_cells_name_their_columns(self) -> None:
        text = f'id,review\n7,"{"very good " * 50}"\n'
        (page,) = await pages_of(text.encode(), formats.CSV)
        assert page.text.startswith("id: 7\nreview: very good")

    async def test_a_file_that_is_no_table_is_kept_as_text(self) -> None:
        (page,) = await pages_of(b"just a line\nand another\n", formats.CSV)
        assert page.text == "just a line\nand another\n"

    @settings(deadline=None, max_examples=25)
    @given(
        st.lists(st.lists(st.text("ab \n\"',é", max_size=12), min_size=2, max_size=2), min_size=1, max_size=40),
        st.sampled_from([64, 128, 256]),
        st.sampled_from([None, 1, 2]),
    )
    async def test_i12_windows_and_interruptions_cut_no_row(
        self, rows: list[list[str]], window: int, stop_after: int | None
    ) -> None:
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow(["left", "right"])
        writer.writerows(rows)
        found = list(cells(await pages_of(file.getvalue().encode(), formats.CSV, window, stop_after)))
        wanted = [[" ".join(cell.split()) for cell in row] for row in rows]
        assert found == [row for row in wanted if any(row)]

    def test_quotation_marks_that_do_not_match_cost_little(self) -> None:
        data = b'"' + b"x,y\n" * 60_000
        assert records.last_row_end(data) == 0


class TestRecords:
    async def test_json_lines_become_blocks_of_names_and_values(self) -> None:
        text = '{"a": 1, "b": {"c": [1, 2], "d": [{"x": "y"}]}}\nnot json\n{"a": null}\n'
        (page,) = await pages_of(text.encode(), formats.JSON_LINES)
        assert page.text == "a: 1\nb.c: 1, 2\nb.d.1.x: y\n\nnot json"


class TestHeadings:
    async def test_headings_of_restructured_text_have_the_level_of_their_style(self) -> None:
        text = "=====\nTitle\n=====\n\nPart\n----\ntext\n\nInner\n~~~~~\n\nNext\n----\n"
        (page,) = await pages_of(text.encode(), formats.RST)
        assert [(block.title, block.level) for block in page.blocks] == [
            ("Title", 1), ("Part", 2), ("Inner", 3), ("Next", 2),
        ]  # fmt: skip

    async def test_i12_styles_are_known_after_an_interruption(self) -> None:
        text = (
            "One\n===\n\n" + "words and words\n\n" * 20 + "Two\n---\n\n" + "words and words\n\n" * 20 + "Three\n=====\n"
        )
        whole = await pages_of(text.encode(), formats.RST, 128)
        assert whole == await pages_of(text.encode(), formats.RST, 128, stop_after=1)
        assert [block.level for page in whole for block in page.blocks] == [1, 2, 1]


def tree(data: bytes, media_type: str) -> str:
    return "".join(page.text for page in tree_pages.read(io.BytesIO(data), media_type).pages)


class TestTrees:
    def test_json_becomes_names_and_values(self) -> None:
        assert (
            tree(b'[{"title": "Pump", "parts": ["rotor"]}, {"n": 2}]', formats.JSON)
            == "title: Pump\nparts: rotor\n\nn: 2"
        )

    def test_a_notebook_shows_its_cells_and_outputs(self) -> None:
        cells = [
            {"cell_type": "markdown", "source": ["# Head\n", "text"]},
            {"cell_type": "code", "source": "1 + 1", "outputs": [{"data": {"text/plain": ["2"]}}]},
        ]
        notebook = {"cells": cells, "metadata": {"language_info": {"name": "python"}}}
        assert tree(json.dumps(notebook).encode(), formats.NOTEBOOK) == (
            "# Head\ntext\n\n```python\n1 + 1\n```\n\n```\n2\n```"
        )

    def test_xml_keeps_sentences_whole_and_names_short_values(self) -> None:
        data = b"<lib><title>Water</title><p><b>Note</b> that <i>this</i> is prose.</p><year>1999</year></lib>"
        assert tree(data, formats.XML) == "# Water\n\nNote that this is prose.\n\n- year: 1999"

    @pytest.mark.parametrize(
        ("data", "media_type"),
        [
            (b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', formats.XML),
            (b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]><x>&a;</x>', formats.XML),
            (b"<x>" * 10_000, formats.XML),
            (b"[" * 100_000, formats.JSON),
            (b'{"cut": [1, 2', formats.JSON),
            (b'{"cells": 3}', formats.NOTEBOOK),
            (b"\xff\xfe\x00", formats.JSON),
        ],
    )
    def test_what_cannot_be_parsed_is_kept_as_text(self, data: bytes, media_type: str) -> None:
        assert tree(data, media_type)
