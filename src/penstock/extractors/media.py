"""Detect the media type of a file: first by its content, then by its name. What a client declares is not used."""

import re
import zlib

from penstock.extractors.encodings import byte_order_mark, control_share, is_utf8, wide
from penstock.extractors.formats import FORMATS, PLAIN, TAR, ZIP, Magic, Mark, Office, Ole, Text

EMPTY = "application/x-empty"
BINARY = "application/octet-stream"

HEAD = 8192

_TEXTS = {suffix: row.media_type for row in FORMATS if isinstance(row.sign, Text) for suffix in row.suffixes}
_PATTERNS = [(row.sign.pattern, row.media_type) for row in FORMATS if isinstance(row.sign, Text) and row.sign.pattern]
_MARKS = [(row, row.sign) for row in FORMATS if isinstance(row.sign, Mark)]
_MAGIC = [(row.media_type, row.sign) for row in FORMATS if isinstance(row.sign, Magic)]
_OFFICES = [(row.media_type, row.sign) for row in FORMATS if isinstance(row.sign, Office)]
_OFFICE = {suffix: row.media_type for row in FORMATS if isinstance(row.sign, Office) for suffix in row.suffixes}
_OLE = {suffix: row.media_type for row in FORMATS if isinstance(row.sign, Ole) for suffix in row.suffixes}
_MEMBER = re.compile(
    rb"PK\x03\x04.{26}(" + b"|".join(sign.folder for _, sign in _OFFICES) + rb")/[\w/.-]*?\.(?:xml|rels|bin)", re.DOTALL
)
_FOLDERS = {sign.folder: media_type for media_type, sign in _OFFICES}
_CONTENT_TYPES = b"[Content_Types].xml"
PACKAGE = "application/x-zip-package"
_PACKAGES = frozenset(
    (
        "3mf", "aab", "aar", "apk", "appx", "crx", "ear", "idml", "ipa", "jar", "key", "kmz", "nupkg", "numbers", "one",
        "oxps", "pages", "sketch", "usdz", "vsdx", "vsix", "war", "whl", "xmind", "xpi", "xps",
    )
)  # fmt: skip
"""Suffixes of zip files that are one document or program, not an archive of documents."""


def detect(head: bytes, name: str) -> str:
    """The media type of a file from its first `HEAD` bytes and its name."""
    head = head[:HEAD]
    if not head:
        return EMPTY
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    marked = _marked(head, suffix)
    if marked:
        return marked
    if _is_text(head):
        text = _text(head)
        by_content = (media_type for pattern, media_type in _PATTERNS if pattern.match(text))
        return next(by_content, None) or _TEXTS.get(suffix, PLAIN)
    known = _container(head, suffix) or _numbered(head) or _oldest(head, suffix) or _magic(head, suffix)
    if known:
        return known
    return _TEXTS.get(suffix, PLAIN) if _is_damaged_text(head) else BINARY


def _marked(head: bytes, suffix: str) -> str | None:
    """The media type of a file with one of the marks in `_MARKS`. Such files may otherwise be text."""
    start = head[:1024].lstrip(b"\xef\xbb\xbf \t\r\n\0")
    for row, sign in _MARKS:
        if start.startswith(sign.start):
            return row.media_type
        if sign.anywhere and sign.start in start and (suffix in row.suffixes or not _is_text(head)):
            return row.media_type
    return None


def _text(head: bytes) -> str:
    mark = byte_order_mark(head)
    encoding, length = mark or (wide(head) or "latin-1", 0)
    return head[length:].decode(encoding, "replace")


def _is_text(head: bytes) -> bool:
    mark = byte_order_mark(head)
    if mark:
        encoding, length = mark
        text = head[length:].decode(encoding, "replace")
        return sum(1 for c in text if c < " " and c not in "\t\n\v\f\r\x1b") <= 0.1 * len(text)
    if wide(head):
        return True
    return b"\0" not in head and _is_damaged_text(head)


def _is_damaged_text(head: bytes) -> bool:
    """Whether the bytes are text, possibly with a few control characters or NULs, as in a log file after a crash. Of
    random bytes, 9 % are control characters."""
    return control_share(head) <= (0.1 if is_utf8(head) else 0.02)


def _container(head: bytes, suffix: str) -> str | None:
    """The media type of a zip file or an old Office file. All zip files begin with the same bytes, so their content
    decides. For old Office files the suffix decides."""
    if head.startswith(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"):
        # An encrypted new Office file uses the container of the old ones.
        return _OLE.get(suffix) or _OFFICE.get(suffix, "application/x-ole-storage")
    if not head.startswith(b"PK\x03\x04"):
        return None
    if head[30:38] == b"mimetype":
        named, _, _ = head[38:120].partition(b"PK")
        if named.isascii() and named.startswith(b"application/"):
            return named.decode("ascii")
    kind = _office(head)
    if kind or (_CONTENT_TYPES in head and suffix in _OFFICE):
        return kind or _OFFICE[suffix]
    return PACKAGE if suffix in _PACKAGES else ZIP


def _oldest(head: bytes, suffix: str) -> str | None:
    """The media type of an empty zip file, or of a TAR archive of the oldest kind, which has no mark."""
    if head.startswith(b"PK\x05\x06"):
        return ZIP
    return TAR if suffix == "tar" and not head.startswith(b"\0") else None


def _office(head: bytes) -> str | None:
    """The media type of an Office file, by its list of contents, which is usually the first member, or by the folders
    of its members."""
    named = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if named == _CONTENT_TYPES:
        listed = _first_member(head)
        for media_type, sign in _OFFICES:
            if sign.kind in listed:
                return media_type
    member = _MEMBER.search(head)
    return _FOLDERS[member[1]] if member else None


def _numbered(head: bytes) -> str | None:
    for media_type, sign in _MAGIC:
        if head.startswith(sign.starts, sign.offset):
            return media_type
    return None


def _first_member(head: bytes) -> bytes:
    method, named, extra = (int.from_bytes(head[at : at + 2], "little") for at in (8, 26, 28))
    data = head[30 + named + extra :]
    if method != zlib.DEFLATED:
        return data
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, HEAD * 8)
    except zlib.error:
        return b""


def _magic(head: bytes, suffix: str) -> str | None:
    import puremagic

    try:
        matches = puremagic.magic_string(head)
    except (puremagic.PureError, ValueError):
        return None
    named = [match for match in matches if match.mime_type]
    for match in named:
        if match.extension == "." + suffix:
            return str(match.mime_type)
    for match in named:
        # A match of two bytes alone has a low confidence. Text types are excluded: it is known not to be text.
        if match.confidence >= 0.3 and not match.mime_type.startswith(("text/", "message/", "application/json")):
            return str(match.mime_type)
    return None
