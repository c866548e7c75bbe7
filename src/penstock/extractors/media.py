"""What kind of file it is: by its content first, then by its name, never by the client's word."""

from penstock.extractors.encodings import byte_order_mark, control_share, is_utf8, wide

EMPTY = "application/x-empty"
BINARY = "application/octet-stream"
PLAIN = "text/plain"
MARKDOWN = "text/markdown"
PDF = "application/pdf"

HEAD = 8192

_TEXTS = {
    "md": MARKDOWN,
    "markdown": MARKDOWN,
    "mdown": MARKDOWN,
    "csv": "text/csv",
    "html": "text/html",
    "htm": "text/html",
    "xhtml": "text/html",
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
_MEMBERS = ((b"word/", "docx"), (b"ppt/", "pptx"), (b"xl/", "xlsx"))


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
        return _TEXTS.get(suffix, PLAIN)
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
        return _OLE.get(suffix, "application/x-ole-storage")
    if not head.startswith(b"PK\x03\x04"):
        return None
    if head[30:38] == b"mimetype":
        named, _, _ = head[38:120].partition(b"PK")
        if named.isascii() and named.startswith(b"application/"):
            return named.decode("ascii")
    for member, kind in _MEMBERS:
        if member in head:
            return _OFFICE[kind]
    if b"[Content_Types].xml" in head and suffix in _OFFICE:
        return _OFFICE[suffix]
    return "application/zip"


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
