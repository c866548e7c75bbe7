"""The summary of a job: how many documents ended how, and why some did not become searchable."""

from collections import Counter
from functools import partial
from typing import Protocol

import msgspec

from penstock.extractors import formats, media
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import dead_letters, documents
from penstock.model.nouns import DocumentId, Owner
from penstock.model.states import DocumentStatus

STATUS_BATCH = 2000
REMARKS = 5


class Described(Protocol):
    @property
    def size(self) -> int: ...

    @property
    def media_type(self) -> str | None: ...


class FailureNote(msgspec.Struct, frozen=True):
    """Why a document did not become searchable."""

    document_id: str
    name: str
    status: DocumentStatus
    reason: str
    error: str


class Summary(msgspec.Struct):
    """The documents that a call named (for `run`: changed), counted by their status at the end of the call."""

    submitted: int = 0
    skipped: int = 0
    completed: int = 0
    not_indexable: int = 0
    failed: int = 0
    cancelled: int = 0
    pending: int = 0
    elapsed_s: float = 0.0
    refused: int = 0
    """Files that could not be read. They were not accepted; `problems` describes them."""
    deleted: int = 0
    gone: int = 0
    """Known documents that their source no longer has. They are kept unless the call deletes them (`prune`)."""
    stale_settings: int = 0
    """Documents that are COMPLETED and were skipped, but were made with other settings than the present ones."""
    budget_spent: bool = False
    left: int = 0
    """Documents of the whole queue, for all owners, that are not done when the budget is spent or the caller does not
    wait."""
    interrupted: bool = False
    problems: list[str] = []
    failed_before: int = 0
    """Documents that were skipped because the same bytes failed, were cancelled or had no text before. `retry` tries
    them again."""
    made: dict[str, int] = {}
    """Items that this call made: {"pages", "chunks", "embedded", "indexed"}."""
    reasons: dict[str, int] = {}
    """The number of documents that failed or had no text, by reason."""
    remarks: list[FailureNote] = []
    """Up to five documents for each reason."""
    unsupported: int = 0
    """Documents of a format that no extractor reads. They are not failures."""
    disk_full: bool = False
    """The disk became full while files were submitted. `problems` names the files that were not accepted."""
    brought_back: int = 0
    """Submitted documents whose source had a document that was deleted."""
    forgotten: int = 0
    """Files that were skipped because they were deleted with `forget`."""
    group: str | None = None
    """The group of the runs that this call started. `group show` shows its progress."""
    cost: float = 0.0
    """What this call has bought from embedders, in US dollars."""
    cost_spent: bool = False
    """The call ended because the next purchase would have cost more than `max_cost` allows."""
    held: int = 0
    """Documents that were accepted and wait until they are started."""
    children: int = 0
    """How many of the documents were found inside others."""


async def explain(
    owner: Owner, ledger: Ledger, statuses: dict[DocumentId, DocumentStatus | None], summary: Summary
) -> None:
    """Add to the summary why documents did not become searchable: the number for each reason, and some examples."""
    failed = [document for document, status in statuses.items() if status == DocumentStatus.FAILED]
    reasons: Counter[str] = Counter(summary.reasons)
    for i in range(0, len(failed), STATUS_BATCH):
        for number, reason in await ledger.read(partial(dead_letters.of, owner), failed[i : i + STATUS_BATCH]):
            reasons[reason] += 1
            if reasons[reason] > REMARKS:
                continue
            letter = await ledger.read(partial(dead_letters.get, owner), number)
            if letter is not None and letter.document_id is not None:
                document, name = letter.document_id, letter.name or ""
                summary.remarks.append(FailureNote(document, name, DocumentStatus.FAILED, reason, letter.error))
    for end, (reason, why) in TEXTLESS_REASONS.items():
        textless = [document for document, status in statuses.items() if status == end]
        reasons[reason] += len(textless)
        for document in textless[:REMARKS]:
            entry = await ledger.read(partial(documents.get, owner), document)
            if entry is not None:
                d = entry.document
                steps = await ledger.read(partial(documents.steps, owner), document)
                notes = [str(step.meta[key]) for step in steps for key in ("note", "error") if key in step.meta]
                summary.remarks.append(FailureNote(d.id, d.name, end, reason, notes[0] if notes else why(d)))
    reasons = +reasons
    summary.reasons = dict(reasons.most_common())


def _no_text(document: Described) -> str:
    if document.size == 0:
        return "the file is empty"
    if formats.of(document.media_type).printed or (document.media_type or "").startswith("image/"):
        return "no text in it, and OCR found none"
    return "no text in it"


def _unsupported(document: Described) -> str:
    if document.media_type in (None, media.BINARY):
        return "not supported: neither text nor any format that is known"
    return f"not supported: {formats.of(document.media_type).label}"


TEXTLESS_REASONS = {
    DocumentStatus.NOT_INDEXABLE: ("no_text", _no_text),
    DocumentStatus.UNSUPPORTED: ("unsupported_type", _unsupported),
}
"""For documents without text, the reason, and a sentence if no step has left a note."""
