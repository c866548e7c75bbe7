"""The two state machines, each as one table. `docs/states.md` is generated from these tables, and triggers in the
ledger reject every change of status that they do not contain."""

from collections.abc import Mapping
from enum import StrEnum


class DocumentStatus(StrEnum):
    PENDING = "PENDING"
    HELD = "HELD"
    """It was accepted, and waits until a user starts it."""
    EXTRACTING = "EXTRACTING"
    CHUNKING = "CHUNKING"
    EMBEDDING = "EMBEDDING"
    INDEXING = "INDEXING"
    COMPLETED = "COMPLETED"
    NOT_INDEXABLE = "NOT_INDEXABLE"
    """It contains no text."""
    UNSUPPORTED = "UNSUPPORTED"
    """No extractor reads its format."""
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StepStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class RunStatus(StrEnum):
    OPEN = "OPEN"
    HELD = "HELD"
    """It has no steps yet. A start replaces it by an open one."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class GenerationState(StrEnum):
    BUILDING = "BUILDING"
    ACTIVE = "ACTIVE"
    SUPERSEDED = "SUPERSEDED"
    PURGED = "PURGED"


_D = DocumentStatus
WORKING = (_D.EXTRACTING, _D.CHUNKING, _D.EMBEDDING, _D.INDEXING)
ENDS = (_D.COMPLETED, _D.NOT_INDEXABLE, _D.UNSUPPORTED, _D.FAILED, _D.CANCELLED)
TEXTLESS = (_D.NOT_INDEXABLE, _D.UNSUPPORTED)
"""The ends of a run that completed with nothing to search for."""

# The verb that makes each change. A working status that stays the same is not a change.
DOCUMENT_TRANSITIONS: Mapping[tuple[DocumentStatus, DocumentStatus], str] = {
    **{(_D.PENDING, working): "claim" for working in WORKING},
    # A workflow that has only custom steps stays PENDING until its end.
    (_D.PENDING, _D.COMPLETED): "flip",
    (_D.PENDING, _D.NOT_INDEXABLE): "flip",
    (_D.PENDING, _D.UNSUPPORTED): "flip",
    (_D.PENDING, _D.FAILED): "fail",
    (_D.PENDING, _D.CANCELLED): "cancel",
    **{(one, other): "claim" for one in WORKING for other in WORKING if one != other},
    **{(working, _D.COMPLETED): "flip" for working in WORKING},
    **{(working, _D.NOT_INDEXABLE): "flip" for working in WORKING},
    **{(working, _D.UNSUPPORTED): "flip" for working in WORKING},
    **{(working, _D.FAILED): "fail" for working in WORKING},
    **{(working, _D.CANCELLED): "cancel" for working in WORKING},
    (_D.FAILED, _D.PENDING): "retry",
    (_D.CANCELLED, _D.PENDING): "retry",
    (_D.NOT_INDEXABLE, _D.PENDING): "retry",
    (_D.UNSUPPORTED, _D.PENDING): "retry",
    (_D.COMPLETED, _D.PENDING): "submit",
    (_D.HELD, _D.PENDING): "start",
    (_D.HELD, _D.CANCELLED): "cancel",
    **{(status, _D.HELD): "submit" for status in _D if status != _D.HELD},
}

_S = StepStatus
STEP_TRANSITIONS: Mapping[tuple[StepStatus, StepStatus], str] = {
    (_S.PENDING, _S.RUNNING): "claim",
    (_S.RUNNING, _S.COMPLETED): "complete",
    (_S.RUNNING, _S.ERROR): "error",
    (_S.RUNNING, _S.FAILED): "fail, reap",
    (_S.RUNNING, _S.CANCELLED): "cancel",
    (_S.RUNNING, _S.PENDING): "release, reap",
    (_S.ERROR, _S.PENDING): "due",
    (_S.PENDING, _S.CANCELLED): "cancel",
    (_S.ERROR, _S.CANCELLED): "cancel",
    (_S.FAILED, _S.PENDING): "retry",
    (_S.CANCELLED, _S.PENDING): "retry",
    (_S.COMPLETED, _S.PENDING): "rewind",
}

# The status of a document while a step of this kind runs. Other kinds do not change it.
SHOWN_AS: Mapping[str, DocumentStatus] = {
    "fetch": _D.EXTRACTING,
    "validate": _D.EXTRACTING,
    "extract": _D.EXTRACTING,
    "clean": _D.CHUNKING,
    "chunk": _D.CHUNKING,
    "embed": _D.EMBEDDING,
    "index": _D.INDEXING,
}
