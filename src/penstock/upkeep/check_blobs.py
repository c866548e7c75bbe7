"""Compare blobs with the ledger: blobs that rows name must exist and be intact; unreferenced blobs are garbage."""

from collections.abc import AsyncIterator, Sequence

from penstock.artifacts.segments import digest
from penstock.blobs.base import BlobInfo, Blobs, BlobSum, Unread
from penstock.errors import BlobMissing
from penstock.ledger.upkeep import audit
from penstock.ledger.upkeep.audit import Piece, Raw
from penstock.upkeep.report import Finding, Stores

TEMPORARY = ".tmp-"
_AGAIN = "delete the document, then submit the file again"
KEPT = 10_000
"""Number of unreferenced blobs that are checked twice; further ones are only counted."""


async def raw_bytes(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    """Check size and hash of the raw bytes of every generation that is active or being built."""
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
    sums = await _sums(stores, [raw.key for raw in page])
    found = [_raw_trouble(raw, seen) for raw, seen in zip(page, sums, strict=True)]
    return [finding for finding in found if finding is not None]


def _raw_trouble(raw: Raw, seen: BlobSum | Unread) -> Finding | None:
    ids = {"document_id": raw.document, "generation": raw.generation, "key": raw.key}
    if isinstance(seen, BlobMissing):
        return Finding("raw_missing", f"the raw bytes of {raw.name!r} are missing: {_AGAIN}", ids)
    if isinstance(seen, Unread):
        return Finding("raw_broken", f"the raw bytes of {raw.name!r} cannot be read ({seen}): {_AGAIN}", ids)
    if _is_same(seen, raw.size, raw.sha256):
        return None
    why = f"{seen.size} bytes instead of {raw.size}" if seen.size != raw.size else "not the bytes that were accepted"
    return Finding("raw_broken", f"the raw bytes of {raw.name!r} are damaged ({why}): {_AGAIN}", ids)


async def _sums(stores: Stores, keys: Sequence[str]) -> list[BlobSum | Unread]:
    """Sizes of all blobs, and hashes of those in the sample."""
    read = [stores.is_sampled() for _ in keys]
    stores.progress(len(keys))
    sampled = iter(await stores.blobs.sums([key for key, yes in zip(keys, read, strict=True) if yes]))
    unread = [key for key, yes in zip(keys, read, strict=True) if not yes]
    others = iter(await stores.blobs.sums(unread, content=False) if unread else [])
    return [next(sampled) if yes else next(others) for yes in read]


def _is_same(seen: BlobSum, size: int, sha256: str) -> bool:
    return seen.size == size and seen.sha256 in (None, sha256)


async def segments(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    """Check size and hash of every segment that an active or building generation needs."""
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
    sums = await _sums(stores, [piece.key for piece in page])
    return [
        piece
        for piece, seen in zip(page, sums, strict=True)
        if isinstance(seen, Unread) or not _is_same(seen, piece.size, piece.sha256)
    ]


async def bought_answers(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    """Check size and hash of the answers that were bought. One that is damaged would be bought again."""
    if before is not None:
        return await _bought_page(
            stores, await stores.ledger.read(audit.bought_again, [one.ids["key"] for one in before])
        )
    found: list[Finding] = []
    last = 0
    while page := await stores.ledger.read(audit.bought, stores.owner, last):
        found += await _bought_page(stores, page)
        last = page[-1].id
    return found


async def _bought_page(stores: Stores, page: Sequence[audit.BoughtSegment]) -> list[Finding]:
    sums = await _sums(stores, [one.key for one in page])
    return [
        Finding(
            "bought_broken",
            f"bought answers of {one.owner!r} are missing or damaged: they are bought again when they are needed",
            {"key": one.key},
            problem=False,
        )
        for one, seen in zip(page, sums, strict=True)
        if isinstance(seen, Unread) or not _is_same(seen, one.size, one.sha256)
    ]


async def read_pieces(blobs: Blobs, pieces: Sequence[Piece]) -> list[bytes | None]:
    """The bytes of segments; None for those that do not match their rows."""
    found = await blobs.get_many([piece.key for piece in pieces])
    return [
        data if isinstance(data, bytes) and len(data) == piece.size and digest(data) == piece.sha256 else None
        for piece, data in zip(pieces, found, strict=True)
    ]


async def _segment_finding(stores: Stores, piece: Piece) -> Finding:
    user = await stores.ledger.read(audit.user_of, piece.artifact)
    document, name = user or ("", "a document")
    what = f"segment {piece.ordinal} of the {piece.kind} artifact of {name!r} is missing or damaged"
    ids = {"document_id": document, "artifact": piece.artifact, "segment": piece.ordinal, "key": piece.key}
    return Finding("segment_broken", what, ids)


async def orphans(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    """Find blobs that no row names: left by a crash between a blob and its row, or waiting for prune."""
    if before is not None:
        return await _orphans_again(stores, before)
    found: list[Finding] = []
    more: dict[str, int] = {}
    async for infos in batches(stores.blobs, stores.owner):
        stores.progress(len(infos))
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
        there = await stores.blobs.sums([finding.ids["key"] for finding in page], content=False)
        exist = [not isinstance(seen, Unread) for seen in there]
        still += [f for f, exists in zip(page, exist, strict=True) if exists and f.ids["key"] not in named]
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
    """The blobs that no row names. The rows are read after the listing, so blobs named meanwhile are excluded."""
    named = await stores.ledger.read(audit.named, [info.key for info in infos])
    return [info for info in infos if info.key not in named]


def _orphan(info: BlobInfo) -> Finding:
    ids = {"key": info.key, "size": info.size}
    if TEMPORARY in info.key.rpartition("/")[2]:
        return Finding("temporary", f"unfinished temporary file: {info.key}", ids, problem=False)
    return Finding("orphan_blob", f"no row names this blob: {info.key}", ids, problem=False)
