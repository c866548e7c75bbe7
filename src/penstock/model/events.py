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


class LifecycleEvent(msgspec.Struct, frozen=True):
    """An event as the handlers of a workflow are told of it, at least once. `id` stays the same however often that is:
    who must not do a thing twice remembers it. Events of a group have no document and no run; the others no counts."""

    id: str
    kind: EventKind
    at: float
    """Seconds since 1970, by the ledger's clock."""
    owner: Owner
    collection: str
    workflow: str
    document_id: DocumentId | None = None
    name: str | None = None
    source: str | None = None
    run_id: RunId | None = None
    group_id: str | None = None
    batch: str | None = None
    step: str | None = None
    step_kind: str | None = None
    attempt: int = 0
    status: str | None = None
    error: str | None = None
    meta: Json = {}
    """What the step reported; `pages` and `chunks` of a document that ended; `reason` and `page` of a failure."""
    completion: int | None = None
    """The how-manieth time that the group has ended; 0 at its start."""
    counts: dict[str, int] = {}
    """The runs of the group by status, when this was delivered; of a document that was retried, only the newest."""
