"""Detect the encoding of an HTML file: from its byte order mark, its bytes, its declaration, and last by a guess."""

import re

from webencodings import LABELS, lookup

from penstock.extractors.encodings import Utf8Check, byte_order_mark, legacy, wide

HEAD = 8192
_BEFORE_BAD, _SAMPLE = 16 * 1024, 64 * 1024
_DECLARED = re.compile(
    rb"""<(?:meta\b[^>]*?\bcharset|\?xml\b[^>]*?\bencoding)\s*=\s*["']?\s*([-\w.:]+)""", re.IGNORECASE
)
# For these names Python's encoding has fewer characters than the one that browsers use.
_LARGER = {"shift_jis": "cp932", "gbk": "gb18030", "big5": "big5hkscs", "euc-kr": "cp949"}
# Declarations that are ignored. Unicode and seven-bit encodings are detected by their bytes; the last two are not text
# encodings.
_NOT_BELIEVED = {"utf-8", "utf-16le", "utf-16be", "iso-2022-jp", "replacement", "x-user-defined"}


def decoded(data: bytes) -> str:
    mark = byte_order_mark(data)
    if mark:
        encoding, length = mark
        return data[length:].decode(encoding, "replace")
    return data.decode(_encoding(data), "replace").removeprefix("\ufeff")


def _encoding(data: bytes) -> str:
    """The encoding of the file. Valid UTF-8 is read as UTF-8 whatever the file declares, because converted pages often
    still declare their old encoding."""
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
    """The encoding that the file declares, as browsers understand its name; None if there is no usable declaration."""
    found = _DECLARED.search(head)
    # The labels are loaded with this module, because an isolated parser process may not be able to load them later.
    name = LABELS.get(found[1].decode("ascii", "replace").lower()) if found else None
    if name is None or name in _NOT_BELIEVED:
        return None
    larger = _LARGER.get(name)
    return larger or str(lookup(name).codec_info.name)
