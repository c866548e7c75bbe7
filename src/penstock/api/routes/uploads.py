"""Uploads: a raw body, files in a form, text, or a URL to fetch."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.api.answers import answer
from penstock.api.bodies import Gone, arriving, content_length, expected_digests, head_of, verified
from penstock.api.callers import Access, Ingests
from penstock.api.custom_code import refuse_methods
from penstock.api.fields import Collection, DefinitionId, Priority, Text, in_query
from penstock.api.fields import Named as NamedText
from penstock.api.multipart_files import MOST_FILES, Part, boundary_of, parts
from penstock.api.problems import Problem, problem_of
from penstock.api.uploading import admit, refused, shown, status_of, take
from penstock.verbs.accepting import SMALL, Named, Order, accept_stream, checked, named

router = APIRouter(prefix="/documents", tags=["uploads"])

LARGEST_JSON = 16 << 20
LARGEST_METADATA = 64 << 10
PENDING_BYTES = 16 << 20
"""Bytes of small files of one form that wait in memory to be accepted."""

RECEIPT_EXAMPLE = {
    "id": "01M7GZQJXCK1BXB2ZYP1YTP0G8",
    "source": "notes/turbine.txt",
    "name": "turbine.txt",
    "outcome": "created",
    "status": "PENDING",
    "size": 65,
    "problem": None,
}


# Not a plain function: FastAPI would run it in a thread.
async def _order(
    access: Ingests,
    collection: Annotated[Collection | None, Query(description="The collection. Default: the configured one.")] = None,
    workflow: Annotated[DefinitionId | None, Query(description="The workflow, by id.")] = None,
    params: Annotated[DefinitionId | None, Query(description="The parameter set, by id.")] = None,
    priority: Annotated[Priority, Query()] = 0,
    batch: Annotated[Text | None, Query(description="A name for documents submitted together.")] = None,
    retry: Annotated[bool, Query(description="Try a failed document again although it is unchanged.")] = False,
    hold: Annotated[bool, Query(description="Accept the document, and wait until it is started.")] = False,
) -> Order:
    refuse_methods(access, workflow)
    return checked(access.scope, Order(access.collection(collection), workflow, params, priority, batch, retry, hold))


Ordered = Annotated[Order, Depends(_order)]


class JsonUpload(BaseModel):
    """A text, or the address of a document to fetch: exactly one of both."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "oneOf": [
                {
                    "required": ["text"],
                    "properties": {"text": {"type": "string"}, "url": {"type": "null"}},
                    "anyOf": [
                        {"required": ["name"], "properties": {"name": {"type": "string"}}},
                        {"required": ["source"], "properties": {"source": {"type": "string"}}},
                    ],
                },
                {
                    "required": ["url"],
                    "properties": {
                        "url": {"type": "string"},
                        **{name: {"type": "null"} for name in ("text", "name", "source")},
                    },
                },
            ]
        },
    )

    text: str | None = None
    url: str | None = Field(default=None, max_length=2_000, pattern="^[hH][tT][tT][pP][sS]?://")
    name: NamedText | None = None
    source: NamedText | None = None
    metadata: dict[str, Any] = {}


@router.put(
    "",
    operation_id="put_document",
    response_class=Response,
    responses={
        200: {"description": "The document was known.", "content": {"application/json": {"example": RECEIPT_EXAMPLE}}},
        201: {"description": "A new document.", "content": {"application/json": {"example": RECEIPT_EXAMPLE}}},
    },
    openapi_extra={
        "requestBody": {
            # A document may be empty.
            "required": False,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_document(
    request: Request,
    access: Ingests,
    order: Ordered,
    source: Annotated[
        NamedText, Query(description="The source URI, which identifies the document.", examples=["notes/a.txt"])
    ],
    name: Annotated[NamedText | None, Query(description="The file name. Default: the end of the source URI.")] = None,
    metadata: Annotated[
        str | None,
        Query(
            description="A JSON object.", max_length=LARGEST_METADATA, json_schema_extra=in_query({"type": "object"})
        ),
    ] = None,
) -> Response:
    """Store the body as the document with this source URI. When this answers, the document survives a power failure.
    Repeating the request is safe. `Content-Digest` is checked."""
    one = named(source, name, _object(metadata))
    limits, size = access.scope.config.limits, content_length(request, access.scope.config.limits)
    digests = expected_digests(request)
    await admit(access, one, order.collection, size)
    with access.service.uploads.upload(access.owner, SMALL if size is None else size):
        pieces = arriving(request, access.service.settings, access.service.runtime, limits)
        receipt = await take(
            access, order, one, verified(pieces, digests, access.service.runtime) if digests else pieces
        )
    if receipt.id is None:
        raise refused(receipt)
    return answer(shown(receipt), status_of(receipt), {"Location": f"/api/v1/documents/{receipt.id}"})


@router.post(
    "",
    operation_id="post_documents",
    response_class=Response,
    responses={
        200: {
            "description": "The receipts, in the order of the files.",
            "content": {"application/json": {"example": {"receipts": [RECEIPT_EXAMPLE]}}},
        }
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": JsonUpload.model_json_schema(),
                    "example": {"text": "The turbine runs at 375 revolutions.", "name": "turbine.txt"},
                },
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "metadata": {"type": "string", "description": "JSON: source, name, metadata of the next"},
                            "file": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        },
                    }
                },
            },
        }
    },
)
async def post_documents(request: Request, access: Ingests, order: Ordered) -> Response:
    """Submit files of a form (up to 1,000), a text, or the address of a document to fetch. There is one receipt for
    each; a file that is refused does not affect the others."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("multipart/form-data", "application/json"):
        raise Problem("unsupported_type", "send multipart/form-data or application/json; PUT takes any other body")
    size = content_length(request, access.scope.config.limits)
    await admit(access)
    with access.service.uploads.upload(access.owner, SMALL if size is None else size):
        if kind == "application/json":
            receipts = [await _json(request, access, order)]
        else:
            receipts = await _form(request, access, order)
    return answer({"receipts": receipts})


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Problem("invalid", "metadata: this is no JSON") from None
    if not isinstance(value, dict):
        raise Problem("invalid", "metadata: expected a JSON object")
    return value


async def _json(request: Request, access: Access, order: Order) -> dict[str, object]:
    pieces = arriving(request, access.service.settings, access.service.runtime, access.scope.config.limits)
    body, whole = await head_of(pieces, LARGEST_JSON)
    if not whole:
        raise Problem("too_large", "a JSON upload has at most 16 MB: use PUT for larger documents")
    try:
        asked = JsonUpload.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)[:20]
        code = "bad_request" if found[0]["type"] == "json_invalid" else "invalid"
        raise Problem(code, "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found)) from None
    if (asked.text is None) == (asked.url is None):
        raise Problem("invalid", "send either text or url")
    if asked.text is not None:
        one = named(asked.source, asked.name, asked.metadata)
        try:
            data = asked.text.encode()
        except UnicodeError:
            raise Problem("invalid", "text: it must not contain lone surrogates") from None
        return shown(await take(access, order, one, _whole(data)))
    return await _fetched(access, order, asked)


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _fetched(access: Access, order: Order, asked: JsonUpload) -> dict[str, object]:
    """Fetch a document by HTTP. Other addresses would be read with the rights of the server."""
    url = asked.url or ""
    if not url.lower().startswith(("http://", "https://")):
        raise Problem("invalid", "url: use http:// or https://")
    if asked.name is not None or asked.source is not None:
        raise Problem("invalid", "a document that is fetched has the name and the source of its address")
    options: dict[str, Any] = {
        "collection": order.collection,
        "workflow": order.workflow,
        "params": order.params,
        "priority": order.priority,
        "batch": order.batch,
        "retry": order.retry,
        "hold": order.hold,
    }
    receipts = [receipt async for receipt in access.scope.submit([url], metadata=asked.metadata, **options)]
    if not receipts:
        raise Problem("conflict", "the document was deleted with `forget`: it does not come back by its address")
    return shown(receipts[-1])


async def _form(request: Request, access: Access, order: Order) -> list[dict[str, object]]:
    boundary = boundary_of(request.headers["content-type"])
    form = _Form(access, order)
    pieces = arriving(request, access.service.settings, access.service.runtime, access.scope.config.limits)
    try:
        async for part in parts(pieces, boundary):
            await form.take(part)
    except Problem as problem:
        await form.settle()
        if not isinstance(problem, Gone):
            problem.members["receipts"] = form.receipts
        raise
    finally:
        await form.settle()
    if form.described is not None:
        raise Problem("bad_request", "a metadata part must come before its file", receipts=form.receipts)
    return form.receipts


class _Form:
    """The receipts of a form so far, and the small files that are being accepted."""

    def __init__(self, access: Access, order: Order) -> None:
        self._access = access
        self._order = order
        self.receipts: list[dict[str, object]] = []
        self.described: dict[str, Any] | None = None
        """The metadata part before the next file."""
        self._pending: dict[str, tuple[int, asyncio.Task[dict[str, object]]]] = {}
        self._bytes = 0

    async def take(self, part: Part) -> None:
        if part.filename is None:
            await self._describe(part)
            return
        if len(self.receipts) >= MOST_FILES:
            raise Problem("too_large", f"a form has at most {MOST_FILES:,} files")
        described, self.described = self.described or {}, None
        place = len(self.receipts)
        self.receipts.append({"source": described.get("source", part.filename), "outcome": "refused"})
        try:
            one = named(described.get("source"), described.get("name", part.filename), described.get("metadata"))
        except Exception as error:
            self._refuse(place, error)
            return
        await self._accept(place, one, part)

    async def _describe(self, part: Part) -> None:
        text, whole = await head_of(part.body(), LARGEST_METADATA)
        if part.name != "metadata":
            raise Problem("invalid", f"the field {part.name[:100]!r} is not known: use metadata, and files")
        if not whole:
            raise Problem("too_large", "a metadata part has at most 64 KB")
        described = _object(text.decode("utf-8", "replace"))
        if odd := set(described) - {"source", "name", "metadata"}:
            raise Problem("invalid", f"metadata: {sorted(odd)[0][:100]!r} is not known: use source, name and metadata")
        self.described = described

    async def _accept(self, place: int, one: Named, part: Part) -> None:
        if one.source in self._pending or len(self._pending) >= 256 or self._bytes > PENDING_BYTES:
            await self.settle()
        body = part.body()
        head, is_all = await head_of(body, SMALL)
        if is_all:
            gathered = self._access.service.gatherer.accept(self._access.scope, self._order, one, head)
            task = asyncio.create_task(self._one(place, gathered))
            self._pending[one.source] = (place, task)
            self._bytes += len(head)
            return

        async def rest() -> AsyncIterator[bytes]:
            yield head
            async for piece in body:
                yield piece

        await self._one(place, accept_stream(self._access.scope, self._order, one, rest()))

    async def _one(self, place: int, accepting: Any) -> dict[str, object]:
        try:
            self.receipts[place] = shown(await accepting)
        except Gone:
            raise
        except Exception as error:
            self._refuse(place, error)
        return self.receipts[place]

    def _refuse(self, place: int, error: Exception) -> None:
        problem = problem_of(error)
        if problem.code in ("too_slow", "bad_request", "internal"):
            # The rest of the body cannot be read, or nobody knows what happened.
            raise error
        self.receipts[place].update(outcome="refused", problem=problem.detail)

    async def settle(self) -> None:
        """Wait until the small files so far are accepted."""
        tasks = [task for _, task in self._pending.values()]
        self._pending.clear()
        self._bytes = 0
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException):
                raise error
