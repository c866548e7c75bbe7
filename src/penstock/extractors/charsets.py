"""Which encoding an HTML file is in: its mark, its bytes, what it says itself, and only then a guess."""

import codecs
import re

from penstock.extractors.encodings import Utf8Check, byte_order_mark, legacy, wide

HEAD = 8192
_BEFORE_BAD, _SAMPLE = 16 * 1024, 64 * 1024
_DECLARED = re.compile(
    rb"""<(?:meta\b[^>]*?\bcharset|\?xml\b[^>]*?\bencoding)\s*=\s*["']?\s*([-\w.:]+)""", re.IGNORECASE
)
# Browsers read these names as the larger encodings that were meant.
_MEANT = {
    "ascii": "cp1252",
    "us-ascii": "cp1252",
    "iso-8859-1": "cp1252",
    "iso8859-1": "cp1252",
    "latin1": "cp1252",
    "iso-8859-9": "cp1254",
    "iso-8859-11": "cp874",
    "tis-620": "cp874",
    "shift_jis": "cp932",
    "shift-jis": "cp932",
    "sjis": "cp932",
    "x-sjis": "cp932",
    "windows-31j": "cp932",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "x-gbk": "gb18030",
    "big5": "big5hkscs",
    "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949",
    "macintosh": "mac_roman",
    "x-mac-cyrillic": "mac_cyrillic",
}
_KNOWN = re.compile(r"(?:iso-?8859-|windows-125|cp125|koi8-|euc-|gb18030|big5-hkscs|ibm866)")


def decoded(data: bytes) -> str:
    mark = byte_order_mark(data)
    if mark:
        encoding, length = mark
        return data[length:].decode(encoding, "replace")
    return data.decode(_encoding(data), "replace").removeprefix("\ufeff")


def _encoding(data: bytes) -> str:
    """What is UTF-8 throughout is UTF-8, whatever it says: pages that were converted still name the old encoding."""
    guess = wide(data[:HEAD])
    if guess:
        return guess
    check = Utf8Check()
    check.feed(data, True)
    if check.first_bad is None:
        return check.encoding
    named = _declared(data[:HEAD])
    if named:
        return named
    begin = max(0, check.first_bad - _BEFORE_BAD)
    return legacy(data[begin : begin + _SAMPLE], check.first_bad - begin)


def _declared(head: bytes) -> str | None:
    """The encoding that the file names, if we know it. Unicode is known by its bytes."""
    found = _DECLARED.search(head)
    name = found[1].decode("ascii", "replace").lower() if found else ""
    if name not in _MEANT and not _KNOWN.match(name):
        return None
    try:
        return codecs.lookup(_MEANT.get(name, name)).name
    except LookupError:
        return None
