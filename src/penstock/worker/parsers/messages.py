"""What a worker and its parser processes say to each other: a length, then msgpack, both ways through a pipe."""

import struct
from typing import Any

import msgspec

HEADER = struct.Struct("<I")


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Run the reading function `reader` on `arguments`, and on the open file that comes beside it if it is about a
    `document`."""

    reader: str
    arguments: dict[str, Any]
    document: bool = False


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`data`, the encoded answer of the reading function; or `reason`, which says that there is none and why. An empty
    one comes unasked and first: the child is ready."""

    data: bytes = b""
    reason: str = ""
    message: str = ""
    page: int | None = None
    permanent: bool = True


def packed(message: Request | Answer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body
