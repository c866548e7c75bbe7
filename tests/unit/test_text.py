import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.providers import DIRECT

from penstock.errors import Transient
from penstock.extractors.markdown import State, scan
from penstock.extractors.text import WINDOW, TextExtractor
from penstock.model.items import Page
from penstock.runtime import Runtime


class Bytes:
    name = "a.txt"
    flow = ("anna", "file")

    def __init__(self, data: bytes, size: int | None = None) -> None:
        self.data = data
        self.size = len(data) if size is None else size
        self.largest = 0

    async def read_range(self, offset: int, length: int) -> bytes:
        self.largest = max(self.largest, length)
        return self.data[offset : offset + length]

    async def password(self) -> None:
        return None

    @asynccontextmanager
    async def file(self) -> AsyncIterator[Path]:
        with NamedTemporaryFile() as file:
            file.write(self.data)
            file.flush()
            yield Path(file.name)

    def waiting(self, on: str | None) -> None:
        return None

    parser_s = 0.0
    providers = DIRECT

    def may_parse(self) -> None:
        pass

    def parsed(self, seconds: float) -> None:
        self.parser_s += seconds


Batches = list[tuple[list[Page], dict[str, Any]]]


async def batches(
    source: Bytes, media_type: str = "text/plain", cursor: dict[str, Any] | None = None, window: int = WINDOW
) -> Batches:
    runtime = Runtime()
    try:
        extractor = TextExtractor(runtime, window)
        return [(b.pages, b.cursor) async for b in extractor.extract(source, media_type, {}, cursor or {})]
    finally:
        runtime.close()


async def pages(data: bytes, media_type: str = "text/plain", window: int = WINDOW) -> list[Page]:
    return [page for found, _ in await batches(Bytes(data), media_type, window=window) for page in found]


async def test_a_small_file_is_one_page() -> None:
    text = "Hello\r\nworld.\n\nSecond paragraph.\n"
    assert await pages(text.encode()) == [Page(1, text)]
    assert await pages(("x" * (WINDOW - 1) + "\n").encode()) == [Page(1, "x" * (WINDOW - 1) + "\n")]


async def test_an_empty_file_has_no_page() -> None:
    assert await pages(b"") == []
    assert await pages(b"\xef\xbb\xbf") == []


async def test_form_feeds_separate_pages() -> None:
    assert [p.text for p in await pages(b"one\ftwo\f\ffour")] == ["one", "two", "", "four"]
    assert [p.number for p in await pages(b"one\ftwo\f\ffour")] == [1, 2, 3, 4]
    assert [p.text for p in await pages(b"one\ftwo\f")] == ["one", "two"]


@pytest.mark.parametrize("window", [64, 128])
async def test_a_page_between_form_feeds_stays_whole(window: int) -> None:
    texts = [f"page {i} " + "word " * (i % 9) for i in range(50)]
    assert [p.text for p in await pages("\f".join(texts).encode(), window=window)] == texts


async def test_windows_end_at_the_best_place() -> None:
    assert [p.text for p in await pages(b"aaaa bbbb\n\ncccc\ndddd eeee", window=20)] == [
        "aaaa bbbb\n\n",
        "cccc\ndddd eeee",
    ]
    assert [p.text for p in await pages(b"aaaa bbbb\ncccc dddd eeee", window=20)] == ["aaaa bbbb\n", "cccc dddd eeee"]
    assert [p.text for p in await pages(b"aaaa bbbb cccc dddd eeee", window=20)] == ["aaaa bbbb cccc dddd ", "eeee"]
    assert [p.text for p in await pages(b"a" * 24, window=20)] == ["a" * 20, "aaaa"]
    assert (await pages(b"aa\r\n\r\nbbbb\r\ncccccccccccccc", window=20))[0].text == "aa\r\n\r\n"


async def test_nul_becomes_the_replacement_character_and_other_controls_stay() -> None:
    [page] = await pages(b"some text that is long enough \0 with \x01\x1b in it")
    assert page.text == "some text that is long enough \ufffd with \x01\x1b in it"


FRENCH = "Le café était fermé à l'époque où les élèves étudiaient la littérature.\n"
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю.\n"
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n"
CHINESE = "中华人民共和国是世界上人口最多的国家之一。北京是首都,上海是最大的城市。\n"
KOREAN = "대한민국의 수도는 서울이다. 한국어는 한반도에서 사용되는 언어이다.\n"
UNICODE = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
ENCODED = {
    FRENCH: ["latin-1", "cp1252", "mac_roman"],
    RUSSIAN: ["koi8-r", "cp1251", "cp866", "iso8859-5"],
    JAPANESE: ["shift_jis", "euc_jp", "iso2022_jp"],
    CHINESE: ["gb18030", "gbk", "big5"],
    KOREAN: ["euc_kr", "iso2022_kr"],
}


@pytest.mark.parametrize("repeat", [2, 40])
@pytest.mark.parametrize(("text", "encoding"), [(t, e) for t, own in ENCODED.items() for e in UNICODE + own])
async def test_every_encoding_is_recognised(text: str, encoding: str, repeat: int) -> None:
    data = (text * repeat).encode(encoding, "replace")
    assert "".join(p.text for p in await pages(data)) == data.decode(encoding)
    assert "".join(p.text for p in await pages(data, window=64)) == data.decode(encoding)


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-16-le", "utf-32-be", "shift_jis", "gb18030", "iso2022_jp", "euc_kr"]
)
async def test_text_without_a_blank_is_cut_between_characters(encoding: str) -> None:
    korean = "대한민국의수도는서울이다한국어는한반도에서사용되는언어이다"
    japanese = "吾輩は猫である名前はまだ無いどこで生れたかとんと見当がつかぬ"
    text = (korean if encoding == "euc_kr" else japanese) * 20
    found = await pages(text.encode(encoding), window=64)
    assert len(found) > 10
    assert "".join(p.text for p in found) == text


async def test_a_line_end_in_utf16_is_not_seen_between_two_characters() -> None:
    text = "\u0a05\u4e00" * 100
    assert b"\n\0" in text.encode("utf-16-le")
    assert "".join(p.text for p in await pages(text.encode("utf-16"), window=64)) == text


async def test_one_bad_byte_does_not_make_latin_of_utf8() -> None:
    text = "Größe, Länge und Höhe über alles. " * 100
    data = text.encode() + b"\xff" + text.encode()
    assert (await pages(data))[0].text == text + "\ufffd" + text


async def test_an_encoding_that_shows_late_is_found() -> None:
    plain, french = b"plain ascii line of text\n" * 60_000, "Le café était fermé à l'époque.\n"
    found = await pages(plain + french.encode("cp1252"))
    assert found[-1].text.endswith(french)


async def test_a_large_file_is_read_in_bounded_ranges() -> None:
    source = Bytes(b"line of text\n" * 400_000)
    found = await batches(source)
    assert source.largest <= 1024 * 1024
    assert "".join(p.text for got, _ in found for p in got).encode() == source.data
    assert [p.number for got, _ in found for p in got] == list(range(1, len(found) + 1))


async def test_a_file_that_lost_its_end_is_not_taken_for_a_short_one() -> None:
    with pytest.raises(Transient, match="shorter"):
        await batches(Bytes(b"abc", size=10))


MARKDOWN = "text/markdown"
LINES = [
    *["# One", "## Two ##", "###### Six", "Title", "=====", "---", "- item", "  - deeper", "1. first", "> quote"],
    *["```", "```py", "~~~", "    code", "| a | b |", "|---|---|", "", "", "text ünïcode 日本語", "word " * 9, "\f"],
]
line = st.sampled_from(LINES) | st.text(st.characters(codec="utf-8"), max_size=12)
document = st.lists(line, max_size=40).map("\n".join)
encoding = st.sampled_from(
    ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "cp1252", "shift_jis", "gb18030", "koi8-r", "iso2022_jp"]
)


@settings(max_examples=150, deadline=None)
@given(document, encoding, st.sampled_from([MARKDOWN, "text/plain"]), st.sampled_from([16, 64, 256]))
def test_i12_a_resumed_pass_gives_the_same_pages(text: str, encoding: str, media_type: str, window: int) -> None:
    async def check() -> None:
        source = Bytes(text.encode(encoding, "replace"))
        whole = await batches(source, media_type, window=window)
        for i, (_, cursor) in enumerate(whole):
            stored = msgspec.json.decode(msgspec.json.encode(cursor))
            assert await batches(source, media_type, stored, window) == whole[i + 1 :]
        numbers = [page.number for found, _ in whole for page in found]
        assert numbers == list(range(1, len(numbers) + 1))

    asyncio.run(check())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | document.map(lambda text: text.encode("utf-16", "replace")), st.sampled_from([16, 64]))
def test_any_bytes_give_pages_that_can_be_stored(data: bytes, window: int) -> None:
    for page in asyncio.run(pages(data, MARKDOWN, window)):
        page.text.encode()
        assert "\0" not in page.text
        assert all(0 <= block.start < block.end <= len(page.text) for block in page.blocks)


@settings(max_examples=200, deadline=None)
@given(document, st.booleans())
def test_blocks_stand_in_order_and_cover_every_word(text: str, first: bool) -> None:
    blocks, _ = scan(text, State(), first)
    at = 0
    for block in blocks:
        assert at <= block.start < block.end
        assert not text[at : block.start].strip(" \t\r\n-*_")
        at = block.end
    assert not text[at:].strip(" \t\r\n-*_")


def kinds(text: str) -> list[tuple[str, str]]:
    return [(block.kind, text[block.start : block.end]) for block in scan(text, State(), first=True)[0]]


def test_markdown_structure() -> None:
    text = (
        "---\ntitle: x\n---\n# One ##\n\nText\ntwo\n## Two\n- a\n  - b\n\n  more\n- c\n```py\n# no heading\n```\n"
        "Under\n=====\n\n| a | b |\n|---|--:|\n| 1 | 2 |\nafter\n> quote\n> more\n\n"
        "    indented\n\n* * *\n1) one\n2) two\n"
    )
    assert kinds(text) == [
        ("code", "---\ntitle: x\n---"),
        ("heading", "# One ##"),
        ("paragraph", "Text\ntwo"),
        ("heading", "## Two"),
        ("list", "- a\n  - b\n\n  more\n- c"),
        ("code", "```py\n# no heading\n```"),
        ("heading", "Under\n====="),
        ("table", "| a | b |\n|---|--:|\n| 1 | 2 |"),
        ("paragraph", "after"),
        ("quote", "> quote\n> more"),
        ("code", "    indented"),
        ("list", "1) one\n2) two"),
    ]
    headings = [(b.level, b.title) for b in scan(text, State(), first=True)[0] if b.kind == "heading"]
    assert headings == [(1, "One"), (2, "Two"), (1, "Under")]
    assert kinds(text.replace("\n", "\r\n")) == [(kind, part.replace("\n", "\r\n")) for kind, part in kinds(text)]


def test_what_only_looks_like_a_heading() -> None:
    assert kinds("#hashtag\n") == [("paragraph", "#hashtag")]
    assert kinds("####### seven\n") == [("paragraph", "####### seven")]
    assert kinds("one\ntwo\nthree\nfour\n---\n") == [("paragraph", "one\ntwo\nthree\nfour\n---")]
    assert kinds("```\n# comment\n") == [("code", "```\n# comment")]
    assert kinds("- item\n\n  ```sh\n  # comment\n  ```\n- next\n")[1] == ("code", "  ```sh\n  # comment\n  ```")
    assert kinds("a ``` b\n```x``` y\n") == [("paragraph", "a ``` b\n```x``` y")]


async def test_headings_and_fences_stay_open_over_pages() -> None:
    first, second, third = await pages(b"# A\n### C\ntext\n```\ncode\f# comment\n```\n## B\n\fend", MARKDOWN)
    assert (first.path, second.path, third.path) == ((), ("A", "", "C"), ("A", "B"))
    assert [block.kind for block in second.blocks] == ["code", "heading"]
    assert second.text[second.blocks[0].start : second.blocks[0].end] == "# comment\n```"


async def test_headings_and_fences_stay_open_over_windows() -> None:
    first, second = await pages(b"# A\n\n```\ncode one\n\n# comment\n```\nend\n", MARKDOWN, window=20)
    assert first.text.endswith("code one\n\n")
    assert (second.path, [block.kind for block in second.blocks]) == (("A",), ["code", "paragraph"])


async def test_plain_text_has_no_blocks() -> None:
    assert (await pages(b"# not Markdown\n"))[0].blocks == ()
