"""Read pages of a PDF with PDFium, in a parser process: text, page labels and the headings of the outline.

PDFium is not thread-safe. Only one thread uses this module, in a process that a damaged file may crash.
"""

import ctypes
import math
import mmap
import os
import re
import resource
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO

import pypdfium2
import pypdfium2.raw as pdfium

from penstock.errors import Permanent, Transient
from penstock.extractors.base import PdfPart
from penstock.extractors.markdown import opened
from penstock.extractors.properties import properties
from penstock.model.items import Block, Page

OPEN_DOCUMENTS = 4
MOST_HEADINGS = 100_000
LONGEST_TITLE = 300
MOST_TITLE_LINES = 4
REOPEN_PAGES = 512
"""The document is closed and opened again after this many pages, because PDFium keeps all parsed data until then."""

STRAY = 120
"""A page with at least this many letters has a text layer."""
MOSTLY = 0.5
"""The share of the page that images of a scan cover. They may overlap."""
MOST_IMAGES = 2000

_DAMAGED = "it is damaged beyond reading: get another copy, and ingest that"
_JOINED = re.compile(r"(?<=\w)\x02(?=\w)")
"""PDFium's character for a hyphen at the end of a line."""
_NUMBER = re.compile(r"[\divxlc]+(?:\.[\divxlc]+)*[.)]?\s+")


class _Outline:
    """The headings of a document by page, and the heading path at the beginning of each page."""

    def __init__(self, entries: list[tuple[int, int, str]]) -> None:
        entries.sort(key=lambda entry: entry[0])
        self._entries = entries
        self._paths: list[tuple[str, ...]] = []
        path: tuple[str, ...] = ()
        for _, level, title in entries:
            path = opened(path, level, title)
            self._paths.append(path)

    def of(self, index: int) -> tuple[list[tuple[int, int, str]], tuple[str, ...]]:
        first = bisect_left(self._entries, index, key=lambda entry: entry[0])
        last = bisect_left(self._entries, index + 1, key=lambda entry: entry[0])
        return self._entries[first:last], self._paths[first - 1] if first else ()


class _Bytes:
    """A memory-mapped file. It does not count towards the memory limit of the process."""

    def __init__(self, file: BinaryIO) -> None:
        self.size = os.fstat(file.fileno()).st_size
        if not self.size:
            raise Permanent(_DAMAGED, reason="damaged")
        _lift_memory_limit(self.size)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.address = libc.mmap(None, self.size, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0)
        self._unmap = libc.munmap
        if self.address == ctypes.c_void_p(-1).value:
            _lift_memory_limit(-self.size)
            raise Transient(
                f"the stored file cannot be opened: {os.strerror(ctypes.get_errno())}", reason="raw_unreadable"
            )

    def close(self) -> None:
        self._unmap(self.address, self.size)
        _lift_memory_limit(-self.size)


def _lift_memory_limit(by: int) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        lifted = limit + by
        resource.setrlimit(resource.RLIMIT_AS, (lifted if most == resource.RLIM_INFINITY else min(lifted, most), most))


class _Open:
    def __init__(self, file: BinaryIO, password: str | None) -> None:
        self._bytes, self._password = _Bytes(file), password
        try:
            self.document = _open(self._bytes, password)
        except BaseException:
            self._bytes.close()
            raise
        self.total = len(self.document)
        self._outline = _Outline(_toc(self.document))
        self._read = 0
        self.scans: list[int] = []
        """The numbers of the pages read since the last call that need OCR."""

    def page(self, index: int) -> Page:
        if self._read >= REOPEN_PAGES:
            self.document.close()
            self.document, self._read = _open(self._bytes, self._password), 0
        self._read += 1
        text, scanned = self._text(index)
        if scanned:
            self.scans.append(index + 1)
        entries, path = self._outline.of(index)
        return Page(index + 1, text, _label(self.document, index), _headings(text, entries), path)

    def properties(self) -> dict[str, Any]:
        title, author, created, modified = (
            _info(self.document, name) for name in ("Title", "Author", "CreationDate", "ModDate")
        )
        return properties(title, author, created, modified, _catalog_language(self.document))

    def _text(self, index: int) -> tuple[str, bool]:
        try:
            page = self.document[index]
            try:
                text_page = page.get_textpage()
                text: str = text_page.get_text_bounded()
                text_page.close()
                scanned = is_scanned(page, text)
            finally:
                page.close()
        except pypdfium2.PdfiumError as error:
            raise Permanent(
                f"page {index + 1} of {self.total} cannot be read ({error}): the file is damaged there; "
                "repair it or get another copy, and ingest it",
                reason="damaged",
                page=index + 1,
            ) from error
        text = text.replace("\r\n", "\n")
        return (_JOINED.sub("-\n", text) if "\x02" in text else text), scanned

    def image(self, index: int, dpi: int, most: int) -> bytes:
        """The page as a grey image (PGM) of at most `most` pixels."""
        try:
            page = self.document[index]
            try:
                width, height = page.get_size()
                scale = min(dpi / 72, math.sqrt(most / max(width * height, 1)))
                bitmap = page.render(scale=scale, grayscale=True)
                grey = bytes(bitmap.buffer)
                rows = (grey[row * bitmap.stride : row * bitmap.stride + bitmap.width] for row in range(bitmap.height))
                image = b"P5 %d %d 255\n%b" % (bitmap.width, bitmap.height, b"".join(rows))
                bitmap.close()
            finally:
                page.close()
        except (pypdfium2.PdfiumError, ValueError) as error:
            raise Permanent(
                f"page {index + 1} of {self.total} cannot be drawn ({error}): the file is damaged there",
                reason="damaged",
                page=index + 1,
            ) from error
        return image

    def close(self) -> None:
        self.document.close()
        self._bytes.close()


_documents: OrderedDict[tuple[int, int, str | None], _Open] = OrderedDict()
"""The open documents by device, inode and password, the most recent last. No other file gets these numbers while the
file is open. This is the only state of a parser process."""


def read(file: BinaryIO, password: str | None, first: int, count: int) -> PdfPart:
    """The number of pages of the document, up to `count` pages from index `first`, and the numbers of those that are
    scanned."""
    with _opened(file, password) as document:
        document.scans = []
        pages = [document.page(i) for i in range(first, min(first + count, document.total))]
        return PdfPart(document.total, pages, {} if first else document.properties(), document.scans)


def draw(file: BinaryIO, password: str | None, index: int, dpi: int, most: int) -> bytes:
    with _opened(file, password) as document:
        return document.image(index, dpi, most)


@contextmanager
def opened_pdf(file: BinaryIO, password: str | None) -> Iterator[Any]:
    """The document as PDFium has it."""
    with _opened(file, password) as document:
        yield document.document


@contextmanager
def _opened(file: BinaryIO, password: str | None) -> Iterator[_Open]:
    known = os.fstat(file.fileno())
    key = (known.st_dev, known.st_ino, password)
    document = _documents.pop(key, None)
    if document is None:
        while len(_documents) >= OPEN_DOCUMENTS:
            _documents.popitem(last=False)[1].close()
        document = _Open(file, password)
    try:
        yield document
    except BaseException:
        # After a page that it cannot load, PDFium may return other pages under wrong numbers.
        document.close()
        raise
    _documents[key] = document


def is_scanned(page: Any, text: str) -> bool:
    """Whether a page has to be read by OCR: it shows something, but has no text; or it has little text, and images
    cover most of it. Such text is a stamp or a page number."""
    letters = sum(1 for character in islice(text, 2 * STRAY) if character.isalnum())
    if letters == 0:
        return any(islice(page.get_objects(max_depth=1), 1))
    if letters >= STRAY:
        return False
    width, height = page.get_size()
    covered = 0.0
    for image in islice(page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=3), MOST_IMAGES):
        left, bottom, right, top = image.get_bounds()
        covered += max(0.0, min(right, width) - max(left, 0.0)) * max(0.0, min(top, height) - max(bottom, 0.0))
    return bool(covered >= MOSTLY * width * height)


def _open(content: _Bytes, password: str | None) -> Any:
    # PdfDocument(…) treats a file without pages as an error, and reports the reason of an earlier error.
    secret = None if password is None else password.encode() + b"\0"
    document = pdfium.FPDF_LoadMemDocument64(content.address, content.size, secret)
    if document:
        opened = pypdfium2.PdfDocument(document)
        if len(opened):
            return opened
        opened.close()
        raise Permanent("the file is damaged: it has no pages; get another copy and ingest it", reason="damaged")
    error = pdfium.FPDF_GetLastError()
    if error == pdfium.FPDF_ERR_PASSWORD:
        state = "the password that was given does not open it" if password else "it is locked by a password"
        raise Permanent(f"{state}: pass it with `penstock retry ID --password …`", reason="encrypted")
    if error == pdfium.FPDF_ERR_SECURITY:
        raise Permanent(
            "PDFium does not support its encryption: save it without protection and ingest the new file",
            reason="encrypted",
        )
    raise Permanent(_DAMAGED, reason="damaged")


def _toc(document: Any) -> list[tuple[int, int, str]]:
    """(page index, level from 1, title) of every bookmark that has a title and refers to a page."""
    entries = []
    for bookmark in islice(document.get_toc(), MOST_HEADINGS):
        target = bookmark.get_dest()
        index = target.get_index() if target else None
        title = _title(bookmark)
        if index is not None and title:
            entries.append((index, bookmark.level + 1, title[:LONGEST_TITLE]))
    return entries


def _title(bookmark: Any) -> str:
    try:
        return " ".join(bookmark.get_title().replace("\0", " ").split())
    except UnicodeDecodeError:
        return ""


def _info(document: Any, name: str) -> str:
    """An entry of the information dictionary."""
    try:
        return str(document.get_metadata_value(name))
    except (UnicodeDecodeError, pypdfium2.PdfiumError):
        return ""


def _catalog_language(document: Any) -> str:
    """The language that the catalog of the document names."""
    size = pdfium.FPDFCatalog_GetLanguage(document, None, 0)
    if not 4 <= size <= 200:
        return ""
    buffer = ctypes.create_string_buffer(size)
    pdfium.FPDFCatalog_GetLanguage(document, ctypes.cast(buffer, ctypes.POINTER(pdfium.FPDF_WCHAR)), size)
    return buffer.raw[: size - 2].decode("utf-16-le", "replace")


def _label(document: Any, index: int) -> str | None:
    try:
        return document.get_page_label(index) or None
    except UnicodeDecodeError:
        return None


def _headings(text: str, entries: list[tuple[int, int, str]]) -> tuple[Block, ...]:
    """Heading blocks at the positions of the titles in the text, in order. A title that is not in the text is placed at
    the beginning of the page."""
    if not entries:
        return ()
    lines = _lines(text)
    blocks = []
    at = 0
    for _, level, title in entries:
        found = _find(lines, title, at) or _find(lines, title, 0)
        if found:
            at = found[1]
            blocks.append(Block("heading", lines[found[0]][0], lines[found[1] - 1][1], level, title))
        else:
            blocks.append(Block("heading", 0, 0, level, title))
    return tuple(sorted(blocks, key=lambda block: block.start))


def _lines(text: str) -> list[tuple[int, int, str]]:
    """Start, end and normalised text of every line that is not blank."""
    lines, start = [], 0
    for line in text.split("\n"):
        if normal := " ".join(line.split()).casefold():
            lines.append((start, start + len(line.rstrip()), normal))
        start += len(line) + 1
    return lines


def _find(lines: list[tuple[int, int, str]], title: str, at: int) -> tuple[int, int] | None:
    """The range of lines that contain the title: alone, after a number, over several lines, or at least at the
    beginning of a line. None if there is none."""
    wanted = " ".join(title.split()).casefold()
    begins = None
    for first in range(at, len(lines)):
        line = lines[first][2]
        if line == wanted or (line.endswith(wanted) and _NUMBER.fullmatch(line[: -len(wanted)])):
            return first, first + 1
        if begins is None and line.startswith(wanted + " "):
            begins = first, first + 1
        joined, last = line, first
        while wanted.startswith(joined) and last + 1 < min(first + MOST_TITLE_LINES, len(lines)):
            last += 1
            joined = f"{joined} {lines[last][2]}"
            if joined == wanted:
                return first, last + 1
    return begins
