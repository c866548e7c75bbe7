"""Resumable uploads by the tus protocol, version 1.0.0 (https://tus.io/protocols/resumable-upload)."""

import base64
import binascii
import json
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer, problems
from penstock.api.bodies import arriving, content_length
from penstock.api.callers import Access, Ingests
from penstock.api.custom_code import refuse_methods
from penstock.api.fields import DefinitionId, is_definition_id
from penstock.api.problems import Problem, not_found
from penstock.api.uploading import admit, refused, shown
from penstock.errors import ChecksumDiffers, LeaseLost, LockHeld, TooMuch, WrongOffset
from penstock.verbs.accepting import Order, checked, named
from penstock.verbs.presigned import MOST_PARTS, SignedUpload
from penstock.verbs.uploads import CHECKSUMS, UploadView

router = APIRouter(prefix="/uploads", tags=["resumable uploads"])

VERSION = {"Tus-Resumable": "1.0.0"}
EXTENSIONS = "creation,creation-with-upload,checksum,expiration,termination"
BYTES = "application/offset+octet-stream"
LONGEST_METADATA = 16 << 10
NUMBER = "^[0-9]{1,18}$"
KNOWN = ("filename", "name", "filetype", "type", "relativePath", "source", "collection", "metadata", "batch",
         "workflow", "params", "hold", "priority")  # fmt: skip
_TUS_HEADER = {
    "name": "Tus-Resumable", "in": "header", "required": True,
    "schema": {"type": "string", "enum": ["1.0.0"]}, "example": "1.0.0",
}  # fmt: skip


def _header(name: str, example: str, pattern: str = NUMBER, required: bool = True) -> dict[str, Any]:
    schema = {"type": "string", **({"pattern": pattern} if pattern else {})}
    return {"name": name, "in": "header", "required": required, "schema": schema, "example": example}


_CONTENT = {BYTES: {"schema": {"type": "string", "format": "binary"}}}
_BODY = {"requestBody": {"required": True, "content": _CONTENT}}
_MAYBE_BODY = {"requestBody": {"required": False, "content": _CONTENT}}
_PROBLEMS = problems(412, 423, 460)
_WITH_VERSION: dict[str, Any] = {"responses": _PROBLEMS, "openapi_extra": {"parameters": [_TUS_HEADER]}}


@router.options("", operation_id="upload_options", status_code=204, response_class=Response)
@router.options("/{upload_id}", include_in_schema=False)
async def upload_options(request: Request) -> Response:
    """Say what the server supports."""
    most = request.app.state.service.app.config.limits.megabytes << 20
    said = {
        "Tus-Version": "1.0.0",
        "Tus-Extension": EXTENSIONS,
        "Tus-Max-Size": str(most),
        "Tus-Checksum-Algorithm": ",".join(CHECKSUMS),
    }
    return Response(None, 204, VERSION | said)


@router.post(
    "",
    operation_id="create_upload",
    status_code=201,
    response_class=Response,
    responses=_PROBLEMS,
    openapi_extra={
        "parameters": [
            _TUS_HEADER,
            _header("Upload-Length", "65"),
            _header("Upload-Metadata", "filename dHVyYmluZS50eHQ=", "", required=False),
        ],
        **_MAYBE_BODY,
    },
)
async def create_upload(request: Request, access: Ingests) -> Response:
    """Begin an upload. The answer's `Location` takes the bytes. They may be in this request already."""
    _check_version(request)
    if request.headers.get("upload-defer-length") is not None:
        raise Problem("bad_request", "Upload-Defer-Length is not supported: send Upload-Length", headers=VERSION)
    size, limits = _number(request, "upload-length"), access.scope.config.limits
    if size > limits.megabytes << 20:
        raise Problem(
            "too_large", f"a document has at most {limits.megabytes:,} MB (limits.megabytes)", headers=VERSION
        )
    access.service.uploads.check_disk(size)
    text = request.headers.get("upload-metadata", "")
    given = _metadata(text)
    path = given.get("source") or given.get("relativePath")
    name = (given.get("filename") or given.get("name") or path or "upload").replace("\\", "/").rpartition("/")[2]
    one = named(path or name or "upload", name or "upload", _object(given.get("metadata")))
    order = Order(
        access.collection(given.get("collection")), given.get("workflow"), given.get("params"),
        _priority(given.get("priority")), given.get("batch"), False, _flag("hold", given.get("hold")),
    )  # fmt: skip
    if not all(is_definition_id(name) for name in (order.workflow, order.params) if name is not None):
        raise Problem("invalid", "name a workflow or a parameter set by its id", headers=VERSION)
    refuse_methods(access, order.workflow)
    checked(access.scope, order)
    await admit(access, one, order.collection, size)
    try:
        made = await access.scope.create_upload(
            size, name=one.name, source=one.source, collection=order.collection, metadata=dict(one.metadata),
            workflow=order.workflow, params=order.params, priority=order.priority, batch=order.batch, hold=order.hold,
            client={"Upload-Metadata": text},
        )  # fmt: skip
    except TooMuch as error:
        raise Problem("rate_limited", str(error), headers=VERSION | {"Retry-After": "60"}) from None
    if request.headers.get("content-type", "") == BYTES and size:
        made = await _append(request, access, made.id, 0)
    return Response(None, 201, _headers(made) | {"Location": f"{request.url.path.rstrip('/')}/{made.id}"})


class NewPresigned(BaseModel):
    """What will be sent straight into the bucket."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"name": "film.mp4", "size": 40_000_000, "source": "films/film.mp4"}},
    )

    name: str
    size: int = Field(ge=1)
    part_size: int | None = None
    source: str | None = None
    collection: str | None = None
    metadata: dict[str, Any] = {}
    workflow: DefinitionId | None = None
    params: DefinitionId | None = None
    batch: str | None = None
    hold: bool = False
    sha256: str | None = None


class SentPart(BaseModel):
    """A part that the bucket has taken."""

    model_config = ConfigDict(extra="forbid")

    number: int
    etag: str = Field(max_length=200)


class Completion(BaseModel):
    """All parts, with the header `ETag` of the bucket's answers."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"parts": [{"number": 1, "etag": '"9b2cf535f27731c974343645a3985328"'}]}},
    )

    parts: list[SentPart] = Field(max_length=MOST_PARTS)


@router.post(
    "/presign", operation_id="presign_upload", status_code=201, response_class=Response, responses=problems(501)
)
async def presign_upload(request: Request, access: Ingests, asked: NewPresigned) -> Response:
    """Begin an upload straight into the bucket, where blobs are in `s3://`. Send each part to its URL by PUT, then
    complete the upload."""
    limits = access.scope.config.limits
    if asked.size > limits.megabytes << 20:
        raise Problem("too_large", f"a document has at most {limits.megabytes:,} MB (limits.megabytes)")
    one = named(asked.source, asked.name, asked.metadata)
    order = Order(access.collection(asked.collection), asked.workflow, asked.params, 0, asked.batch, hold=asked.hold)
    checked(access.scope, order)
    await admit(access, one, order.collection, asked.size)
    try:
        made = await access.scope.presign_upload(
            asked.size, name=one.name, part_size=asked.part_size, source=one.source, collection=order.collection,
            metadata=dict(one.metadata), workflow=order.workflow, params=order.params, batch=order.batch,
            hold=order.hold, sha256=asked.sha256,
        )  # fmt: skip
    except TooMuch as error:
        raise Problem("rate_limited", str(error), headers={"Retry-After": "60"}) from None
    return _signed(made, 201, {"Location": f"{request.url.path.removesuffix('/presign')}/{made.upload.id}"})


def _signed(made: SignedUpload, status: int, headers: dict[str, str]) -> Response:
    # The URLs are secrets: they let anybody write.
    return answer(
        {
            "id": made.upload.id,
            "part_size": made.part_size,
            "parts": made.parts,
            "urls_expire_at": formatdate(made.urls_expire_at, usegmt=True),
            "expires_at": formatdate(made.upload.expires_at, usegmt=True),
        },
        status,
        headers | {"Cache-Control": "no-store"},
    )


@router.post(
    "/{upload_id}/presign", operation_id="presign_upload_again", response_class=Response, responses=problems(501)
)
async def presign_upload_again(access: Ingests, upload_id: str) -> Response:
    """Sign the parts of an upload again, for example because the URLs have expired."""
    await _found(access, upload_id)
    return _signed(await access.scope.presign_again(upload_id), 200, {})


@router.post("/{upload_id}/complete", operation_id="complete_upload", response_class=Response)
async def complete_upload(access: Ingests, upload_id: str, asked: Completion) -> Response:
    """Let the bucket make one object of the parts, and accept the document. When this answers, it is durable. Repeating
    the request is safe."""
    await _found(access, upload_id)
    etags = {part.number: part.etag for part in asked.parts}
    if len(etags) != len(asked.parts):
        raise Problem("invalid", "parts: a number is there twice")
    try:
        done = await access.scope.complete_upload(upload_id, etags)
    except (LockHeld, LeaseLost) as error:
        raise Problem("locked", str(error), headers={"Retry-After": "2"}) from None
    if done.state == "REFUSED" and done.receipt is not None:
        raise refused(done.receipt)
    return _shown(done)


@router.head(
    "/{upload_id}",
    operation_id="look_at_upload",
    response_class=Response,
    responses=_PROBLEMS,
    openapi_extra={"parameters": [_TUS_HEADER]},
)
async def look_at_upload(request: Request, access: Ingests, upload_id: str) -> Response:
    """Say how many bytes are durable. `Penstock-Document` is the id of the document, once it is accepted."""
    _check_version(request)
    found = await _found(access, upload_id)
    echoed = {name: value for name, value in found.request.client.items() if value}
    return Response(
        None, 200, _headers(found) | echoed | {"Cache-Control": "no-store", "Upload-Length": str(found.size)}
    )


@router.get("/{upload_id}", operation_id="get_upload", response_class=Response)
async def get_upload(access: Ingests, upload_id: str) -> Response:
    """Return an upload with the receipt of its document."""
    return _shown(await _found(access, upload_id))


def _shown(found: UploadView) -> Response:
    return answer(
        {
            "id": found.id,
            "state": found.state,
            "size": found.size,
            "received": found.received,
            "name": found.request.name,
            "source": found.request.source,
            "collection": found.request.collection,
            "document": found.document,
            "receipt": None if found.receipt is None else shown(found.receipt),
        }
    )


@router.patch(
    "/{upload_id}",
    operation_id="append_upload",
    status_code=204,
    response_class=Response,
    responses=_PROBLEMS,
    openapi_extra={"parameters": [_TUS_HEADER, _header("Upload-Offset", "0")], **_BODY},
)
async def append_upload(request: Request, access: Ingests, upload_id: str) -> Response:
    """Add bytes at `Upload-Offset`. What was received is kept if the connection is cut. The last byte brings the
    document: `Penstock-Document` is its id."""
    _check_version(request)
    if request.headers.get("content-type", "") != BYTES:
        raise Problem("unsupported_type", f"send Content-Type: {BYTES}", headers=VERSION)
    offset = _number(request, "upload-offset")
    await _found(access, upload_id)
    found = await _append(request, access, upload_id, offset)
    if found.state == "REFUSED" and found.receipt is not None:
        raise refused(found.receipt)
    return Response(None, 204, _headers(found))


@router.delete(
    "/{upload_id}",
    operation_id="delete_upload",
    status_code=204,
    response_class=Response,
    responses=_PROBLEMS,
    openapi_extra={"parameters": [_TUS_HEADER]},
)
async def delete_upload(request: Request, access: Ingests, upload_id: str) -> Response:
    """End an upload, and remove its bytes. A document that it became stays."""
    _check_version(request)
    await _found(access, upload_id)
    try:
        await access.scope.delete_upload(upload_id)
    except LockHeld as error:
        raise _locked(error) from None
    return Response(None, 204, VERSION)


async def _found(access: Access, upload_id: str) -> UploadView:
    found = await access.scope.upload(upload_id)
    if not access.may_use(found.request.collection):
        raise not_found("upload", upload_id)
    return found


async def _append(request: Request, access: Access, upload_id: str, offset: int) -> UploadView:
    limits = access.scope.config.limits
    size, checksum = content_length(request, limits), _checksum(request)
    await admit(access)
    with access.service.uploads.upload(access.owner, size or 0):
        pieces: AsyncIterator[bytes] = arriving(request, access.service.settings, access.service.runtime, limits)
        try:
            return await access.scope.append_upload(upload_id, offset, pieces, checksum=checksum)
        except (LockHeld, LeaseLost) as error:
            raise _locked(error) from None
        except WrongOffset as error:
            raise Problem("conflict", str(error), headers=VERSION | {"Connection": "close"}) from None
        except ChecksumDiffers as error:
            raise Problem("checksum_differs", str(error), headers=VERSION) from None


def _locked(error: Exception) -> Problem:
    # The body of the request was not read.
    return Problem("locked", str(error), headers=VERSION | {"Retry-After": "2", "Connection": "close"})


def _headers(found: UploadView) -> dict[str, str]:
    headers = VERSION | {
        "Upload-Offset": str(found.received),
        "Upload-Expires": formatdate(found.expires_at, usegmt=True),
    }
    return headers if found.document is None else headers | {"Penstock-Document": found.document}


def _check_version(request: Request) -> None:
    if request.headers.get("tus-resumable") != "1.0.0":
        raise Problem("precondition_failed", "send Tus-Resumable: 1.0.0", headers=VERSION | {"Tus-Version": "1.0.0"})


def _number(request: Request, name: str) -> int:
    given = request.headers.get(name, "")
    if not (given.isascii() and given.isdigit() and len(given) <= 18):
        raise Problem("bad_request", f"{name}: expected a number", headers=VERSION)
    return int(given)


def _checksum(request: Request) -> tuple[str, bytes] | None:
    given = request.headers.get("upload-checksum")
    if given is None:
        return None
    algorithm, _, value = given.partition(" ")
    if algorithm not in CHECKSUMS:
        raise Problem("bad_request", f"Upload-Checksum: use one of {', '.join(CHECKSUMS)}", headers=VERSION)
    return algorithm, _decoded("Upload-Checksum", value)


def _metadata(text: str) -> dict[str, str]:
    """The header `Upload-Metadata`: names with values in base64. It is the text of a stranger."""
    if len(text) > LONGEST_METADATA:
        raise Problem("too_large", "Upload-Metadata has at most 16 KB", headers=VERSION)
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = pair.partition(" ")
        if name in found:
            raise Problem("bad_request", f"Upload-Metadata: {name[:40]!r} is there twice", headers=VERSION)
        if name not in KNOWN:
            # Clients add names of their own. They come back with HEAD, and mean nothing.
            continue
        found[name] = _decoded(f"Upload-Metadata, {name[:40]}", value.strip()).decode("utf-8", "replace")
    return found


def _flag(name: str, given: str | None) -> bool:
    if given not in (None, "true", "false"):
        raise Problem("invalid", f"{name}: use true or false", headers=VERSION)
    return given == "true"


def _priority(given: str | None) -> int:
    try:
        return int((given or "0")[:20])
    except ValueError:
        raise Problem("invalid", "priority: expected a number", headers=VERSION) from None


def _decoded(what: str, value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise Problem("bad_request", f"{what}: the value is no base64", headers=VERSION) from None


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Problem("invalid", "metadata: this is no JSON", headers=VERSION) from None
    if not isinstance(value, dict):
        raise Problem("invalid", "metadata: expected a JSON object", headers=VERSION)
    return value
