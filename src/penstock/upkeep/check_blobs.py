"""Blobs against the ledger, both ways: what rows name must be there and whole, what no row names is garbage."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.artifacts.segments import digest
from penstock.blobs.base import BlobInfo, Blobs
from penstock.errors import PenstockError
from penstock.ledger import audit
from penstock.ledger.audit import Piece, Raw
from penstock.upkeep.report import Finding, Stores

T = TypeVar("T")
Answer = TypeVar("Answer")

TEMPORARY = ".tmp-"
READ = 4 << 20
SIDE_BY_SIDE = 8
_AGAIN = "delete the document, then submit the file again"
KEPT = 10_000
"""Blobs without a name that are looked at twice; more are only counted."""


async def raw_bytes(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    """Accepted is safe: size and hash of the raw bytes of every generation that is searchable or being built."""
    found: list[Finding] = []
    if before is not None:
        again = [finding.ids["generation"] for finding in before]
        for start in range(0, len(again), audit.PAGE):
            found += await _raw_page(
                stores, await stores.ledger.read(audit.raws_again, again[start : start + audit.PAGE])
            )
        return found
    last = 0
    while page := await stores.ledger.read(audit.raws, stores.owner, last):
        found += await _raw_page(stores, page)
        last = page[-1].generation
    return found


async def _raw_page(stores: Stores, page: Sequence[Raw]) -> list[Finding]:
    return [
        finding for finding in await _each(page, lambda raw: _raw_trouble(stores.blobs, raw)) if finding is not None
    ]


async def _raw_trouble(blobs: Blobs, raw: Raw) -> Finding | None:
    ids = {"document_id": raw.document, "generation": raw.generation, "key": raw.key}
    hashed, size = hashlib.sha256(), 0
    try:
        while piece := await blobs.read_range(raw.key, size, READ):
            hashed.update(piece)
            size += len(piece)
    except FileNotFoundError:
        return Finding("raw_missing", f"the raw bytes of {raw.name!r} are gone: {_AGAIN}", ids)
    except (OSError, PenstockError) as error:
        return Finding("raw_broken", f"the raw bytes of {raw.name!r} cannot be read ({error}): {_AGAIN}", ids)
    if size == raw.size and hashed.hexdigest() == raw.sha256:
        return None
    why = f"{size} bytes instead of {raw.size}" if size != raw.size else "other bytes than were accepted"
    return Finding("raw_broken", f"the raw bytes of {raw.name!r} are damaged ({why}): {_AGAIN}", ids)


async def segments(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    """Done is kept: size and hash of every segment that a searchable or building generation needs."""
    broken: list[Piece] = []
    if before is not None:
        again = [(finding.ids["artifact"], finding.ids["segment"]) for finding in before]
        for start in range(0, len(again), audit.PAGE):
            page = await stores.ledger.read(audit.pieces_again, again[start : start + audit.PAGE])
            broken += await _broken(stores, page)
    else:
        last = (0, -1)
        while page := await stores.ledger.read(audit.pieces, stores.owner, last):
            broken += await _broken(stores, page)
            last = (page[-1].artifact, page[-1].ordinal)
    return [await _segment_finding(stores, piece) for piece in broken]


async def _broken(stores: Stores, page: Sequence[Piece]) -> list[Piece]:
    whole = await _each(page, lambda piece: read_piece(stores.blobs, piece))
    return [piece for piece, data in zip(page, whole, strict=True) if data is None]


async def read_piece(blobs: Blobs, piece: Piece) -> bytes | None:
    """A segment's bytes, if they are those that its row names."""
    try:
        data = await blobs.get(piece.key)
    except (OSError, PenstockError):
        return None
    return data if len(data) == piece.size and digest(data) == piece.sha256 else None


async def _segment_finding(stores: Stores, piece: Piece) -> Finding:
    user = await stores.ledger.read(audit.user_of, piece.artifact)
    document, name = user or ("", "a document")
    what = f"segment {piece.ordinal} of what {piece.kind} made of {name!r} is missing or damaged"
    ids = {"document_id": document, "artifact": piece.artifact, "segment": piece.ordinal, "key": piece.key}
    return Finding("segment_broken", what, ids)


async def orphans(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    """Blobs that no row names: left by a kill between a blob and its row, or waiting for prune."""
    if before is not None:
        return await _orphans_again(stores, before)
    found: list[Finding] = []
    more: dict[str, int] = {}
    async for infos in batches(stores.blobs, stores.owner):
        for info in await unnamed(stores, infos):
            finding = _orphan(info)
            if len(found) < KEPT:
                found.append(finding)
            else:
                more[finding.kind] = more.get(finding.kind, 0) + 1
    return found + [Finding(kind, "", {}, problem=False, count=count) for kind, count in more.items()]


async def _orphans_again(stores: Stores, before: list[Finding]) -> list[Finding]:
    still: list[Finding] = [finding for finding in before if not finding.ids]
    listed = [finding for finding in before if finding.ids]
    for start in range(0, len(listed), audit.PAGE):
        page = listed[start : start + audit.PAGE]
        named = await stores.ledger.read(audit.named, [finding.ids["key"] for finding in page])
        there = await _each(page, lambda finding: _exists(stores.blobs, finding.ids["key"]))
        still += [f for f, exists in zip(page, there, strict=True) if exists and f.ids["key"] not in named]
    return still


async def batches(blobs: Blobs, prefix: str) -> AsyncIterator[list[BlobInfo]]:
    batch: list[BlobInfo] = []
    async for info in blobs.list(prefix):
        batch.append(info)
        if len(batch) == audit.PAGE:
            yield batch
            batch = []
    if batch:
        yield batch


async def unnamed(stores: Stores, infos: Sequence[BlobInfo]) -> list[BlobInfo]:
    """Those that no row names. The rows are read after the listing: what was named meanwhile is named."""
    named = await stores.ledger.read(audit.named, [info.key for info in infos])
    return [info for info in infos if info.key not in named]


def _orphan(info: BlobInfo) -> Finding:
    ids = {"key": info.key, "size": info.size}
    if TEMPORARY in info.key.rpartition("/")[2]:
        return Finding("temporary", f"a file that was never finished: {info.key}", ids, problem=False)
    return Finding("orphan_blob", f"no row names this blob: {info.key}", ids, problem=False)


async def _exists(blobs: Blobs, key: str) -> bool:
    try:
        await blobs.read_range(key, 0, 1)
    except OSError:
        return False
    return True


async def _each(page: Sequence[T], ask: Callable[[T], Awaitable[Answer]]) -> list[Answer]:
    """A few at a time: the memory of a check does not grow with what it reads."""
    answers: list[Answer] = []
    for start in range(0, len(page), SIDE_BY_SIDE):
        answers += await asyncio.gather(*(ask(one) for one in page[start : start + SIDE_BY_SIDE]))
    return answers
