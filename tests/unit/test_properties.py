"""The metadata that files contain."""

import importlib
import io
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit import ole, parts, pdfs
from tests.kit.languages import CHINESE, GERMAN, HINDI, SPANISH
from tests.kit.office import make, par

from penstock.extractors import formats, languages, markdown, pdf_pages
from penstock.extractors.properties import LONGEST_TEXT, MOST_KEYS, MOST_VALUES, bounded, moment, properties
from penstock.model.items import Page
from penstock.stages.finding import Finding

CORE = """<cp:coreProperties xmlns:cp="cp" xmlns:dc="dc" xmlns:dcterms="dt"><dc:title>Rivers</dc:title>
<dc:creator>Ann Otter</dc:creator><dcterms:created>2020-01-02T03:04:05Z</dcterms:created>
<dcterms:modified>2021-01-02T03:04:05+01:00</dcterms:modified><dc:language>de-DE</dc:language></cp:coreProperties>"""
WHOLE = {
    "title": "Rivers",
    "author": "Ann Otter",
    "created": "2020-01-02T03:04:05Z",
    "modified": "2021-01-02T02:04:05Z",
    "language": "de-DE",
}


def read(data: bytes, media_type: str) -> dict[str, Any]:
    reader = formats.of(media_type).reader
    assert reader is not None
    found: dict[str, Any] = (
        importlib.import_module(reader.module).read(io.BytesIO(data), media_type=media_type).metadata
    )
    return found


def test_office_files(tmp_path: Path) -> None:
    core = {"docProps/core.xml": CORE}
    assert read(parts.pptx([parts.shape(parts.paragraph("a"))], more=core), formats.PPTX) == WHOLE
    word = make(tmp_path / "a.docx", par("text")).read_bytes()
    assert read(word, formats.DOCX) == {}
    assert read(parts.zipped({**_members(word), **core}), formats.DOCX) == WHOLE
    assert read(parts.zipped({**_members(parts.xlsx({"S": [["a"]]})), **core}), formats.XLSX) == WHOLE


def test_damaged_metadata_does_not_make_a_file_unreadable() -> None:
    for bad in ("<a", "", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", CORE.replace("2020-01-02T03:04:05Z", "soon")):
        found = read(parts.pptx([parts.shape(parts.paragraph("a"))], more={"docProps/core.xml": bad}), formats.PPTX)
        assert "created" not in found


def test_opendocument_names_who_made_the_document_and_not_who_changed_it() -> None:
    meta = """<m><title>Rivers</title><creator>Ben</creator><initial-creator>Ann Otter</initial-creator>
    <creation-date>2020-01-02T03:04:05.123456789</creation-date><date>2021-01-02T03:04:05Z</date></m>"""
    found = read(parts.opendocument("text", "<text:p>a</text:p>", {"meta.xml": meta}), formats.ODT)
    assert found == {
        "title": "Rivers",
        "author": "Ann Otter",
        "created": "2020-01-02T03:04:05",
        "modified": "2021-01-02T03:04:05Z",
    }


def test_a_book_may_have_several_authors() -> None:
    package = """<package><metadata><dc:title xmlns:dc="dc">Rivers</dc:title><creator>Ann</creator>
    <creator>Ben</creator>
    <date>2020</date><language>fr</language><meta property="dcterms:modified">2021-02-03T04:05:06Z</meta></metadata>
    <manifest><item id="a" href="a.xhtml" media-type="text/html"/></manifest><spine><itemref idref="a"/></spine>
    </package>"""
    found = read(parts.epub({"a": "<p>Text"}, {"OEBPS/book.opf": package}), formats.EPUB)
    assert found == {
        "title": "Rivers",
        "author": ["Ann", "Ben"],
        "created": "2020",
        "modified": "2021-02-03T04:05:06Z",
        "language": "fr",
    }


def test_html() -> None:
    html = b"""<!doctype html><html lang="pt_BR"><head><meta name="Author" content="Ann &amp; Ben"><title>
    Rivers </title><meta property="article:published_time" content="2020-01-02T03:04:05+01:00"></head>
    <body><title>Not this</title><meta name=author content=Eve>Text</body>"""
    assert read(html, formats.HTML) == {
        "title": "Rivers",
        "author": "Ann & Ben",
        "created": "2020-01-02T02:04:05Z",
        "language": "pt-BR",
    }


def test_messages() -> None:
    data = parts.message("Rivers", "Text").as_bytes()
    found = {"title": "Rivers", "author": "Ann Otter"}
    assert read(data, formats.EML) == {**found, "created": "2022-10-10T12:14:09Z"}
    assert read(ole.outlook("Rivers", "Text"), formats.MSG) == {**found, "created": "2022-06-18T04:26:00Z"}
    assert "created" not in read(data.replace(b"Mon, 10 Oct 2022", b"Mon, 99 Oct 2022"), formats.EML)


def test_rich_text_and_old_word_files() -> None:
    info = r"{\info{\title R\'e9sum\'e9 of \{rivers\}}{\author Ann}{\creatim\yr2020\mo1\dy2\hr3\min4}}"
    rtf = r"{\rtf1\ansi\ansicpg1252" + info + " Text}"
    assert read(rtf.encode(), formats.RTF) == {
        "title": "Résumé of {rivers}",
        "author": "Ann",
        "created": "2020-01-02T03:04:00",
    }
    word = ole.word("Text of the document.\r", more={"\x05SummaryInformation": _summary("Rivers")})
    assert read(word, formats.DOC) == {"title": "Rivers"}


def test_pdf(tmp_path: Path) -> None:
    info = rb"<</Title (Microsoft Word - Rivers) /Author <FEFF0041006E006E> /CreationDate (D:20200102030405+01'00')>>"
    path = tmp_path / "a.pdf"
    path.write_bytes(pdfs.pdf(*pdfs.numbered(3), info=info, catalog=b"/Lang (en-GB)"))
    with path.open("rb") as file:
        assert pdf_pages.read(file, None, 0, 2).metadata == {
            "title": "Rivers",
            "author": "Ann",
            "created": "2020-01-02T02:04:05Z",
            "language": "en-GB",
        }
        assert pdf_pages.read(file, None, 2, 2).metadata == {}
    pdf_pages._documents.popitem()[1].close()


def test_front_matter() -> None:
    text = (
        '---\ntitle: "Rivers: a history"\nauthors: [Ann, Ben]\ndate: 2020-01-02\nlang: de\ntags:\n  - x\n---\n# Other\n'
    )
    assert markdown.front_matter(text) == {
        "title": "Rivers: a history",
        "author": ["Ann", "Ben"],
        "created": "2020-01-02",
        "language": "de",
    }
    assert markdown.front_matter("# Rivers") == {}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("D:20200102030405Z", "2020-01-02T03:04:05Z"),
        ("D:20200102", "2020-01-02"),
        ("D:2020", "2020"),
        ("2020-02-30", ""),
        ("2020-01-02 03:04:05.678+02:00", "2020-01-02T01:04:05Z"),
        ("Mon, 10 Oct 2022 05:14:09 -0700", "2022-10-10T12:14:09Z"),
        ("0000", ""),
        ("yesterday", ""),
        ("D:99999999999999+99'99'", ""),
        (None, ""),
    ],
)
def test_dates_are_written_in_one_form(given: str | None, wanted: str) -> None:
    assert moment(given) == wanted


def test_placeholders_are_no_titles() -> None:
    assert properties("untitled", "  ", "never", None, "x-none") == {}
    assert properties("a\x00b\u202e\n c") == {"title": "ab\u202e c"}


Values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text() | st.integers(), Values))
def test_hostile_metadata_is_bounded(found: dict[Any, Any]) -> None:
    import json

    kept = bounded(found)
    assert bounded(kept) == kept
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept
    json.dumps(kept).encode()


def test_metadata_is_limited_in_count_and_length() -> None:
    kept = bounded({f"k{i}": "x" * 100_000 for i in range(1000)} | {"l": ["y"] * 1000})
    assert len(kept) == MOST_KEYS
    assert all(len(value) == LONGEST_TEXT for value in kept.values())
    assert len(bounded({"l": ["y"] * 1000})["l"]) == MOST_VALUES


@pytest.mark.parametrize(
    ("code", "passages"),
    [("de", GERMAN), ("es", SPANISH), ("hi", HINDI), ("zh", CHINESE)],
    ids=["de", "es", "hi", "zh"],
)
def test_the_language_of_a_text(code: str, passages: list[tuple[str, str]]) -> None:
    text = " ".join(f"{passage} {question}" for passage, question in passages)
    assert languages.language(languages.add({}, text)) == code


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("zh", "河里的水很深，春天的时候水会变得很冷。"),
        ("ja", "川の水はとても深くて、春になると冷たくなります。"),
        ("ko", "강물은 매우 깊고 봄에는 차가워집니다."),
        ("el", "Το νερό του ποταμού είναι βαθύ και κρύο."),
        ("hi", "नदी का पानी बहुत गहरा है और यह ठंडा है। इस में एक नाव है।"),
        ("ar", "الماء في هذا النهر عميق جدا من الشرق إلى الغرب على مدار السنة"),
        (None, "1 2 3 4 5"),
        (None, "x = foo(bar); y = foo(x)"),
        (None, "OK"),
        (None, ""),
    ],
)
def test_scripts_and_texts_without_a_clear_language(code: str | None, text: str) -> None:
    assert languages.language(languages.add({}, text)) == code


def test_i12_metadata_is_the_same_wherever_the_extraction_is_resumed() -> None:
    words = "The water of the river is deep and it was cold in the spring of that year. "
    pages = [Page(i, words * (i % 4)) for i in range(1, 40)]
    given = {"title": "Rivers", "pages": 3}
    whole = Finding.resumed({}, formats.PDF)
    whole.add(pages, given)
    wanted = whole.metadata()
    assert wanted == {"title": "Rivers", "pages": 3, "language": "en"}
    for size in (1, 2, 5, 8):
        cursor: dict[str, Any] = {}
        for start in range(0, len(pages), size):
            part = Finding.resumed(cursor, formats.PDF)
            part.add(pages[start : start + size], {} if start else given)
            cursor = part.cursor()
        assert Finding.resumed(cursor, formats.PDF).metadata() == wanted


def _members(archive: bytes) -> dict[str, bytes]:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def _summary(title: str) -> bytes:
    """The stream SummaryInformation with a title."""
    text = title.encode("cp1252") + b"\0"
    entries = struct.pack("<III", 0x1E, len(text), 0)[:8] + text.ljust((len(text) + 3) // 4 * 4, b"\0")
    section = struct.pack("<IIII", 16 + len(entries), 1, 2, 16) + entries
    head = struct.pack("<HHI16sI", 0xFFFE, 0, 0, bytes(16), 1) + bytes(16) + struct.pack("<I", 48)
    return head + section
