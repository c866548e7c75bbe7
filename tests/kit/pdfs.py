"""PDFs from raw objects: sound ones, locked ones, and such as no writer would make."""

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

FONT = b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding>>"
_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
_ID = bytes(range(16))
_ALLOWED = -4
"""The permissions entry: everything."""


@dataclass(frozen=True)
class Lock:
    """The standard security handler, RC4. Revision 2 has keys of 5 bytes, revision 3 of 16."""

    user: bytes = b""
    owner: bytes = b"owner"
    revision: int = 3

    @property
    def _length(self) -> int:
        return 5 if self.revision == 2 else 16

    def _stretched(self, digest: bytes, rounds: int) -> bytes:
        for _ in range(rounds if self.revision > 2 else 0):
            digest = hashlib.md5(digest[: self._length]).digest()
        return digest[: self._length]

    def _sealed(self, key: bytes, data: bytes) -> bytes:
        for i in range(20 if self.revision > 2 else 1):
            data = _rc4(bytes(byte ^ i for byte in key), data)
        return data

    @property
    def _owner_entry(self) -> bytes:
        key = self._stretched(hashlib.md5(_padded(self.owner or self.user)).digest(), 50)
        return self._sealed(key, _padded(self.user))

    @property
    def _key(self) -> bytes:
        seed = _padded(self.user) + self._owner_entry + _ALLOWED.to_bytes(4, "little", signed=True) + _ID
        return self._stretched(hashlib.md5(seed).digest(), 50)

    def entry(self) -> bytes:
        seed = _PADDING if self.revision == 2 else hashlib.md5(_PADDING + _ID).digest()
        check = self._sealed(self._key, seed).ljust(32, b"\0")
        owner = self._owner_entry.hex().encode()
        version = 1 if self.revision == 2 else 2
        return b"<</Filter /Standard /V %d /R %d /Length %d /P %d /O <%b> /U <%b>>>" % (
            version, self.revision, self._length * 8, _ALLOWED, owner, check.hex().encode(),
        )  # fmt: skip

    def seal(self, number: int, data: bytes) -> bytes:
        key = hashlib.md5(self._key + number.to_bytes(3, "little") + b"\0\0").digest()
        return _rc4(key[: min(16, self._length + 5)], data)


@dataclass
class Pdf:
    """Numbered objects. One that is reserved and never set is missing from the file."""

    lock: Lock | None = None
    bodies: list[bytes | None] = field(default_factory=list)
    info: bytes = b""
    """The information dictionary."""

    def reserve(self) -> int:
        self.bodies.append(None)
        return len(self.bodies)

    def add(self, body: bytes, number: int = 0) -> int:
        number = number or self.reserve()
        self.bodies[number - 1] = body
        return number

    def stream(self, data: bytes, entries: bytes = b"", number: int = 0) -> int:
        number = number or self.reserve()
        packed = zlib.compress(data)
        if self.lock is not None:
            packed = self.lock.seal(number, packed)
        head = b"<</Length %d /Filter /FlateDecode %b>>" % (len(packed), entries)
        return self.add(b"%b\nstream\n%b\nendstream" % (head, packed), number)

    def image(self, width: int = 8, height: int = 8) -> int:
        entries = b"/Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceGray /BitsPerComponent 8"
        return self.stream(bytes(range(width * height)), entries % (width, height))

    def close(self, catalog: int, *, table: bool = True) -> bytes:
        """The file; without `table` nothing in it says where the objects are."""
        lock = self.add(self.lock.entry()) if self.lock is not None else 0
        encrypt = b"/Encrypt %d 0 R /ID [<%b> <%b>]" % (lock, _ID.hex().encode(), _ID.hex().encode()) if lock else b""
        encrypt += b" /Info %d 0 R" % self.add(self.info) if self.info else b""
        out, places = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"), []
        for number, body in enumerate(self.bodies, 1):
            places.append(len(out) if body is not None else 0)
            if body is not None:
                out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
        start = len(out) if table else 0
        if table:
            out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1)
            for place in places:
                out += b"%010d %05d %b \n" % (place, 0 if place else 65535, b"n" if place else b"f")
        out += b"trailer\n<</Size %d /Root %d 0 R %b>>\nstartxref\n%d\n%%%%EOF\n" % (
            len(places) + 1, catalog, encrypt, start,
        )  # fmt: skip
        return bytes(out)


@dataclass(frozen=True)
class Entry:
    """An entry of the outline. `page` counts from 0; None leads nowhere."""

    title: str
    page: int | None
    children: Sequence["Entry"] = ()


@dataclass
class Pages(Pdf):
    """A document of pages by their content streams; for `None` the page's object is `stand_in`, or missing."""

    contents: Sequence[bytes | None] = ()
    outline: Sequence[Entry] = ()
    labels: bytes = b""
    """The array of the page label tree: `0 <</S /r>> 4 <</S /D>>`."""
    resources: bytes = b""
    catalog: bytes = b""
    """More entries of the catalog."""
    stand_in: bytes | None = None
    count: int | None = None
    """What the page tree says; not set: the truth."""

    def write(self, *, table: bool = True) -> bytes:
        catalog, root, font = self.reserve(), self.reserve(), self.add(FONT)
        kids = [self._page(root, font, content) for content in self.contents]
        total = len(kids) if self.count is None else self.count
        self.add(b"<</Type /Pages /Count %d /Kids [%b]>>" % (total, references(kids)), root)
        entries = b"/Type /Catalog /Pages %d 0 R %b" % (root, self.catalog)
        if self.outline:
            entries += b" /Outlines %d 0 R" % self._entries(self.outline, kids, self.reserve())
        if self.labels:
            entries += b" /PageLabels <</Nums [%b]>>" % self.labels
        self.add(b"<<%b>>" % entries, catalog)
        return self.close(catalog, table=table)

    def _page(self, root: int, font: int, content: bytes | None) -> int:
        page = self.reserve()
        if content is None:
            self.bodies[page - 1] = self.stand_in
        else:
            resources = b"<</Font <</F1 %d 0 R>> %b>>" % (font, self.resources)
            self.add(
                b"<</Type /Page /Parent %d 0 R /MediaBox [0 0 612 792] /Resources %b /Contents %d 0 R>>"
                % (root, resources, self.stream(content)),
                page,
            )
        return page

    def _entries(self, entries: Sequence[Entry], kids: Sequence[int], parent: int, title: bytes = b"") -> int:
        """An entry (or the root) with its children, who are chained to each other."""
        numbers = [self.reserve() for _ in entries]
        for i, (entry, number) in enumerate(zip(entries, numbers, strict=True)):
            head = b"/Title %b /Parent %d 0 R" % (string(entry.title), parent)
            if entry.page is not None:
                head += b" /Dest [%d 0 R /Fit]" % kids[entry.page]
            if i + 1 < len(numbers):
                head += b" /Next %d 0 R" % numbers[i + 1]
            self._entries(entry.children, kids, number, head)
        if numbers:
            title += b" /First %d 0 R /Last %d 0 R /Count %d" % (numbers[0], numbers[-1], len(numbers))
        return self.add(b"<<%b>>" % title, parent)


def pdf(*contents: bytes | None, lock: Lock | None = None, table: bool = True, **options: object) -> bytes:
    return Pages(lock=lock, contents=contents, **options).write(table=table)  # type: ignore[arg-type]


def numbered(count: int, word: str = "subject") -> list[bytes | None]:
    """Content of pages that can be told apart."""
    return [page(f"Page {i} tells of {word}{i}", f"and of matter{i} at some length.") for i in range(1, count + 1)]


def page(*lines: str) -> bytes:
    """Content: a line of text below the other."""
    shown = b"".join(b"%b Tj T* " % literal(line) for line in lines)
    return b"BT /F1 12 Tf 14 TL 72 720 Td %bET" % shown


def literal(text: str) -> bytes:
    encoded = text.encode("cp1252")
    return b"(" + encoded.replace(b"\\", rb"\\").replace(b"(", rb"\(").replace(b")", rb"\)") + b")"


def string(text: str) -> bytes:
    return b"<feff%b>" % text.encode("utf-16-be", "surrogatepass").hex().encode()


def references(numbers: Iterable[int]) -> bytes:
    return b" ".join(b"%d 0 R" % number for number in numbers)


def hanging(pages: int, bad: int, pieces: int = 40_000) -> bytes:
    """Page `bad` (from 1) is one line of pieces that stand from right to left: the time that PDFium takes to sort them
    grows with the square of their number, 40,000 keep it busy for half a minute."""
    line = b"".join(b"1 0 0 1 %.4f 700 Tm (x%d) Tj " % (600 - i * 0.01, i) for i in range(pieces))
    return pdf(*numbered(bad - 1), b"BT /F1 12 Tf %bET" % line, *numbered(pages)[bad:])


def devouring(pages: int, bad: int, megabytes: int) -> bytes:
    """Page `bad` (from 1) is some kilobytes in the file, and so many megabytes when they are unpacked."""
    text = b"(abcdefghij) Tj "
    return pdf(
        *numbered(bad - 1),
        b"BT /F1 12 Tf 72 700 Td " + text * (megabytes * 1_000_000 // len(text)) + b"ET",
        *numbered(pages)[bad:],
    )


def _padded(password: bytes) -> bytes:
    return (password + _PADDING)[:32]


def _rc4(key: bytes, data: bytes) -> bytes:
    state, j = list(range(256)), 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)
