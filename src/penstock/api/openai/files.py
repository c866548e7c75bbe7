"""Files: held documents, which are durable at once and in no vector store yet."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from penstock.api.answers import answer
from penstock.api.bodies import arriving, content_length, head_of
from penstock.api.callers import Access, Ingests, Reads, Writes
from penstock.api.multipart_files import Part, boundary_of, parts
from penstock.api.openai import words
from penstock.api.openai.words import document_of, file_object, files_of, files_place
from penstock.api.problems import Problem, not_found
from penstock.api.routes.documents import get_raw
from penstock.api.uploading import admit, refused, take
from penstock.ledger.engine import vector_stores
from penstock.model.nouns import DocumentId, Owner
from penstock.runtime import shielded
from penstock.verbs.accepting import SMALL, Order, checked, named
from penstock.verbs.file_copies import PREFIX

router = APIRouter(tags=["OpenAI: files"])

PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
LARGEST_FIELD = 1 << 10
PAGE = 500
MOST = 10_000

FileId = Annotated[str, "The id of a file, `file-…`."]


@router.post(
    "/files",
    operation_id="openai_create_file",
    response_class=Response,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["file"],
                        "properties": {
                            "purpose": {"type": "string", "enum": list(PURPOSES), "example": "assistants"},
                            "file": {"type": "string", "format": "binary"},
                        },
                    }
                }
            },
        }
    },
)
async def create_file(request: Request, access: Ingests) -> Response:
    """Store a file. When this answers, it survives a power failure."""
    where, limits = files_place(access), access.scope.config.limits
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        raise Problem("unsupported_type", "send multipart/form-data with the fields purpose and file")
    size = content_length(request, limits)
    await admit(access)
    form = _Form(access, checked(access.scope, Order(where, hold=True)))
    with access.service.uploads.upload(access.owner, SMALL if size is None else size):
        pieces = arriving(request, access.service.settings, access.service.runtime, limits)
        try:
            await form.read(pieces, request.headers["content-type"])
        except BaseException:
            # Nobody knows the id of the file.
            await shielded(form.take_back())
            raise
    if form.document is None:
        raise Problem("invalid", "the form has no file: send it in the field 'file'")
    if form.is_late:
        await access.scope.set_metadata(form.document, {"purpose": form.purpose})
    return answer(file_object((await files_of(access, [form.document]))[form.document]))


class _Form:
    def __init__(self, access: Access, order: Order) -> None:
        self._access = access
        self._order = order
        self.purpose = "user_data"
        self.document: DocumentId | None = None
        self.is_late = False
        """The purpose came after the file."""

    async def read(self, pieces: AsyncIterator[bytes], content_type: str) -> None:
        async for part in parts(pieces, boundary_of(content_type)):
            if part.filename is None:
                await self._field(part)
            else:
                await self._file(part)

    async def _field(self, part: Part) -> None:
        text, is_whole = await head_of(part.body(), LARGEST_FIELD)
        if part.name.startswith("expires_after"):
            words.refuse_expiry(part.name)
        if part.name != "purpose" or not is_whole:
            raise Problem("invalid", f"the field {part.name[:100]!r} is not known: send purpose and file")
        self.purpose = text.decode("utf-8", "replace")
        if self.purpose not in PURPOSES:
            raise Problem("invalid", f"purpose {self.purpose[:100]!r}: use one of {', '.join(PURPOSES)}")
        self.is_late = self.document is not None

    async def _file(self, part: Part) -> None:
        if part.name != "file" or self.document is not None:
            raise Problem("invalid", "send exactly one file, in the field 'file'")
        name = (part.filename or "").replace("\\", "/").rpartition("/")[2] or "upload"
        # Each upload is a new file, also one with a known name and known bytes.
        source = f"openai-files/{self._access.service.runtime.ulid()}/{name}"
        receipt = await take(self._access, self._order, named(source, name, {"purpose": self.purpose}), part.body())
        if receipt.id is None:
            raise refused(receipt)
        self.document = receipt.id

    async def take_back(self) -> None:
        if self.document is not None:
            await self._access.scope.delete([self.document])


@router.get("/files", operation_id="openai_list_files", response_class=Response)
async def list_files(
    access: Reads,
    purpose: Annotated[str | None, Query(max_length=100)] = None,
    order: words.Order = "desc",
    after: words.Place = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = MOST,
) -> Response:
    """List the files that were stored here. Documents that came another way are files of their vector stores."""
    where, place = files_place(access), "" if after is None else document_of(after)
    found: list[dict[str, Any]] = []
    while len(found) <= limit:
        page = await access.scope.ledger.read(
            partial(vector_stores.page, Owner(access.owner)),
            where,
            older=place if order == "desc" else "",
            newer=place if order == "asc" else "",
            ascending=order == "asc",
            count=PAGE,
        )
        shown = [file_object(one) for one in page if words.sees(access, one)]
        found += [one for one in shown if purpose is None or one["purpose"] == purpose]
        if len(page) < PAGE:
            break
        place = page[-1].id
    return answer(words.listed(found[:limit], has_more=len(found) > limit))


@router.get("/files/{file_id}", operation_id="openai_get_file", response_class=Response)
async def get_file(access: Reads, file_id: FileId) -> Response:
    """Return a file. Every document has an id as a file."""
    document = document_of(file_id)
    found = (await files_of(access, [document])).get(document)
    if found is None:
        raise not_found("file", file_id)
    return answer(file_object(found))


@router.get("/files/{file_id}/content", operation_id="openai_get_file_content", response_class=Response)
async def get_file_content(access: Reads, file_id: FileId, range: Annotated[str | None, Header()] = None) -> Response:
    """Return the bytes of a file as they were sent."""
    document = document_of(file_id)
    if document not in await files_of(access, [document]):
        raise not_found("file", file_id)
    return await get_raw(access, document, range)


@router.delete("/files/{file_id}", operation_id="openai_delete_file", response_class=Response)
async def delete_file(access: Writes, file_id: FileId) -> Response:
    """Delete a file, also from all vector stores. No search that starts after the answer finds it."""
    document = document_of(file_id)
    found = (await files_of(access, [document])).get(document)
    if found is None:
        raise not_found("file", file_id)
    copies = await access.scope.ledger.read(partial(vector_stores.copies, Owner(access.owner)), PREFIX + document)
    if not all(access.may_use(collection) for _, collection in copies):
        raise Problem("forbidden", "the file is in a vector store that the key may not use")
    # The file itself comes last: a call that is cut off can be repeated.
    await access.scope.delete([copy for copy, _ in copies])
    await access.scope.delete([document])
    await access.scope.record("document.delete", document, {}, {"source": found.source})
    return answer({"id": file_id, "object": "file", "deleted": True})
