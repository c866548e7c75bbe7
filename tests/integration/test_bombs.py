"""Files that are made to exhaust a machine: each ends within its limits, with its reason, and harms nobody else."""

import gzip
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found
from tests.kit.archives import make_zip
from tests.kit.memory import ingest
from tests.kit.pdfs import FONT, Pdf, page

Files = Callable[..., Path]

LONG = bool(os.environ.get("PENSTOCK_LONG"))
"""Larger bombs, and the memory limit of the default settings."""
MOST_MB = 1500
"""Of all processes together."""
DEEPEST = 8
SPACES = b" " * (1 << 20)
ODT = "application/vnd.oasis.opendocument.text"
_ODT = b"""<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><office:body><office:text>"""
_ODT_END = b"</office:text></office:body></office:document-content>"
_WORD = (
    b"""<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>"""
)
_WORD_END = b"</w:t></w:r></w:p></w:body></w:document>"
_BOOK = b'<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheets/></workbook>'


def packed(members: dict[str, Iterable[bytes]], media_type: str = "") -> bytes:
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        if media_type:
            archive.writestr(zipfile.ZipInfo("mimetype"), media_type)
        for name, pieces in members.items():
            with archive.open(name, "w") as member:
                for piece in pieces:
                    member.write(piece)
    return made.getvalue()


def large(head: bytes, tail: bytes, megabytes: int = 40) -> list[bytes]:
    return [head, *[SPACES] * megabytes, tail]


def laughs(root: bytes) -> bytes:
    """Entities of entities: ten thousand million letters in a few lines."""
    named = b"".join(b'<!ENTITY a%d "%b">' % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 10))
    return b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a0 "aaaaaaaaaa">' + named + b"]>" + root


def one_page(kids: int, content: bytes) -> bytes:
    """A PDF whose pages are all the same object. The content is compressed already."""
    made = Pdf()
    catalog, root, only = made.reserve(), made.reserve(), made.reserve()
    stream = made.add(b"<</Length %d /Filter /FlateDecode>>\nstream\n%b\nendstream" % (len(content), content))
    fonts = b"<</Font <</F1 %d 0 R>>>>" % made.add(FONT)
    made.add(
        b"<</Type /Page /Parent %d 0 R /MediaBox [0 0 612 792] /Resources %b /Contents %d 0 R>>"
        % (root, fonts, stream),
        only,
    )
    made.add(b"<</Type /Pages /Count %d /Kids [%b]>>" % (kids, b"%d 0 R " % only * kids), root)
    made.add(b"<</Type /Catalog /Pages %d 0 R>>" % root, catalog)
    return made.close(catalog)


def endless() -> bytes:
    compressor = zlib.compressobj(9)
    piece = b"BT /F1 12 Tf (endless words) Tj ET " * 30_000
    return b"".join([*(compressor.compress(piece) for _ in range(300)), compressor.flush()])


def png(side: int) -> bytes:
    """Its header says how large it is. There are few pixels behind it."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(side + 1) * 10)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", pixels) + part(b"IEND", b"")


def tiff(side: int) -> bytes:
    data = zlib.compress(bytes(side) * 10)
    tags = [(256, 4, side), (257, 4, side), (258, 3, 8), (259, 3, 8), (262, 3, 1), (273, 4, 200), (277, 3, 1)]
    tags += [(278, 4, side), (279, 4, len(data))]
    directory = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + directory + bytes(4)
    return head.ljust(200, b"\0") + data


def nested(depth: int) -> bytes:
    """An archive in an archive, and so on. `N.zip` contains N more."""
    data = b"a word"
    for number in range(depth):
        data = make_zip({f"{number}.zip" if number else "a.txt": data})
    return data


def archives() -> dict[str, tuple[bytes, str | None]]:
    zeros = packed({"zeros.txt": [bytes(1 << 20)] * (1000 if LONG else 40)})
    layers = make_zip({f"{number}.zip": zeros for number in range(16)}) if LONG else zeros
    return {
        "zeros.zip": (zeros, "unpacked_too_large"),
        "zeros.txt.gz": (gzip.compress(bytes(40 << 20)), "unpacked_too_large"),
        "layers.zip": (make_zip({"layers.zip": layers}), None),
        "deep.zip": (nested(DEEPEST + 4), None),
    }


def bombs() -> dict[str, tuple[bytes, str | None]]:
    """Content, and the reason with which it fails; None: it is harmless, and does not fail."""
    deep = b"<text:section>" * 20_000 + b"<text:p>word</text:p>" + b"</text:section>" * 20_000
    epub: dict[str, Iterable[bytes]] = {
        "META-INF/container.xml": [b'<container><rootfile full-path="c.opf"/></container>'],
        "c.opf": [b'<package><manifest><item id="a" href="a.html" media-type="text/html"/></manifest></package>'],
        "a.html": large(b"<html><body><p>", b"</p></body></html>"),
    }
    return {
        "zip.docx": (packed({"word/document.xml": large(_WORD, _WORD_END)}), "unpacked_too_large"),
        "zip.xlsx": (packed({"xl/workbook.xml": large(_BOOK, b"")}), "unpacked_too_large"),
        "zip.odt": (packed({"content.xml": large(_ODT, _ODT_END)}, ODT), "unpacked_too_large"),
        "zip.epub": (packed(epub, "application/epub+zip"), "unpacked_too_large"),
        "deep.html": (b"<html><body>" + b"<div><table><tr><td>" * 20_000 + b"word", None),
        "deep.xml": (b'<?xml version="1.0"?>' + b"<a>" * 20_000 + b"word" + b"</a>" * 20_000, None),
        "deep.json": (b"[" * 20_000 + b"1" + b"]" * 20_000, None),
        "deep.odt": (packed({"content.xml": [_ODT, deep, _ODT_END]}, ODT), "nested_too_deeply"),
        "laughs.xml": (laughs(b"<l>&a9;</l>"), None),
        "laughs.docx": (packed({"word/document.xml": [laughs(_WORD), b"&a9;", _WORD_END]}), "damaged"),
        "laughs.odt": (packed({"content.xml": [laughs(_ODT), b"<text:p>&a9;</text:p>", _ODT_END]}, ODT), "damaged"),
        "pages.pdf": (one_page(20_000, zlib.compress(page("again and again"))), "too_many_pages"),
        "endless.pdf": (one_page(1, endless()), "parser_memory"),
        "huge.png": (png(50_000), "too_many_pixels"),
        "huge.tiff": (tiff(50_000), "too_many_pixels"),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured with /proc")
async def test_i9_every_bomb_ends_within_its_limits_and_affects_no_other(
    start_app: StartApp, files: Files, tmp_path: Path
) -> None:
    """The limits are lower than the default ones, so that small bombs reach them."""
    settings: dict[str, Any] = {
        "parsers": {"children": 2, "memory_mb": 1024 if LONG else 128, "timeout_s": 60.0},
        "limits": {"office_megabytes": 30, "pages": 10_000, "nesting": DEEPEST},
    }
    made = bombs() | archives()
    folder = files(**{name: content for name, (content, _) in made.items()}, **{"good.txt": "a harmless word"})
    assert ingest(tmp_path / "home", folder, **settings) < MOST_MB
    app = await start_app(**settings)
    letters = {letter.name: letter for letter in (await app.list_dead_letters(limit=1000)).letters}
    inside = {"4.zip": "children_too_deep"}
    inside |= {f"{n}.zip": "unpacked_too_large" for n in range(16)} if LONG else {"layers.zip": "unpacked_too_large"}
    assert {name: letter.reason for name, letter in letters.items()} == inside | {
        name: reason for name, (_, reason) in made.items() if reason is not None
    }
    assert not {"PENDING", "EXTRACTING"} & {d.status for d in await app.list_documents(limit=1000)}
    assert await found(app, "harmless") == {"good.txt"}
    for reason, setting in (
        ("too_many_pixels", "limits.megapixels"),
        ("too_many_pages", "limits.pages"),
        ("parser_memory", "parsers.memory_mb"),
        ("children_too_deep", "limits.nesting"),
    ):
        assert all(setting in letter.error for letter in letters.values() if letter.reason == reason)
    large = {name: letter.error for name, letter in letters.items() if letter.reason == "unpacked_too_large"}
    assert all(("ratio" if str(name).endswith(("zip", "gz")) else "office_megabytes") in large[name] for name in large)


async def test_a_file_that_becomes_much_larger_is_refused_below_the_size_limit_too(
    start_app: StartApp, files: Files
) -> None:
    app = await start_app(limits={"unpacked_ratio": 100})
    folder = files(**{"a.docx": packed({"word/document.xml": large(_WORD, _WORD_END, 25)})})
    assert (await app.ingest([folder])).failed == 1
    [letter] = (await app.list_dead_letters()).letters
    assert letter.reason == "unpacked_too_large"
    assert "limits.unpacked_ratio" in letter.error
    assert (
        await (higher := await start_app(limits={"unpacked_ratio": 5000})).retry([letter.document_id or ""])
    ) != set()
    assert (await higher.run()).failed == 0
