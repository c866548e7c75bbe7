"""What happens to documents, as it is told to those who listen."""

from enum import StrEnum

import msgspec

from penstock.model.nouns import DocumentId, Json, Owner, RunId


class EventKind(StrEnum):
    GROUP_START = "GROUP_START"
    """The first runs of a group were started."""
    GROUP_END = "GROUP_END"
    """All runs of a group have ended; once more if some of them were retried."""
    ITEM_START = "ITEM_START"
    """The first step of a run was claimed for the first time."""
    ITEM_END = "ITEM_END"
    """The run ended, and the document with it: COMPLETED, NOT_INDEXABLE or CANCELLED."""
    ITEM_FAILED = "ITEM_FAILED"
    """The run ended as a dead letter."""
    STEP_START = "STEP_START"
    STEP_END = "STEP_END"
    STEP_FAILED = "STEP_FAILED"
    """An attempt failed. `status`: ERROR if there will be another one, FAILED if not."""


class Event(msgspec.Struct, frozen=True):
    """One thing that happened: it is in the ledger. `meta` holds what the step reported, or `reason` and `page`."""

    kind: EventKind
    at: float
    """Seconds since 1970."""
    owner: Owner
    document_id: DocumentId
    name: str
    run_id: RunId
    step: str | None = None
    step_kind: str | None = None
    attempt: int = 0
    """Claims since the step's cursor last moved."""
    status: str | None = None
    error: str | None = None
    meta: Json = {}
