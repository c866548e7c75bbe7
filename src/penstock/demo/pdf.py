"""A small PDF writer: pages of positioned text, bookmarks and page labels. It streams, so that its memory does not grow
with the number of pages. It uses only the standard library."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

Font = Literal["regular", "bold", "italic", "mono"]

FONTS: dict[Font, tuple[str, str]] = {
    "regular": ("F1", "Helvetica"),
    "bold": ("F2", "Helvetica-Bold"),
    "italic": ("F3", "Helvetica-Oblique"),
    "mono": ("F4", "EventDispatcher"),
}
A4 = (595, 842)
BRANCH = 100
"""The maximum number of pages under one node of the page tree, so that a reader finds page 20,000 without reading all
nodes before it."""


class Text(NamedTuple):
    """One line of text. Its baseline starts at (x, y), in points from the lower left corner."""

    x: float
    y: float
    text: str
    size: float = 10
    font: Font = "regular"


@dataclass(frozen=True)
class PdfPage:
    texts: Sequence[Text] = ()
    drawing: bytes = b""
    """Operators of a content stream, drawn below the text: lines and boxes."""
    size: tuple[float, float] = A4


class Bookmark(NamedTuple):
    """An entry of the outline. `page` counts from 0; `level` from 1, and no level is skipped on the way down."""

    title: str
    page: int
    level: int = 1


class Label(NamedTuple):
    """Page labels from `page` on (counted from 0): D is 1, 2 …; r is i, ii …; A is A, B …"""

    page: int
    style: Literal["D", "R", "r", "A", "a"] = "D"
    prefix: str = ""
    first: int = 1


def write_pdf(
    path: Path,
    pages: Iterable[PdfPage],
    *,
    title: str = "",
    outline: Iterable[Bookmark] = (),
    labels: Iterable[Label] = (),
) -> int:
    """Write a PDF and return its number of pages. The outline is read after the last page, so that `pages` can add to
    it."""
    with open(path, "wb") as file:
        objects = _Objects(file)
        catalog, root = objects.reserve(), objects.reserve()
        fonts = {name: objects.add(_font(base)) for name, base in FONTS.values()}
        written = _write_pages(objects, root, fonts, pages)
        entries = [f"/Type /Catalog /Pages {root} 0 R"]
        if outline_root := _write_outline(objects, list(outline), written):
            entries.append(f"/Outlines {outline_root} 0 R /PageMode /UseOutlines")
        if numbers := " ".join(f"{label.page} {_label(label)}" for label in labels):
            entries.append(f"/PageLabels << /Nums [{numbers}] >>")
        objects.add(f"<< {' '.join(entries)} >>".encode(), catalog)
        objects.close(catalog, objects.add(f"<< /Title {string(title)} /Producer (Penstock) >>".encode()))
    return len(written)


def string(text: str) -> str:
    """Encode a string of the document's data (titles, labels) as UTF-16, which has all characters."""
    return f"<{(chr(0xFEFF) + text).encode('utf-16-be', 'replace').hex()}>"


def literal(text: str) -> bytes:
    """Encode a string to be drawn in one of the fonts, as WinAnsi. Characters that it lacks become question marks."""
    encoded = text.encode("cp1252", "replace")
    return b"(" + encoded.replace(b"\\", rb"\\").replace(b"(", rb"\(").replace(b")", rb"\)") + b")"


class _Objects:
    """Writes numbered objects in sequence, and keeps only their offsets."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._places: list[int] = []
        self._at = file.write(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")

    def reserve(self) -> int:
        self._places.append(0)
        return len(self._places)

    def add(self, body: bytes, number: int | None = None) -> int:
        number = number or self.reserve()
        self._places[number - 1] = self._at
        self._at += self._file.write(b"%d 0 obj\n%b\nendobj\n" % (number, body))
        return number

    def close(self, catalog: int, info: int) -> None:
        count = len(self._places) + 1
        self._file.write(b"xref\n0 %d\n0000000000 65535 f \n" % count)
        self._file.writelines(b"%010d 00000 n \n" % place for place in self._places)
        trailer = b"trailer\n<< /Size %d /Root %d 0 R /Info %d 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        self._file.write(trailer % (count, catalog, info, self._at))


def _write_pages(objects: _Objects, root: int, fonts: dict[str, int], pages: Iterable[PdfPage]) -> list[int]:
    written: list[int] = []
    branches: list[tuple[int, list[int]]] = []
    for page in pages:
        if len(written) % BRANCH == 0:
            branches.append((objects.reserve(), []))
        branch, kids = branches[-1]
        content = objects.add(_stream(_content(page)))
        width, height = page.size
        box = f"/MediaBox [0 0 {width:g} {height:g}]"
        body = f"<< /Type /Page /Parent {branch} 0 R {box} /Contents {content} 0 R >>"
        written.append(objects.add(body.encode()))
        kids.append(written[-1])
    for branch, kids in branches:
        body = f"<< /Type /Pages /Parent {root} 0 R /Count {len(kids)} /Kids [{_references(kids)}] >>"
        objects.add(body.encode(), branch)
    resources = " ".join(f"/{name} {number} 0 R" for name, number in fonts.items())
    kids = [branch for branch, _ in branches]
    objects.add(
        f"<< /Type /Pages /Count {len(written)} /Kids [{_references(kids)}] "
        f"/Resources << /Font << {resources} >> >> >>".encode(),
        root,
    )
    return written


def _content(page: PdfPage) -> bytes:
    lines = [b"q", page.drawing, b"Q"] if page.drawing else []
    for text in page.texts:
        name = FONTS[text.font][0].encode()
        place = f"{text.size:g} Tf 1 0 0 1 {text.x:g} {text.y:g} Tm".encode()
        lines.append(b"BT /%b %b %b Tj ET" % (name, place, literal(text.text)))
    return b"\n".join(lines)


def _stream(content: bytes) -> bytes:
    packed = zlib.compress(content)
    return b"<< /Length %d /Filter /FlateDecode >>\nstream\n%b\nendstream" % (len(packed), packed)


def _font(base: str) -> bytes:
    return f"<< /Type /Font /Subtype /Type1 /BaseFont /{base} /Encoding /WinAnsiEncoding >>".encode()


def _label(label: Label) -> str:
    prefix = f" /P {string(label.prefix)}" if label.prefix else ""
    return f"<< /S /{label.style}{prefix} /St {label.first} >>"


def _references(numbers: Sequence[int]) -> str:
    return " ".join(f"{number} 0 R" for number in numbers)


def _write_outline(objects: _Objects, bookmarks: Sequence[Bookmark], pages: Sequence[int]) -> int | None:
    """Write the outline and return its root, or None without bookmarks. Each entry names its parent, its siblings and
    its children."""
    if not bookmarks:
        return None
    root = objects.reserve()
    numbers = [objects.reserve() for _ in bookmarks]
    children: dict[int, list[int]] = {root: []}
    open_at = [root]
    parents = []
    for bookmark, number in zip(bookmarks, numbers, strict=True):
        if not 1 <= bookmark.level <= len(open_at):
            raise ValueError(f"bookmark {bookmark.title!r} has level {bookmark.level} and no parent above it")
        del open_at[bookmark.level :]
        parents.append(open_at[-1])
        children[open_at[-1]].append(number)
        children[number] = []
        open_at.append(number)
    place = {number: i for siblings in children.values() for i, number in enumerate(siblings)}
    for bookmark, number, parent in zip(bookmarks, numbers, parents, strict=True):
        siblings, i = children[parent], place[number]
        entries = [f"/Title {string(bookmark.title)} /Parent {parent} 0 R /Dest [{pages[bookmark.page]} 0 R /Fit]"]
        if i > 0:
            entries.append(f"/Prev {siblings[i - 1]} 0 R")
        if i + 1 < len(siblings):
            entries.append(f"/Next {siblings[i + 1]} 0 R")
        objects.add(f"<< {' '.join(entries)}{_family(children[number], -1)} >>".encode(), number)
    objects.add(f"<< /Type /Outlines{_family(children[root], 1)} >>".encode(), root)
    return root


def _family(children: Sequence[int], sign: int) -> str:
    """Return the entries for the first child, the last child and the number of children. A negative number means
    collapsed."""
    if not children:
        return ""
    return f" /First {children[0]} 0 R /Last {children[-1]} 0 R /Count {sign * len(children)}"
