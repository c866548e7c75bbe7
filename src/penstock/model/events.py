"""Events: what happened to runs, steps and groups."""

from enum import StrEnum

import msgspec

from penstock.model.nouns import DocumentId, Json, Owner, RunId


class EventKind(StrEnum):
    GROUP_START = "GROUP_START"
    """The first runs of a group were started."""
    GROUP_END = "GROUP_END"
    """All runs of a group have ended. It is raised again after some of them were retried."""
    ITEM_START = "ITEM_START"
    """The first step of a run was claimed for the first time."""
    ITEM_END = "ITEM_END"
    """The run ended without failure. The document is COMPLETED, NOT_INDEXABLE, UNSUPPORTED
    or CANCELLED."""
    ITEM_FAILED = "ITEM_FAILED"
    """The run ended as a dead letter."""
    STEP_START = "STEP_START"
    STEP_END = "STEP_END"
    STEP_FAILED = "STEP_FAILED"
    """An attempt failed. `status` is ERROR if there will be another attempt, else FAILED."""


class Event(msgspec.Struct, frozen=True):
    """A live event. What it describes is already in the ledger. `meta` is the report of the step, or `reason` and
    `page` of a failure."""

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
    """Claims since the cursor of the step last moved."""
    status: str | None = None
    error: str | None = None
    meta: Json = {}


class LifecycleEvent(msgspec.Struct, frozen=True):
    """An event as handlers receive it, at least once. Every delivery of an event has the same `id`, by which a handler
    can detect duplicates. Events of a group have no document and no run; other events have no counts."""

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
    """The report of the step; or `pages` and `chunks` of a document that ended; or `reason` and `page` of a failure."""
    completion: int | None = None
    """How many times the group has ended; 0 at its start."""
    counts: dict[str, int] = {}
    """The runs of the group by status at the time of delivery. Only the newest run of a document is counted."""
