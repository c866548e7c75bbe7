"""What intake takes and returns: items to submit, what was read of them, and receipts."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from penstock.ledger.engine.submits import Submitted
from penstock.model.nouns import DocumentId
from penstock.model.states import DocumentStatus
from penstock.sources.base import Found, Revised, Source

BATCH = 256
REMOTE_BATCH = 16
"""Documents that are fetched from elsewhere are accepted in smaller batches, because each takes longer."""


class StoredRaw(msgspec.Struct, frozen=True):
    """Raw bytes in the blobs that become those of a document."""

    key: str
    sha256: str
    size: int


@dataclass(frozen=True)
class SubmitItem:
    """One document to submit, and the source that reads it."""

    source: Source
    found: Found
    key: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    remote: bool = False
    """The source is `Revised`: reading takes long, and revisions are worth storing."""
    stored: StoredRaw | None = None
    """Its bytes, if they are in the blobs already."""

    @property
    def uri(self) -> str:
        return self.found.uri

    @property
    def name(self) -> str:
        return self.found.name


class Receipt(msgspec.Struct, frozen=True):
    """The result of a submit for one document. When the caller receives it, an accepted document survives a power
    failure."""

    id: DocumentId | None
    """None: the document was refused."""
    source: str
    name: str
    outcome: Literal["submitted", "changed", "held", "resumed", "updated", "skipped", "refused"]
    """`submitted`: a new document. `changed`: a known one gets a new version. `held`: a new document or version, which
    waits until a user starts it. `resumed`: unfinished work continues.
    `updated`: the bytes are known, and only the metadata was changed.
    `skipped`: nothing to do. `refused`: it could not be read, and was not accepted."""
    status: DocumentStatus | None
    """The document's status after the submit."""
    size: int = 0
    problem: str | None = None
    """Why the document was refused."""
    stale_settings: bool = False
    """The document is COMPLETED and was skipped, but it was made with other settings than the present ones."""


def refusal(problem: str) -> Receipt:
    """Make the receipt of a file that could not be opened. `problem` is `SOURCE: why`."""
    source = problem.rpartition(": ")[0]
    return Receipt(None, source, os.path.basename(source), "refused", None, problem=problem)


@dataclass
class Read:
    """The bytes of an item, in memory or already stored."""

    item: SubmitItem
    sha256: str = ""
    size: int = 0
    data: bytes | None = None
    raw_key: str | None = None
    problem: str | None = None
    id: DocumentId | None = None
    """The id of the document if it is new."""
    revision: str = ""
    """The revision of the bytes, if the source has told one that is not stored yet."""

    @property
    def name(self) -> str:
        return self._learned().name if self.item.remote else self.item.name

    def learn(self) -> None:
        """Ask the source for the revision of the bytes that were read."""
        if self.item.remote:
            self.revision = self._learned().revision

    def _learned(self) -> Found:
        source = self.item.source
        assert isinstance(source, Revised)
        return source.learned(self.item.found)

    @property
    def is_known(self) -> bool:
        """The ledger has its bytes."""
        return self.problem is None and self.data is None and self.raw_key is None

    def receipt(self, answer: Submitted | None) -> Receipt:
        if answer is None or self.problem is not None:
            problem = self.problem or self.item.uri
            return Receipt(None, self.item.uri, self.name, "refused", None, self.size, problem)
        if answer.outcome == "taken":
            problem = (
                f"{self.item.uri}: this is the source of another document, {answer.document_id}: rename one of them"
            )
            return Receipt(None, self.item.uri, self.item.name, "refused", None, self.size, problem)
        changed = answer.outcome == "submitted" and answer.document_id != self.id
        return Receipt(
            answer.document_id,
            self.item.uri,
            self.name,
            "changed" if changed else answer.outcome,
            DocumentStatus(answer.status),
            self.size,
            stale_settings=answer.stale_settings,
        )


async def in_batches(items: AsyncIterator[SubmitItem]) -> AsyncGenerator[list[SubmitItem], None]:
    batch: list[SubmitItem] = []
    async for item in items:
        batch.append(item)
        if len(batch) >= (REMOTE_BATCH if item.remote else BATCH):
            yield batch
            batch = []
    if batch:
        yield batch


async def joined(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for piece in rest:
        yield piece


def unique(reads: list[Read]) -> list[Read]:
    """Keep only the last item of each source, because a submission may contain a source only once."""
    return list({read.item.uri: read for read in reads}.values())
