"""Detect the encoding of a text. All results depend only on the bytes."""

import codecs
import re
from collections import Counter
from collections.abc import Iterator

UTF8 = "utf-8"
ISO_2022_KR = "iso2022_kr"
ISO_2022_JP = "iso2022_jp_ext"

_MARKS = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"\x84\x31\x95\x33", "gb18030"),
)

# Bytes that occur in text, including tab, line ends, form feed, backspace, escape, shifts and the DOS end of file.
_TEXT_BYTES = bytes({*range(0x20, 0x100), *b"\t\n\v\f\r\b\x1a\x1b\x0e\x0f"} - {0x7F})
_UNWANTED = re.compile("[\x00-\x07\x0e-\x19\x1c-\x1f\x7f-\x84\x86-\x9f\ufff0-\uffff]")
_LATIN_1, _SIGNS = 0, -1

_ESCAPE = re.compile(rb"\x1b\$(?:[@AB]|\([@A-D]|\)C)")

# Western text is valid in many Latin code pages; only the common ones of each script are tried.
_WESTERN = "cp1252"
_LATIN = ("cp1250", "iso8859_2", "cp1254", "cp1257", "cp850", "cp437", "mac_roman")
_CYRILLIC = ("cp1251", "koi8_r", "koi8_u", "cp866", "iso8859_5")
_ASIAN = ("cp932", "euc_jp", "euc_jis_2004", "gb18030", "big5", "cp949", "euc_kr", "tis_620")
_CODE_PAGES = [_WESTERN, *_LATIN, *_CYRILLIC, *_ASIAN, "cp1253", "iso8859_7", "cp1255", "cp1256"]


def byte_order_mark(head: bytes) -> tuple[str, int] | None:
    """The encoding of a byte order mark, and the length of the mark; None if there is none."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding, len(mark)
    return None


def control_share(head: bytes) -> float:
    """The share of bytes of `head` that do not occur in text: NULs and most control characters."""
    return len(head.translate(None, _TEXT_BYTES)) / max(len(head), 1)


def is_utf8(head: bytes) -> bool:
    """Whether `head` is UTF-8. Its last character may be incomplete."""
    try:
        codecs.getincrementaldecoder(UTF8)().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def wide(head: bytes) -> str | None:
    """The UTF-32 or UTF-16 encoding of text without a byte order mark; None if it is probably neither."""
    if control_share(head) == 0 or (is_utf8(head) and control_share(head) <= 0.1):
        return None
    for encoding, zeros in (("utf-32-le", head[3::4]), ("utf-32-be", head[::4])):
        if zeros and not zeros.strip(b"\0") and _plausible(_decoded(head, encoding)) is not None:
            return encoding
    readings = {encoding: _plausible(_decoded(head, encoding)) for encoding in ("utf-16-le", "utf-16-be")}
    likely = {encoding: plain for encoding, plain in readings.items() if plain is not None}
    return max(likely, key=lambda encoding: likely[encoding]) if likely else None


def _decoded(head: bytes, encoding: str) -> str:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return ""


def _plausible(text: str) -> float | None:
    """The share of ASCII in a text; None unless it is text of one script with very few control characters.

    The share of ASCII decides between the byte orders: Latin text decoded in the wrong byte order looks like valid
    Chinese."""
    if not text:
        return None
    unwanted = sum(1 for c in text if _UNWANTED.match(c))
    scripts = Counter(_script(ord(c) >> 8) for c in text)
    latin, signs = scripts.pop(_LATIN_1, 0), scripts.pop(_SIGNS, 0)
    one_script = latin + signs + max(scripts.values(), default=0)
    if unwanted > 0.02 * len(text) or signs > 0.5 * len(text) or one_script < 0.95 * len(text):
        return None
    ascii_share = sum(1 for c in text if c < "\x7f") / len(text)
    # A few random bytes often look like Chinese.
    return ascii_share if len(text) >= 32 or ascii_share >= 0.3 else None


def _script(block: int) -> int:
    """A number for the script of a block of 256 characters. Latin-1 and signs occur in all scripts."""
    if block == 0:
        return _LATIN_1
    if 0x20 <= block <= 0x2B or block in (0xFE, 0xFF) or 0x1F0 <= block <= 0x1FA:
        return _SIGNS
    if 0x2E <= block <= 0x9F or 0xAC <= block <= 0xD7 or block in (0xF9, 0xFA) or 0x200 <= block <= 0x32F:
        return 0x4E
    return {0x02: 0x01, 0x1E: 0x01, 0x1F: 0x03, 0x05: 0x04, 0x07: 0x06, 0x08: 0x06, 0xFB: 0x06, 0xFC: 0x06}.get(
        block, block
    )


class Utf8Check:
    """Checks block by block whether a stream is UTF-8. Keeps only the end of the last block in memory."""

    def __init__(self) -> None:
        self.first_bad: int | None = None
        self._decoder = codecs.getincrementaldecoder(UTF8)()
        self._tail = b""
        self._fed = 0
        self._escapes: set[bytes] = set()
        self._ascii = True

    def feed(self, block: bytes, last: bool) -> None:
        plain = block.isascii()
        self._ascii = self._ascii and plain
        if self._ascii and b"\x1b$" in (joined := self._tail + block):
            self._escapes.update(_ESCAPE.findall(joined))
        self._tail = block[-3:]
        try:
            pending = len(self._decoder.getstate()[0])
            if pending or not plain:
                self._decoder.decode(block, last)
        except UnicodeDecodeError as error:
            self.first_bad = self._fed - pending + error.start
        self._fed += len(block)

    @property
    def encoding(self) -> str:
        """The encoding of a stream without an invalid byte: UTF-8, or a seven-bit encoding, whose bytes are ASCII."""
        if not self._ascii or not self._escapes:
            return UTF8
        return ISO_2022_KR if b"\x1b$)C" in self._escapes else ISO_2022_JP


def legacy(sample: bytes, bad: int) -> str:
    """The encoding of a text that is not valid UTF-8. `sample` contains its first invalid byte, at the offset `bad`.
    Mostly valid UTF-8 counts as UTF-8."""
    as_utf8 = sample.decode(UTF8, "replace")
    broken = as_utf8.count("\ufffd")
    if sum(1 for c in as_utf8 if c > "\x7f") - broken > 4 * broken:
        return UTF8
    from charset_normalizer import from_bytes

    # Cut at line ends: a sample that begins or ends inside a character would exclude the correct encoding.
    begin = sample.rfind(b"\n", 0, bad) + 1
    end = sample.rfind(b"\n", bad) + 1 or len(sample)
    matches = from_bytes(sample[begin:end], cp_isolation=_CODE_PAGES)
    best = matches.best()
    if best is None:
        return _WESTERN
    if best.encoding in _LATIN and any(
        _WESTERN in match.could_be_from_charset and match.chaos <= best.chaos + 0.06 for match in matches
    ):
        return _WESTERN
    return best.encoding


def shift_after(data: bytes, encoding: str, shift: str) -> str:
    """The escape sequence that is in effect after `data` in a stateful encoding. The text that follows must be decoded
    with it in front."""
    if encoding == ISO_2022_KR:
        shifted = data.rfind(b"\x0e") > max(data.rfind(b"\x0f"), data.rfind(b"\n"))
        return "\x1b$)C\x0e" if shifted else "\x1b$)C"
    if encoding != ISO_2022_JP:
        return ""
    for found in _designations(data):
        shift = "" if found == b"\x1b(B" else found.decode("ascii")
    return shift


def _designations(data: bytes) -> Iterator[bytes]:
    return (match.group() for match in re.finditer(rb"\x1b(?:\$\(?[@A-D]|\([BIJ])", data))
