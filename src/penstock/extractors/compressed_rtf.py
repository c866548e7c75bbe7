"""The compression of RTF in Outlook messages (LZFu): copies of earlier text, within a window of 4,096 bytes that begins
with common RTF words."""

import struct

_PREFIX = (
    rb"{\rtf1\ansi\mac\deff0\deftab720{\fonttbl;}{\f0\fnil \froman \fswiss \fmodern \fscript \fdecor MS Sans "
    rb"SerifSymbolArialTimes New RomanCourier{\colortbl\red0\green0\blue0"
    b"\r\n"
    rb"\par \pard\plain\f0\fs20\b\i\u\tab\tx"
)
_WINDOW = 4096
_COMPRESSED, _PLAIN = b"LZFu", b"MELA"
_HEADER = 16


def decompress(data: bytes) -> bytes:
    """The RTF. Raises ValueError for other data."""
    if len(data) < _HEADER:
        raise ValueError("the compressed text is too short")
    size, kind = struct.unpack_from("<4xI4s4x", data)
    if kind == _PLAIN:
        return data[_HEADER : _HEADER + size]
    if kind != _COMPRESSED:
        raise ValueError("the text has an unknown compression")
    return _decompressed(data[_HEADER:], size)


def _decompressed(data: bytes, size: int) -> bytes:
    window = bytearray(_PREFIX + bytes(_WINDOW - len(_PREFIX)))
    end, at = len(_PREFIX), 0
    out = bytearray()

    def put(byte: int) -> None:
        nonlocal end
        out.append(byte)
        window[end] = byte
        end = (end + 1) % _WINDOW

    while at < len(data) and len(out) < size:
        flags = data[at]
        at += 1
        for bit in range(8):
            if at >= len(data) or len(out) >= size:
                break
            if not flags >> bit & 1:
                put(data[at])
                at += 1
                continue
            if at + 2 > len(data):
                return bytes(out)
            (reference,) = struct.unpack_from(">H", data, at)
            at += 2
            start = reference >> 4
            if start == end:
                return bytes(out)
            for step in range((reference & 0xF) + 2):
                put(window[(start + step) % _WINDOW])
    return bytes(out)
