"""Readers of presentations, spreadsheets, OpenDocument files, books, messages and old Office files."""

import importlib
import io
import struct
from pathlib import Path

import pytest
from tests.kit import ole, parts

from penstock.errors import Permanent
from penstock.extractors import formats
from penstock.extractors.base import FileContent
from penstock.extractors.compressed_rtf import decompress
from penstock.extractors.media import detect
from penstock.model.items import Page

CORPUS = Path(__file__).parents[2] / ".." / "shared" / "corpus"


def read_file(data: bytes, media_type: str) -> FileContent:
    reader = formats.of(media_type).reader
    assert reader is not None
    content: FileContent = importlib.import_module(reader.module).read(io.BytesIO(data), media_type=media_type)
    return content


def read(data: bytes, media_type: str) -> list[Page]:
    return read_file(data, media_type).pages


def texts(data: bytes, media_type: str) -> list[str]:
    return [page.text for page in read(data, media_type)]


# presentations


def test_slides_are_pages_in_the_order_in_which_they_are_shown() -> None:
    title, body, box = (
        parts.paragraph("Ducks"),
        parts.paragraph("Mallard") + parts.paragraph("Drake", 1),
        parts.paragraph("Box"),
    )
    first = (
        parts.shape(box)
        + parts.shape(body, "")
        + parts.shape(title, "title")
        + parts.shape(parts.paragraph("7"), "sldNum")
    )
    data = parts.pptx([first, parts.shape(parts.paragraph("Second"), "ctrTitle")], notes={0: "Say it slowly."})
    pages = read(data, formats.PPTX)
    assert [page.label for page in pages] == ["slide 1", "slide 2"]
    assert pages[0].text == "# Ducks\n\nBox\n\n- Mallard\n  - Drake\n\n> Notes: Say it slowly."
    assert pages[1].text == "# Second"


def test_tables_charts_groups_and_pictures_of_a_slide_are_read() -> None:
    cell = "<a:tc><a:txBody>{}</a:txBody></a:tc>"
    rows = "".join(f"<a:tr>{''.join(cell.format(parts.paragraph(c)) for c in row)}</a:tr>" for row in ("ab", "cd"))
    graphic = "<p:graphicFrame><a:graphic><a:graphicData>{}</a:graphicData></a:graphic></p:graphicFrame>"
    group = f"<p:grpSp><p:grpSp>{parts.shape(parts.paragraph('Deep'))}</p:grpSp></p:grpSp>"
    picture = "<p:pic><p:nvPicPr><p:cNvPr id='3' descr='A duck'/></p:nvPicPr></p:pic>"
    chart = "<c><ser><tx><v>Eggs</v></tx><cat><v>2020</v></cat><val><v>12</v></val></ser><title><t>Laid</t></title></c>"
    data = parts.pptx(
        [
            group
            + picture
            + graphic.format(f"<a:tbl>{rows}</a:tbl>")
            + graphic.format('<c:chart xmlns:c="c" r:id="r1"/>')
        ],
        more={
            "ppt/slides/_rels/slide99.xml.rels": parts.related(("chart", "../charts/c.xml")),
            "ppt/charts/c.xml": chart,
        },
    )
    assert texts(data, formats.PPTX) == [
        "Deep\n\nA duck\n\n| a | b |\n| --- | --- |\n| c | d |\n\nLaid\n\n|  | Eggs |\n| --- | --- |\n| 2020 | 12 |"
    ]


def test_groups_nested_without_end_do_not_break_the_reader() -> None:
    deep = "<p:grpSp>" * 500 + parts.shape(parts.paragraph("Far")) + "</p:grpSp>" * 500
    assert texts(parts.pptx([deep + parts.shape(parts.paragraph("Near"))]), formats.PPTX) == ["Near"]


# spreadsheets


def test_sheets_are_pages_and_rows_are_tables() -> None:
    rows: list[list[object]] = [
        ["Ducks"],
        [],
        ["Year", "Count", "Wild"],
        [2020, 12.5, True],
        [2021, None, False],
        [],
        [None, "far"],
    ]
    pages = read(parts.xlsx({"Ponds": rows, "Empty": [], "Last": [["x"]]}), formats.XLSX)
    assert [page.label for page in pages] == ["Ponds", "Last"]
    table = "| Year | Count | Wild |\n| --- | --- | --- |\n| 2020 | 12.5 | TRUE |\n| 2021 |  | FALSE |"
    assert pages[0].text == f"# Ponds\n\nDucks\n\n{table}\n\nfar"


def test_a_long_table_repeats_its_first_row_on_every_page() -> None:
    pages = texts(
        parts.xlsx({"Long": [["Number", "Square"], *([str(n), str(n * n)] for n in range(1200))]}), formats.XLSX
    )
    assert len(pages) == 3
    assert all(page.startswith("# Long\n\n| Number | Square |\n| --- | --- |\n") for page in pages)
    lines = [line for page in pages for line in page.splitlines()[4:]]
    assert lines == [f"| {n} | {n * n} |" for n in range(1200)], "each row once"


def test_an_old_workbook_and_an_opendocument_one_are_read_alike() -> None:
    old = texts(ole.excel({"One": [["a", "b"], ["c", "d"]]}), formats.XLS)
    cell = '<table:table-cell office:value-type="string"><text:p>{}</text:p></table:table-cell>'
    rows = "".join(f"<table:table-row>{''.join(map(cell.format, row))}</table:table-row>" for row in ("ab", "cd"))
    new = texts(parts.opendocument("spreadsheet", f'<table:table table:name="One">{rows}</table:table>'), formats.ODS)
    assert old == new == ["# One\n\n| a | b |\n| --- | --- |\n| c | d |"]


# OpenDocument


def test_an_opendocument_text_keeps_its_structure() -> None:
    body = (
        '<text:h text:outline-level="2">Ducks</text:h><text:p>They<text:s/>swim<text:line-break/>well<text:note>'
        "<text:note-citation>1</text:note-citation><text:note-body><text:p>Mostly.</text:p></text:note-body></text:note>.</text:p>"
        "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
        "<text:list><text:list-item><text:p>one</text:p><text:list><text:list-item><text:p>inner</text:p></text:list-item>"
        "</text:list></text:list-item></text:list>"
        "<text:section><text:p>In a section <draw:frame><draw:text-box><text:p>boxed</text:p></draw:text-box>"
        "</draw:frame></text:p></text:section>"
        "<text:soft-page-break/><text:p>Next page</text:p>"
    )
    assert texts(parts.opendocument("text", body), formats.ODT) == [
        "## Ducks\n\nThey swim\nwell (Mostly.).\n\n- one\n  - inner\n\nIn a section\n\nboxed",
        "Next page",
    ]


def test_slides_of_an_opendocument_presentation_have_titles_and_notes() -> None:
    frame = '<draw:frame presentation:class="{}"><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>'
    notes = f"<presentation:notes>{frame.format('notes', 'Slowly')}</presentation:notes>"
    slide = f"<draw:page>{frame.format('title', 'Ducks')}{frame.format('outline', 'Text')}{notes}</draw:page>"
    pages = read(parts.opendocument("presentation", slide * 2), formats.ODP)
    assert [(page.label, page.text) for page in pages] == [
        (f"slide {n}", "# Ducks\n\nText\n\n> Notes: Slowly") for n in (1, 2)
    ]


def test_encrypted_documents_say_so() -> None:
    manifest = '<manifest><file-entry full-path="content.xml"><encryption-data/></file-entry></manifest>'
    locked = parts.opendocument("text", "", more={"META-INF/manifest.xml": manifest})
    drm = '<encryption><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes256-cbc"/></encryption>'
    book = parts.epub({"a": "<p>a"}, more={"META-INF/encryption.xml": drm})
    office = ole.container({"EncryptedPackage": b"x"})
    cases = [(locked, formats.ODT), (book, formats.EPUB), (office, formats.PPTX), (office, formats.XLSX)]
    cases += [(ole.word("a", flags=0x0100), formats.DOC)]
    for data, media_type in cases:
        with pytest.raises(Permanent) as caught:
            read(data, media_type)
        assert caught.value.reason == "encrypted", media_type


def test_a_book_with_obfuscated_fonts_is_read() -> None:
    fonts = '<encryption><EncryptionMethod Algorithm="http://www.idpf.org/2008/embedding"/></encryption>'
    book = parts.epub({"a": "<h1>Ducks</h1><p>swim", "b": "<p>plain"}, more={"META-INF/encryption.xml": fonts})
    assert [(page.label, page.text) for page in read(book, formats.EPUB)] == [
        ("Ducks", "# Ducks\n\nswim"),
        ("chapter 2", "plain"),
    ]


# messages


def test_a_message_is_its_headers_its_text_and_the_names_of_its_attachments() -> None:
    made = parts.message("Grüße", "Hello Ben,\n\nducks swim.", html="<p>not this")
    made.add_attachment(b"%PDF-", maintype="application", subtype="pdf", filename="übersicht.pdf")
    made.add_attachment(parts.message("Inner", "Enclosed text"))
    pages = read(made.as_bytes(), formats.EML)
    assert [page.label for page in pages] == ["message", "enclosed message 1"]
    head = "# Grüße\n\nFrom: Ann Otter <ann@example.org>\nTo: ben@example.org\nDate: Mon, 10 Oct 2022 05:14:09 -0700"
    assert pages[0].text == f"{head}\n\nHello Ben,\n\nducks swim.\n\nAttachments:\n\n- übersicht.pdf"
    assert pages[1].text.startswith("# Inner\n\n")
    assert pages[1].text.endswith("Enclosed text")


def test_a_message_with_html_only_is_read_as_html() -> None:
    made = parts.message("Ducks", "")
    made.set_content("<h2>Ponds</h2><p>Two <b>ponds</b>", subtype="html")
    assert texts(made.as_bytes(), formats.EML)[0].endswith("\n\n## Ponds\n\nTwo ponds")


@pytest.mark.parametrize("header", ["Date: nonsense", "To: <<<<>>>", "Subject: =?utf-8?b?!!!?=", "From: \xff\xfe <a@b"])
def test_a_damaged_header_does_not_hide_the_message(header: str) -> None:
    data = f"MIME-Version: 1.0\nSubject: x\n{header}\nContent-Type: text/plain; charset=nowhere\n\nducks swim".encode(
        "latin-1"
    )
    assert "ducks swim" in texts(data, formats.EML)[0]


def test_messages_within_messages_end() -> None:
    made = parts.message("Last", "end")
    for n in range(40):
        outer = parts.message(f"Level {n}", "text")
        outer.add_attachment(made)
        made = outer
    assert len(read(made.as_bytes(), formats.EML)) == 17


def test_an_outlook_message_is_read() -> None:
    page = read(ole.outlook("Ducks", "They swim.\r\n\r\nWell.", attachment="pond.pdf"), formats.MSG)[0]
    assert page.text == (
        "# Ducks\n\nFrom: Ann Otter\nTo: Ben Heron\nDate: 2022-06-18 04:26 UTC\n\nThey swim.\n\nWell.\n\n"
        "Attachments:\n\n- pond.pdf"
    )


def test_the_compressed_text_of_an_outlook_message_is_read() -> None:
    rtf = rb"{\rtf1\ansi ducks swim\par}"
    literal = b"".join(b"\0" + rtf[n : n + 8] for n in range(0, len(rtf), 8))
    packed = struct.pack("<II4sI", len(literal) + 12, len(rtf), b"LZFu", 0) + literal
    assert decompress(packed) == rtf
    # A copy of the first 7 bytes of the dictionary, `{\rtf1\`, then the mark of the end.
    copied = bytes([0b11]) + struct.pack(">H", 0 << 4 | 5) + struct.pack(">H", (207 + 7) << 4)
    assert decompress(struct.pack("<II4sI", len(copied) + 12, 99, b"LZFu", 0) + copied) == rb"{\rtf1" + b"\\"
    data = ole.outlook("Ducks", "", more={"__substg1.0_10090102": packed})
    assert texts(data, formats.MSG)[0].endswith("ducks swim")


# old and rich text


def test_an_old_word_document_has_its_paragraphs_tables_fields_and_notes() -> None:
    text = 'Ducks\r\x13 HYPERLINK "x" \x14swim\x15 well\x0bhere\rA\x07B\x07\x07c\x07d\x07\x07\rEnd\x0cNext page\r'
    assert texts(ole.word(text, "Foot\r"), formats.DOC) == [
        "Ducks\n\nswim well\nhere\n\n| A | B |\n| --- | --- |\n| c | d |\n\nEnd",
        "Next page\n\nFoot",
    ]


def test_rich_text_keeps_unicode_code_pages_and_tables() -> None:
    words = rb"Gr\'fc\'dfe \u8364? \u-10179?\u-8704?\par"
    rtf = rb"{\rtf1\ansi\ansicpg1252 " + words + rb"\trowd a\cell b\cell\row c\cell d\cell\row\pard End\par}"
    assert texts(rtf, formats.RTF) == ["Grüße € 😀\n\n| a | b |\n| --- | --- |\n| c | d |\n\nEnd"]


# damage


@pytest.mark.parametrize(
    "media_type", [formats.PPTX, formats.XLSX, formats.ODT, formats.ODS, formats.EPUB, formats.DOC, formats.MSG]
)
@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", b"PK\x03\x04" + bytes(5000), ole.OLE_START + bytes(5000), b"text"]
)
def test_a_damaged_file_says_so(media_type: str, data: bytes) -> None:
    with pytest.raises(Permanent) as caught:
        read(data, media_type)
    assert caught.value.reason in ("damaged", "unsupported_type")


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here")
@pytest.mark.parametrize(
    "path",
    sorted(
        p for s in ("pptx", "xlsx", "xls", "odt", "rtf", "epub", "eml", "msg", "doc") for p in CORPUS.glob(f"*/*.{s}")
    ),
    ids=lambda path: path.name,
)
def test_every_office_file_of_the_corpus_has_text(path: Path) -> None:
    data = path.read_bytes()
    pages = read(data, detect(data[:8192], path.name))
    assert sum(len(page.text) for page in pages) >= 12
