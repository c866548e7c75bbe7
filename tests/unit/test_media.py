import io
import random
import tarfile
import zipfile

import pytest

from penstock.extractors.formats import DOCX, HTML, MARKDOWN, PDF, PLAIN
from penstock.extractors.media import BINARY, EMPTY, detect

ENGLISH = "The quick brown fox jumps over the lazy dog.\nIt does so daily, at 5 o'clock.\n"
FRENCH = "Le café était fermé à l'époque où les élèves étudiaient la littérature.\n"
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю.\n"
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n"
CHINESE = "中华人民共和国是世界上人口最多的国家之一。北京是首都,上海是最大的城市。\n"
KOREAN = "대한민국의 수도는 서울이다. 한국어는 한반도에서 사용되는 언어이다.\n"
HINDI = "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।\n"
ARABIC = "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.\n"

WIDE = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
LEGACY = [
    (FRENCH, ["latin-1", "cp1252", "mac_roman", "cp850"]),
    (RUSSIAN, ["koi8-r", "cp1251", "cp866", "iso8859-5"]),
    (JAPANESE, ["shift_jis", "euc_jp", "iso2022_jp"]),
    (CHINESE, ["gb18030", "gbk", "big5"]),
    (KOREAN, ["euc_kr", "iso2022_kr"]),
    (ARABIC, ["cp1256"]),
]
CASES = [
    *[(text, code) for text in (ENGLISH, FRENCH, RUSSIAN, JAPANESE, CHINESE, KOREAN, HINDI, ARABIC) for code in WIDE],
    *[(text, code) for text, codes in LEGACY for code in codes],
]


@pytest.mark.parametrize("repeat", [1, 300])
@pytest.mark.parametrize(("text", "encoding"), CASES)
def test_text_is_text_in_every_encoding(text: str, encoding: str, repeat: int) -> None:
    data = (text * repeat).encode(encoding, "replace")
    assert detect(data[:8192], "a.txt") == PLAIN
    assert detect(data[:8192], "a.pdf") == PLAIN
    assert detect(data[:8191], "noname") == PLAIN


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_chinese_in_utf16_without_a_single_ascii_character_is_text(encoding: str) -> None:
    assert detect(CHINESE.replace(",", "，").strip().encode(encoding) * 50, "a.txt") == PLAIN


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a.md", MARKDOWN),
        ("A.MarkDown", MARKDOWN),
        ("a.mdown", MARKDOWN),
        ("a.rst", "text/x-rst"),
        ("a.log", PLAIN),
        ("a.py", "text/x-source"),
        ("README", PLAIN),
        ("a.docx", PLAIN),
        ("md", PLAIN),
        ("a.csv", "text/csv"),
        ("a.html", "text/html"),
        ("a.htm", "text/html"),
        ("a.xhtml", "text/html"),
        ("a.xml", "application/xml"),
        ("a.json", "application/json"),
        ("a.jsonl", "application/x-ndjson"),
        ("a.tsv", "text/tab-separated-values"),
        ("a.YML", "application/yaml"),
        ("a.toml", "application/toml"),
        ("a.ini", "text/x-ini"),
        ("a.sql", "text/x-source"),
    ],
)
def test_the_name_tells_kinds_of_text_apart(name: str, media_type: str) -> None:
    assert detect(ENGLISH.encode(), name) == media_type


def _zip(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "x" * 50)
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = len(ENGLISH)
        archive.addfile(member, io.BytesIO(ENGLISH.encode()))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("head", "media_type"),
    [
        (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", PDF),
        (b"%PDF-1.4\n1 0 obj << /Type /Catalog >> endobj\n", PDF),
        (b"\0\0junk\0\0%PDF-1.7\n\0\x01\x02", PDF),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0", "image/png"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01", "image/jpeg"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "application/gzip"),
        (b"{\\rtf1\\ansi hello}", "application/rtf"),
        (_zip("a.txt"), "application/zip"),
        (_zip("[Content_Types].xml", "_rels/.rels", "word/document.xml"), "docx"),
        (_zip("[Content_Types].xml", "ppt/presentation.xml"), "pptx"),
        (_zip("[Content_Types].xml", "xl/workbook.xml"), "xlsx"),
    ],
)
def test_content_goes_before_the_name(head: bytes, media_type: str) -> None:
    office = {"docx": "wordprocessingml.document", "pptx": "presentationml.presentation", "xlsx": "spreadsheetml.sheet"}
    if media_type in office:
        media_type = "application/vnd.openxmlformats-officedocument." + office[media_type]
    for name in ("a.txt", "a.md", "noname", "a.bin"):
        assert detect(head, name) == media_type


@pytest.mark.parametrize(
    "start",
    [
        "<!DOCTYPE html>\n<html>",
        "\n  <!doctype HTML PUBLIC '-//W3C//DTD'>",
        "<html lang=en>",
        "<HTML>",
        "<!-- saved from -->\n<!-- twice --><html>",
        '<?xml version="1.0"?>\n<!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml">',
        "<head><title>x</title></head>",
        "<body>",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_html_is_html_whatever_its_name(start: str, encoding: str) -> None:
    for name in ("a.txt", "a.md", "noname", "a.html", "a.docx"):
        assert detect((start + "<p>" + ENGLISH * 5).encode(encoding), name) == HTML


@pytest.mark.parametrize(
    "text",
    [
        "<p align=center><img src=logo.png></p>\n\n# Title\n",
        "<div>\n\n# Title\n\n</div>\n",
        "<!-- a comment -->\n# Title\n",
        "A page begins with <!DOCTYPE html> or <html>.\n",
        "<htmlish> is no tag\n",
        "<header>x</header>\n",
    ],
)
def test_text_with_tags_in_it_stays_what_its_name_says(text: str) -> None:
    assert detect(text.encode(), "a.md") == MARKDOWN
    assert detect(text.encode(), "a.txt") == PLAIN
    assert detect(text.encode(), "a.html") == HTML


def test_other_kinds_of_xml_are_not_html() -> None:
    assert detect(b"<?xml version='1.0'?><!-- <html> --><svg>", "a.xml") == "application/xml"


def _office(kind: str, compressed: bool, filler: int) -> bytes:
    content = "application/vnd.openxmlformats-officedocument." + kind
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        archive.writestr("[Content_Types].xml", f'<Types><Override ContentType="{content}.main+xml"/></Types>')
        archive.writestr("docProps/thumbnail.jpeg", random.Random(7).randbytes(filler), zipfile.ZIP_STORED)
        archive.writestr("word/document.xml", "<x/>")
    return buffer.getvalue()


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", ["wordprocessingml.document", "spreadsheetml.sheet", "presentationml.presentation"])
def test_office_files_are_told_apart_by_their_list_of_contents(kind: str, compressed: bool) -> None:
    for name in ("a.docx", "a.xlsx", "noname"):
        found = detect(_office(kind, compressed, 20_000)[:8192], name)
        assert found == "application/vnd.openxmlformats-officedocument." + kind


def test_the_name_decides_where_the_contents_are_out_of_sight() -> None:
    far = _zip("docProps/app.xml", "[Content_Types].xml")
    assert detect(far, "a.docx") == DOCX
    assert detect(far, "a.zip") == "application/zip"


def test_an_archive_with_a_folder_called_word_is_an_archive() -> None:
    for names in (["password/list.xml"], ["word/letter.txt"], ["my/word/x.xml"]):
        assert detect(_zip(*names), "a.zip") == "application/zip"


def test_a_tape_archive_of_texts_is_no_text() -> None:
    assert detect(_tar(), "a.txt") not in (PLAIN, BINARY)


def test_the_name_chooses_among_old_office_files() -> None:
    head = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
    assert detect(head, "a.doc") == "application/msword"
    assert detect(head, "a.xls") == "application/vnd.ms-excel"
    assert detect(head, "locked.docx") == DOCX
    assert detect(head, "noname") == "application/x-ole-storage"


def test_garbage_is_binary_whatever_its_name() -> None:
    rng = random.Random(7)
    for name in ("a.txt", "a.md", "a.pdf", "a.docx", "noname"):
        for size in (64, 500, 8192):
            # A byte that no signature begins with, so that chance makes no picture of it.
            assert detect(b"\x01" + rng.randbytes(size), name) == BINARY
    assert detect(bytes(range(32)), "a.txt") == BINARY
    assert detect(bytes(100), "a.txt") == BINARY


def test_a_white_picture_is_not_taken_for_utf16() -> None:
    head = b"MM\0*\0\x1d\x95\xa6\0\x02\xa0\x02\0\x04\0\0\0\x01\0\0\x02d"
    for paper in (b"\xff", b"\xfe", b"\x20"):
        assert detect(head + paper * 8000, "scan.tiff") == "image/tiff"


def test_sound_is_not_taken_for_utf16() -> None:
    rng = random.Random(7)
    samples = b"".join(rng.randint(-200, 200).to_bytes(2, "little", signed=True) for _ in range(4000))
    assert detect(samples, "a.raw") == BINARY


def test_a_text_with_a_few_stray_nuls_is_text() -> None:
    assert detect((ENGLISH * 5).encode() + b"\0" + ENGLISH.encode(), "crash.log") == PLAIN
    assert detect(b"hello\0world and some more words", "a.txt") == PLAIN
    assert detect((FRENCH * 20).encode("latin-1") + b"\0\0", "a.txt") == PLAIN


def test_text_that_begins_like_a_binary_format_is_text() -> None:
    for start in ("BM ", "MZ ", "II* ", "PK ", "GIF89a ", "RIFF ", "ID3 ", "Rar! ", "OggS "):
        assert detect((start + ENGLISH).encode(), "a.txt") == PLAIN
    assert detect(b"A PDF begins with %PDF- and a number.\n", "a.txt") == PLAIN


def test_empty() -> None:
    assert detect(b"", "a.pdf") == EMPTY
