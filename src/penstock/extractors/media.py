"""What kind of file it is: by its content first, then by its name, never by the client's word."""

import re
import zlib

from penstock.extractors.encodings import byte_order_mark, control_share, is_utf8, wide

EMPTY = "application/x-empty"
BINARY = "application/octet-stream"
PLAIN = "text/plain"
MARKDOWN = "text/markdown"
PDF = "application/pdf"
HTML = "text/html"

HEAD = 8192

_TEXTS = {
    "md": MARKDOWN,
    "markdown": MARKDOWN,
    "mdown": MARKDOWN,
    "csv": "text/csv",
    "html": HTML,
    "htm": HTML,
    "xhtml": HTML,
    "xht": HTML,
    "xml": "application/xml",
    "json": "application/json",
}

_OOXML = "application/vnd.openxmlformats-officedocument."
_OFFICE = {
    "docx": _OOXML + "wordprocessingml.document",
    "pptx": _OOXML + "presentationml.presentation",
    "xlsx": _OOXML + "spreadsheetml.sheet",
}
_OLE = {
    "doc": "application/msword",
    "xls": "application/vnd.ms-excel",
    "ppt": "application/vnd.ms-powerpoint",
    "msg": "application/vnd.ms-outlook",
}
DOCX = _OFFICE["docx"]
_MEMBER = re.compile(rb"PK\x03\x04.{26}(word|ppt|xl)/[\w/.-]*?\.(?:xml|rels|bin)", re.DOTALL)
_FOLDERS = {b"word": "docx", b"ppt": "pptx", b"xl": "xlsx"}
_CONTENT_TYPES = b"[Content_Types].xml"
_KINDS = ((b"wordprocessingml.", "docx"), (b"presentationml.", "pptx"), (b"spreadsheetml.", "xlsx"))

# Markdown and plain text may begin with other tags, or speak of these further down.
_HTML = re.compile(
    r"(?:\s|<\?xml[^>]*>|<!--.*?-->)*+<(?:!doctype\s+html\b|(?:html|head|body)[\s>])", re.IGNORECASE | re.DOTALL
)


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
        return HTML if _HTML.match(_text(head)) else _TEXTS.get(suffix, PLAIN)
    known = _container(head, suffix) or _magic(head, suffix)
    if known:
        return known
    return _TEXTS.get(suffix, PLAIN) if _is_damaged_text(head) else BINARY


def _marked(head: bytes, suffix: str) -> str | None:
    """Formats that may be all text but for the mark at their beginning."""
    start = head[:1024].lstrip(b"\xef\xbb\xbf \t\r\n\0")
    if start.startswith(b"%PDF-") or (b"%PDF-" in start and (suffix == "pdf" or not _is_text(head))):
        return PDF
    if start.startswith(b"{\\rtf"):
        return "application/rtf"
    return "application/postscript" if start.startswith(b"%!PS-Adobe") else None


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
    """Text with a few control characters or NULs in it, as a log has after a crash. Random bytes hold 9 %."""
    return control_share(head) <= (0.1 if is_utf8(head) else 0.02)


def _container(head: bytes, suffix: str) -> str | None:
    """Zip files all begin alike: what is inside tells them apart. So do old Office files: there the name must."""
    if head.startswith(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"):
        # A new Office file that is locked comes in the container of the old ones.
        return _OLE.get(suffix) or _OFFICE.get(suffix, "application/x-ole-storage")
    if not head.startswith(b"PK\x03\x04"):
        return None
    if head[30:38] == b"mimetype":
        named, _, _ = head[38:120].partition(b"PK")
        if named.isascii() and named.startswith(b"application/"):
            return named.decode("ascii")
    kind = _office(head)
    if kind or (_CONTENT_TYPES in head and suffix in _OFFICE):
        return _OFFICE[kind or suffix]
    return "application/zip"


def _office(head: bytes) -> str | None:
    """The kind of an Office file by its list of contents, which mostly comes first, or by where its parts lie."""
    named = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if named == _CONTENT_TYPES:
        listed = _first_member(head)
        for sign, kind in _KINDS:
            if sign in listed:
                return kind
    member = _MEMBER.search(head)
    return _FOLDERS[member[1]] if member else None


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
        # Two bytes alone prove nothing; and that it is no text is known already.
        if match.confidence >= 0.3 and not match.mime_type.startswith(("text/", "message/", "application/json")):
            return str(match.mime_type)
    return None
