"""The messages between a worker and its parser processes: a length, then msgpack, through a pipe in each direction."""

import struct
from typing import Any

import msgspec

HEADER = struct.Struct("<I")


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Run the reading function `reader` with `arguments`. If `document` is true, an open file comes through the
    socket; if `output` is true, the writing end of a pipe comes with it."""

    reader: str
    arguments: dict[str, Any]
    document: bool = False
    output: bool = False


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`data` is the encoded result of the reading function. If `reason` is not empty, there is no result, and it says
    why. The first answer is empty and without a request: it says that the child is ready."""

    data: bytes = b""
    reason: str = ""
    message: str = ""
    page: int | None = None
    permanent: bool = True


def packed(message: Request | Answer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body
