"""Documents that are made of other documents: each of them gets a copy of the bytes, so that it lives by itself. Its
source names the document that it was made of, so that a repeated call makes no second one."""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import BlobMissing
from penstock.intake_items import Receipt, SubmitItem
from penstock.ledger.database.connection import Connection
from penstock.ledger.engine import documents
from penstock.model.nouns import DocumentId
from penstock.sources.base import Change, Found
from penstock.verbs.accepting import Order, accept
from penstock.verbs.scope import Scope
from penstock.verbs.stored_source import StoredSource

PREFIX = "openai:file-"


class Copy(msgspec.Struct, frozen=True):
    """A document to copy."""

    document: DocumentId
    origin: DocumentId
    """The file that it stands for, which the source names: the document itself, unless that is a copy."""
    name: str
    metadata: dict[str, Any]

    @property
    def source(self) -> str:
        return PREFIX + self.origin


async def copy_into(scope: Scope, order: Order, copies: Sequence[Copy]) -> list[Receipt]:
    """Submit a copy of each document. What is there already is not read again, but tried again if it has failed, and
    gets the metadata. Raises BlobMissing if the bytes of a document are gone."""

    def look(connection: Connection) -> list[tuple[str, int, str] | None]:
        return [documents.raw(scope.owner, connection, one.document) for one in copies]

    items: list[SubmitItem] = []
    for one, raw in zip(copies, await scope.ledger.read(look), strict=True):
        if raw is None:
            raise BlobMissing(f"the bytes of {one.name!r} ({one.document}) are not stored any more")
        # The bytes of a file never change.
        found = Found(one.source, one.name, change=Change.UNCHANGED)
        source = StoredSource(scope.blobs, [(raw[0], raw[1])], found)
        items.append(SubmitItem(source, found, None, one.metadata))
    receipts = await accept(scope, order, items)
    return [receipts[item.uri] for item in items]
