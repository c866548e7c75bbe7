"""Which encoding an HTML file is in: its mark, its bytes, what it says itself, and only then a guess."""

import re

from webencodings import LABELS, lookup

from penstock.extractors.encodings import Utf8Check, byte_order_mark, legacy, wide

HEAD = 8192
_BEFORE_BAD, _SAMPLE = 16 * 1024, 64 * 1024
_DECLARED = re.compile(
    rb"""<(?:meta\b[^>]*?\bcharset|\?xml\b[^>]*?\bencoding)\s*=\s*["']?\s*([-\w.:]+)""", re.IGNORECASE
)
# Of these names Python has a smaller encoding than browsers mean.
_LARGER = {"shift_jis": "cp932", "gbk": "gb18030", "big5": "big5hkscs", "euc-kr": "cp949"}
# Unicode and seven-bit encodings are known by their bytes; the last two are no encodings of texts.
_NOT_BELIEVED = {"utf-8", "utf-16le", "utf-16be", "iso-2022-jp", "replacement", "x-user-defined"}


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
    """The encoding that the file names, as browsers understand the name; None: there is none that we can use."""
    found = _DECLARED.search(head)
    # Its labels are loaded with this module: a parser process may not be able to load them later.
    name = LABELS.get(found[1].decode("ascii", "replace").lower()) if found else None
    if name is None or name in _NOT_BELIEVED:
        return None
    larger = _LARGER.get(name)
    return larger or str(lookup(name).codec_info.name)
