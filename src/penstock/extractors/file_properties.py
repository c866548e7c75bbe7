"""Read the metadata of Office, OpenDocument and rich text files, in a parser process. Damaged metadata does not make a
readable file unreadable: it is left out."""

import re
import zipfile
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, BinaryIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from penstock.extractors.omml import local
from penstock.extractors.ooxml import by_kind, relations
from penstock.extractors.properties import properties

LARGEST = 1 << 20
"""Bytes of the part with metadata that are read."""
_DAMAGES = (
    zipfile.BadZipFile,
    zlib.error,
    ElementTree.ParseError,
    LookupError,
    ValueError,
    EOFError,
    OSError,
    RuntimeError,
)
_NAMES = {
    "title": "title",
    "creator": "author",
    "initial-creator": "author",
    "created": "created",
    "creation-date": "created",
    "modified": "modified",
    "date": "modified",
    "language": "language",
}


def of_archive(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The metadata of a zip file of XML: `docProps/core.xml`, or `meta.xml` of OpenDocument."""
    try:
        name = "meta.xml"
        if name not in archive.NameToInfo:
            name = by_kind(relations(archive, "")).get("core-properties", "docProps/core.xml")
        if name not in archive.NameToInfo:
            return {}
        with archive.open(name) as part:
            root = ElementTree.fromstring(part.read(LARGEST))
    except _DAMAGES:
        return {}
    return of_elements(root)


def of_file(document: BinaryIO) -> dict[str, Any]:
    """The metadata of a file that may be a zip file or an old Office file."""
    document.seek(0)
    if zipfile.is_zipfile(document):
        try:
            with zipfile.ZipFile(document) as archive:
                return of_archive(archive)
        except _DAMAGES:
            return {}
    document.seek(0)
    return of_container(document)


def of_elements(root: Element) -> dict[str, Any]:
    """The metadata that the elements of Dublin Core, or of Office files, hold."""
    found: dict[str, str] = {}
    for element in root.iter():
        key = _NAMES.get(local(element))
        # In OpenDocument, `initial-creator` made the document and `creator` changed it last.
        if key and element.text and (key not in found or local(element) == "initial-creator"):
            found[key] = element.text
    return properties(**found)


def of_container(document: BinaryIO) -> dict[str, Any]:
    """The metadata of an old Office file: its stream SummaryInformation."""
    import olefile

    try:
        with olefile.OleFileIO(document) as container:
            return of_summary(container)
    except Exception:
        # The library raises many kinds of error for damaged containers.
        return {}


def of_summary(container: Any) -> dict[str, Any]:
    try:
        found = container.get_metadata()
        page = found.codepage if isinstance(found.codepage, int) else 1252
        encoding = "utf-8" if page in (65001, -535) else f"cp{page % 65536}"
        return properties(
            _decoded(found.title, encoding),
            _decoded(found.author, encoding),
            _utc(found.create_time),
            _utc(found.last_saved_time),
        )
    except Exception:
        return {}


def _utc(at: object) -> datetime | None:
    return at.replace(tzinfo=UTC) if isinstance(at, datetime) else None


def _decoded(value: object, encoding: str) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.rstrip(b"\0").decode(encoding, "replace")
        except LookupError:
            return value.rstrip(b"\0").decode("cp1252", "replace")
    return value if isinstance(value, str) else None


_RTF_INFO = re.compile(rb"\{\\info\b")
_RTF_TEXT = re.compile(rb"\{\\(title|author)\s((?:[^{}\\]|\\[^{}]|\\[{}])*+)\}")
_RTF_TIME = re.compile(rb"\{\\(creatim|revtim)((?:\\(?:yr|mo|dy|hr|min|sec)\d{1,4}\s?)+)\}")
_RTF_PARTS = (b"yr", b"mo", b"dy", b"hr", b"min", b"sec")
_RTF_LARGEST = 64 * 1024


def of_rtf(data: bytes, to_text: Callable[[bytes], str]) -> dict[str, Any]:
    """The metadata of a rich text file: its group `info`. `to_text` converts a part of the file to text."""
    begin = _RTF_INFO.search(data, 0, _RTF_LARGEST * 4)
    if begin is None:
        return {}
    info = data[begin.start() : begin.start() + _RTF_LARGEST]
    page = re.search(rb"\\ansicpg\d{1,5}", data[:2000])
    found: dict[str, str] = {}
    for name, content in _RTF_TEXT.findall(info):
        prefix = b"{\\rtf1\\ansi" + (page[0] if page else b"") + b" "
        try:
            found.setdefault(name.decode(), to_text(prefix + content + b"}"))
        except (ValueError, LookupError, OverflowError, RecursionError):
            continue
    for name, content in _RTF_TIME.findall(info):
        parts = {key: int(number) for key, number in re.findall(rb"\\(yr|mo|dy|hr|min|sec)(\d{1,4})", content)}
        at = [parts.get(part, least) for part, least in zip(_RTF_PARTS, (0, 1, 1, 0, 0, 0), strict=True)]
        key = "created" if name == b"creatim" else "modified"
        found.setdefault(key, "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}".format(*at))
    return properties(**found)
