"""The body of a request as it arrives: limited, timed, and checked against its digest."""

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import Request
from starlette.requests import ClientDisconnect

from penstock.api.problems import Problem
from penstock.config_limits import LimitsConfig
from penstock.config_serve import ServeConfig
from penstock.runtime import Runtime

_DIGEST = re.compile(r"\s*([a-z0-9-]+)=:([A-Za-z0-9+/=]*):(?:;[^,]*)?\s*")
_ALGORITHMS = {"sha-256": "sha256", "sha-512": "sha512"}
_CLOSE = {"Connection": "close"}


class Gone(Problem):
    """The client has closed the connection before the end of the body."""

    def __init__(self) -> None:
        super().__init__("bad_request", "the connection was closed before the end of the body", headers=_CLOSE)


def content_length(request: Request, limits: LimitsConfig) -> int | None:
    """The announced size of the body, if there is one. Raise Problem 413 if it is too large."""
    given = request.headers.get("content-length")
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise Problem("bad_request", "Content-Length: expected a number", headers=_CLOSE)
    _check_size(int(given), limits)
    return int(given)


def _check_size(size: int, limits: LimitsConfig) -> None:
    if size > limits.megabytes << 20:
        raise Problem("too_large", f"a document has at most {limits.megabytes:,} MB (limits.megabytes)", headers=_CLOSE)


async def arriving(
    request: Request, settings: ServeConfig, runtime: Runtime, limits: LimitsConfig
) -> AsyncGenerator[bytes, None]:
    """Yield the body. Raise Problem if it is too slow, too large, or does not arrive whole."""
    began, size, stream = runtime.clock(), 0, request.stream()
    while True:
        try:
            async with asyncio.timeout(settings.idle_s):
                piece = await anext(stream, None)
        except TimeoutError:
            raise _slow(f"no byte arrived for {settings.idle_s:g} s") from None
        except ClientDisconnect:
            raise Gone from None
        if piece is None:
            return
        size += len(piece)
        _check_size(size, limits)
        elapsed = runtime.clock() - began
        if elapsed > settings.idle_s and size < settings.bytes_per_s * elapsed:
            raise _slow(f"fewer than {settings.bytes_per_s:,} bytes a second arrived")
        if piece:
            yield piece


def _slow(why: str) -> Problem:
    return Problem("too_slow", why, headers=_CLOSE)


def expected_digests(request: Request) -> dict[str, bytes]:
    """The digests of the header `Content-Digest` (RFC 9530) that can be checked, by algorithm."""
    found: dict[str, bytes] = {}
    for header in request.headers.getlist("content-digest"):
        for part in header.split(","):
            parsed = _DIGEST.fullmatch(part)
            if parsed is None:
                raise Problem("bad_request", "Content-Digest: expected sha-256=:BASE64:", headers=_CLOSE)
            if parsed[1] in _ALGORITHMS:
                try:
                    found[_ALGORITHMS[parsed[1]]] = base64.b64decode(parsed[2], validate=True)
                except (binascii.Error, ValueError):
                    raise Problem("bad_request", "Content-Digest: the value is no base64", headers=_CLOSE) from None
    return found


async def verified(pieces: AsyncIterator[bytes], digests: dict[str, bytes], runtime: Runtime) -> AsyncIterator[bytes]:
    """Yield the pieces. Raise Problem at their end if they do not have these digests."""
    sums = {name: hashlib.new(name) for name in digests}
    async for piece in pieces:
        for one in sums.values():
            await runtime.run_sized("io", len(piece), one.update, piece)
        yield piece
    for name, one in sums.items():
        if one.digest() != digests[name]:
            raise Problem("invalid", "the bytes do not have the digest that Content-Digest names: send them again")


async def head_of(pieces: AsyncIterator[bytes], most: int) -> tuple[bytes, bool]:
    """Read up to `most` bytes and a bit. Return what was read, and whether it is all there is."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        if len(held) > most:
            return bytes(held), False
    return bytes(held), True


async def joined(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for piece in rest:
        yield piece


_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The first and the last byte that a Range header asks for. None: all, also for what is not understood. Raise
    Problem 416 if there is no such byte."""
    found = _RANGE.fullmatch(header.strip()) if header is not None else None
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        first, last = max(0, size - int(found[2])), size - 1
        is_there = int(found[2]) > 0 and size > 0
    else:
        first, last = int(found[1]), min(size - 1, int(found[2] or size))
        if found[2] and int(found[2]) < first:
            return None
        is_there = first < size
    if not is_there:
        raise Problem("range_not_satisfiable", f"there are {size} bytes", headers={"Content-Range": f"bytes */{size}"})
    return first, last
