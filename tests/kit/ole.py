"""Files of old Office programs for tests: an OLE container, and the least that Word, Excel and Outlook put into one."""

import struct
from collections.abc import Mapping

SECTOR = 512
_LEAST = 4096
"""Shorter streams would have to be written into another stream. All are filled up with zeros instead."""
OLE_START = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_FREE, _END, _TABLE = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
_STORAGE, _STREAM, _ROOT = 1, 2, 5


def container(streams: Mapping[str, bytes]) -> bytes:
    """A container with these streams. A name `folder/stream` puts a stream into a storage."""
    folders = sorted({name.partition("/")[0] for name in streams if "/" in name})
    tops = sorted([*folders, *(name for name in streams if "/" not in name)], key=_order)
    entries: list[tuple[str, int, bytes]] = [("Root Entry", _ROOT, b"")]
    links: dict[int, tuple[int, int]] = {}
    links[0] = (_FREE, _add(tops, "", streams, folders, entries, links))
    sectors, starts = bytearray(), []
    chain: list[int] = []
    for _, kind, data in entries:
        starts.append(len(chain) if kind == _STREAM else _END if kind == _ROOT else 0)
        if kind == _STREAM:
            chain += _write(sectors, data, len(chain))
    folder = len(chain)
    chain += _write(sectors, b"".join(_entry(n, entries, links, starts) for n in range(len(entries))), folder)
    count = 1
    while (len(chain) + count) * 4 > count * SECTOR:
        count += 1
    table = len(chain)
    chain += [_TABLE] * count
    packed = struct.pack(f"<{len(chain)}I", *chain)
    sectors += packed + b"\xff" * (count * SECTOR - len(packed))
    header = OLE_START + bytes(16) + struct.pack("<HHHHH6x", 0x3E, 3, 0xFFFE, 9, 6)
    header += struct.pack("<IIIIIIIII", 0, count, folder, 0, _LEAST, _END, 0, _END, 0)
    header += struct.pack(f"<{count}I", *range(table, table + count))
    return header + b"\xff" * (SECTOR - len(header)) + bytes(sectors)


def _order(name: str) -> tuple[int, str]:
    return len(name), name.upper()


def _add(
    names: list[str],
    prefix: str,
    streams: Mapping[str, bytes],
    folders: list[str],
    entries: list[tuple[str, int, bytes]],
    links: dict[int, tuple[int, int]],
) -> int:
    """Add entries that follow each other to the right. Returns the number of the first."""
    following = _FREE
    for name in reversed(names):
        number = len(entries)
        if not prefix and name in folders:
            entries.append((name, _STORAGE, b""))
            inner = sorted((key.partition("/")[2] for key in streams if key.startswith(f"{name}/")), key=_order)
            links[number] = (following, _add(inner, f"{name}/", streams, folders, entries, links))
        else:
            entries.append((name, _STREAM, streams[prefix + name].ljust(_LEAST, b"\0")))
            links[number] = (following, _FREE)
        following = number
    return following


def _write(sectors: bytearray, data: bytes, first: int) -> list[int]:
    count = -(-len(data) // SECTOR)
    sectors += data.ljust(count * SECTOR, b"\0")
    return [*range(first + 1, first + count), _END]


def _entry(
    number: int, entries: list[tuple[str, int, bytes]], links: Mapping[int, tuple[int, int]], starts: list[int]
) -> bytes:
    name, kind, data = entries[number]
    encoded = name.encode("utf-16-le")
    right, child = links[number]
    found = encoded.ljust(64, b"\0") + struct.pack("<HBBIII", len(encoded) + 2, kind, 1, _FREE, right, child)
    return found + bytes(36) + struct.pack("<IQ", starts[number], len(data))


def word(text: str, footnotes: str = "", flags: int = 0, more: Mapping[str, bytes] | None = None) -> bytes:
    """A Word document (DOC) of one piece. Paragraphs end with a carriage return."""
    body = (text + footnotes).encode("utf-16-le")
    main = bytearray(2048)
    struct.pack_into("<H", main, 0, 0xA5EC)
    struct.pack_into("<H", main, 10, flags | 0x0200)
    struct.pack_into("<II", main, 0x4C, len(text), len(footnotes))
    pieces = struct.pack("<II", 0, len(text + footnotes)) + struct.pack("<HIH", 0, len(main), 0)
    clx = b"\x02" + struct.pack("<I", len(pieces)) + pieces
    struct.pack_into("<II", main, 0x01A2, 0, len(clx))
    return container({"WordDocument": bytes(main) + body, "1Table": clx, **(more or {})})


def excel(sheets: Mapping[str, list[list[str]]]) -> bytes:
    """An Excel workbook (XLS) with text cells."""
    bodies = [_sheet(rows) for rows in sheets.values()]
    names = [struct.pack("<BBBB", 0, 0, len(name), 0) + name.encode("latin-1") for name in sheets]
    start = _record(0x0809, struct.pack("<HHHHII", 0x0600, 5, 0, 0, 0, 0))
    at = len(start) + sum(len(name) + 8 for name in names) + 4
    bounds = b""
    for name, body in zip(names, bodies, strict=True):
        bounds += _record(0x0085, struct.pack("<I", at) + name)
        at += len(body)
    return container({"Workbook": start + bounds + _record(0x000A, b"") + b"".join(bodies)})


def _sheet(rows: list[list[str]]) -> bytes:
    cells = b""
    for y, row in enumerate(rows):
        for x, text in enumerate(row):
            cells += _record(0x0204, struct.pack("<HHHHB", y, x, 0, len(text), 0) + text.encode("latin-1"))
    return _record(0x0809, struct.pack("<HHHHII", 0x0600, 0x10, 0, 0, 0, 0)) + cells + _record(0x000A, b"")


def _record(kind: int, data: bytes) -> bytes:
    return struct.pack("<HH", kind, len(data)) + data


def outlook(
    subject: str, body: str, *, attachment: str | None = None, more: Mapping[str, bytes] | None = None
) -> bytes:
    """An Outlook message (MSG)."""
    wide = {"0037": subject, "1000": body, "0C1A": "Ann Otter", "0E04": "Ben Heron"}
    streams = {f"__substg1.0_{key}001F": text.encode("utf-16-le") for key, text in wide.items() if text}
    sent = struct.pack("<HHIQ", 0x40, 0x39, 6, 133_000_000_000_000_000)
    streams["__properties_version1.0"] = bytes(32) + sent
    if attachment is not None:
        streams["__attach_version1.0_#00000000/__substg1.0_3707001F"] = attachment.encode("utf-16-le")
    return container({**streams, **(more or {})})
