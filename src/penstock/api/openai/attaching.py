"""Files into a vector store: the document that a file is becomes another document in the collection."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from penstock.api.callers import Access
from penstock.api.openai import words
from penstock.api.openai.words import Body, document_of, files_of, id_of_store_file
from penstock.api.problems import not_found
from penstock.api.uploading import refused
from penstock.ledger.engine.vector_stores import Store
from penstock.model.nouns import DocumentId
from penstock.verbs.accepting import Order, checked
from penstock.verbs.file_copies import Copy, copy_into


class Sizes(Body):
    max_chunk_size_tokens: int = Field(ge=100, le=4096)
    chunk_overlap_tokens: int = Field(ge=0, le=2048)


class AutoChunking(Body):
    type: Literal["auto"]


class StaticChunking(Body):
    type: Literal["static"]
    static: Sizes


Chunking = Annotated[AutoChunking | StaticChunking, Field(discriminator="type")]


class Attachment(Body):
    """A file to add to a vector store."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"file_id": "file-01M7GZQJXCK1BXB2ZYP1YTP0G8", "attributes": {"year": 2020}}},
    )

    file_id: str
    attributes: words.Attributes | None = None
    chunking_strategy: Chunking | None = None

    @property
    def chunk(self) -> tuple[int, int] | None:
        chosen = self.chunking_strategy
        if not isinstance(chosen, StaticChunking):
            return None
        return chosen.static.max_chunk_size_tokens, chosen.static.chunk_overlap_tokens


async def attach(access: Access, store: Store, given: Sequence[Attachment]) -> list[DocumentId]:
    """Add files to a vector store. Return the documents there, in the order of the files. When this returns, they are
    durable. A repeated call adds nothing, but changes attributes and tries again what has failed."""
    if not given:
        return []
    asked = [(document_of(one.file_id), one) for one in given]
    files = await files_of(access, [document for document, _ in asked])
    copies: dict[tuple[int, int] | None, dict[DocumentId, Copy]] = {}
    documents: dict[DocumentId, DocumentId] = {}
    for document, one in asked:
        file = files.get(document)
        if file is None:
            raise not_found("file", one.file_id)
        attributes = words.checked_attributes(one.attributes)
        # What was made of a file stands for it, here and in other stores.
        origin = document_of(id_of_store_file(file))
        if file.collection == store.collection:
            documents[document] = document
            if attributes:
                await access.scope.set_metadata(document, attributes)
            continue
        copies.setdefault(one.chunk, {})[document] = Copy(document, origin, file.name, attributes)
    orders = {chunk: checked(access.scope, Order(store.collection, retry=True, chunk=chunk)) for chunk in copies}
    for chunk, some in copies.items():
        receipts = await copy_into(access.scope, orders[chunk], list(some.values()))
        for document, receipt in zip(some, receipts, strict=True):
            if receipt.id is None:
                raise refused(receipt)
            documents[document] = receipt.id
    return [documents[document] for document, _ in asked]
