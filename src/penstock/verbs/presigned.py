"""Uploads straight into the bucket: the client sends the parts with signed URLs, and the document is accepted when the
bucket has made one object of them.

The object becomes the raw bytes of the document; it is read once, for its hash. A process that dies after the bucket
has made the object leaves an upload that can be completed again, or is whole already."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from penstock.blobs.base import SENT, Parts, PartSum, parts_of
from penstock.errors import BlobMissing, NotFound, NotSupported, UsageError
from penstock.intake import raw_key
from penstock.intake_items import Receipt
from penstock.ledger.engine import uploads as rows
from penstock.ledger.engine.uploads import OPEN, Upload
from penstock.verbs import arguments, uploads
from penstock.verbs.scope import Scope
from penstock.verbs.uploads import LIFE_S, MOST_BYTES, Hold, PlannedParts, Request, UploadView

PRESIGNED = "presigned"
LEAST_PART, LARGEST_PART = 5 << 20, 5 << 30
"""The sizes of parts that S3 allows; the last one may be smaller."""
NORMAL_PART = 16 << 20
MOST_PARTS = 10_000
EXPIRES_S = 3_600
"""How long a signed URL can be used."""


class SignedPart(msgspec.Struct, frozen=True):
    number: int
    size: int
    url: str
    """Takes the bytes by PUT. The header `ETag` of the answer is needed to complete the upload."""


class SignedUpload(msgspec.Struct, frozen=True):
    upload: UploadView
    part_size: int
    parts: list[SignedPart]
    urls_expire_at: float


async def presign_upload(
    scope: Scope,
    size: int,
    *,
    name: str,
    part_size: int | None = None,
    source: str | None = None,
    collection: str | None = None,
    metadata: dict[str, Any] | None = None,
    workflow: str | None = None,
    params: str | None = None,
    priority: int = 0,
    batch: str | None = None,
    hold: bool = False,
    sha256: str | None = None,
    most_bytes: int = MOST_BYTES,
) -> SignedUpload:
    """Begin an upload of `size` bytes straight into the bucket. Raises NotSupported if blobs are not in a bucket that
    can be signed for. `most_bytes` is as for `create_upload`."""
    parts = _parts(scope)
    request = uploads.request_of(
        scope, size, name, source, collection, metadata, workflow, params, priority, batch, hold, sha256
    )
    chosen = _part_size(size, part_size)
    key = raw_key(scope.owner, scope.runtime) + SENT
    # Prune aborts what is begun and gets no row, because the process died here.
    planned = PlannedParts(key, await parts.begin(key), chosen)
    request = msgspec.structs.replace(request, parts=planned)
    try:
        made = await uploads.begin(scope, PRESIGNED, scope.runtime.ulid(), size, request, most_bytes)
    except Exception:
        await parts.abort(key, planned.upload)
        raise
    return _signed(scope, parts, made, planned)


async def presign_again(scope: Scope, upload_id: str) -> SignedUpload:
    """Sign the parts of an upload again, for example because the URLs have expired."""
    found = await uploads.found_upload(scope, upload_id)
    planned = _planned(found)
    if found.state != OPEN or found.is_whole:
        raise UsageError(f"the upload {upload_id} is complete: nothing more can be sent")
    return _signed(scope, _parts(scope), found, planned)


async def complete_upload(scope: Scope, upload_id: str, etags: Mapping[int, str]) -> UploadView:
    """Let the bucket make one object of the parts, then accept it as a document. `etags`: what the bucket answered, by
    the number of the part. Repeating the call is safe, also after a process died in it. If the bytes are not those that
    were announced, the state of the upload is `REFUSED`."""
    _planned(await uploads.found_upload(scope, upload_id))
    async with uploads.held(scope, upload_id) as hold:
        if hold.upload.state == OPEN and not hold.upload.is_whole:
            refusal = await _join(scope, hold, _planned(hold.upload), etags)
            if refusal is not None:
                return uploads.view_of(await uploads.ended(scope, hold, refusal))
        if hold.upload.state == OPEN:
            return uploads.view_of(await uploads.accepted(scope, hold))
        return uploads.view_of(hold.upload)


async def _join(scope: Scope, hold: Hold, planned: PlannedParts, etags: Mapping[int, str]) -> Receipt | None:
    """Complete the upload in the bucket, and store that its bytes are there. Return a receipt if they are not those
    that were announced."""
    size, parts = hold.upload.size, _parts(scope)
    numbers = range(1, _count(size, planned.part_size) + 1)
    if set(etags) != set(numbers):
        raise UsageError(f"parts: send the ETag of each part from 1 to {len(numbers)}")
    given = [PartSum(number, arguments.text(f"the ETag of part {number}", etags[number])) for number in numbers]
    # Missing: completed by a process that died before it could say so, or aborted. The object tells.
    with suppress(BlobMissing):
        await parts.complete(planned.key, planned.upload, given)
    there = await scope.blobs.stat(planned.key)
    if there is None:
        raise NotFound(f"the bucket has nothing of the upload {hold.upload.id}: send its parts, or begin a new one")
    if there.size != size:
        request = msgspec.json.decode(hold.upload.request, type=Request)
        problem = f"{request.source}: the bucket has {there.size:,} bytes, and not the {size:,} that were announced"
        await scope.blobs.delete([planned.key])
        return Receipt(None, request.source, request.name, "refused", None, there.size, problem)
    added = rows.Added(
        scope.owner, hold.upload.id, hold.token, (rows.Part(0, size, planned.key),), uploads.LEASE_S, LIFE_S
    )
    hold.update(await scope.ledger.write(rows.ADD_PARTS, added))
    return None


def _signed(scope: Scope, parts: Parts, found: Upload, planned: PlannedParts) -> SignedUpload:
    count = _count(found.size, planned.part_size)
    urls = parts.sign(planned.key, planned.upload, range(1, count + 1), EXPIRES_S)
    signed = [
        SignedPart(number, min(planned.part_size, found.size - (number - 1) * planned.part_size), url)
        for number, url in enumerate(urls, 1)
    ]
    return SignedUpload(uploads.view_of(found), planned.part_size, signed, scope.runtime.now() + EXPIRES_S)


def _parts(scope: Scope) -> Parts:
    found = parts_of(scope.blobs)
    if found is None:
        raise NotSupported(
            "uploads straight into the bucket need blobs in s3://, with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in "
            "the environment of the server: send the bytes to the server instead"
        )
    return found


def _planned(found: Upload) -> PlannedParts:
    planned = msgspec.json.decode(found.request, type=Request).parts
    if planned is None:
        raise UsageError("the bytes of this upload do not go to the bucket: send them here")
    return planned


def _count(size: int, part_size: int) -> int:
    return -(-size // part_size)


def _part_size(size: int, wanted: int | None) -> int:
    if size == 0:
        raise UsageError("size: an empty file has no parts: send it to the server")
    if wanted is None:
        return max(NORMAL_PART, _count(size, MOST_PARTS // 10))
    arguments.number("part_size", wanted, LEAST_PART, LARGEST_PART)
    if _count(size, wanted) > MOST_PARTS:
        raise UsageError(
            f"part_size: there can be {MOST_PARTS:,} parts: use at least {_count(size, MOST_PARTS):,} bytes"
        )
    return wanted
