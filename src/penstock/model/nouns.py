"""The data types of the ledger. Times are seconds since 1970 by the database's clock."""

from collections.abc import Mapping
from typing import Any, NewType

import msgspec

from penstock.model.states import DocumentStatus, StepStatus

Owner = NewType("Owner", str)
DocumentId = NewType("DocumentId", str)
RunId = NewType("RunId", str)
StepId = NewType("StepId", int)
GenerationId = NewType("GenerationId", int)
ArtifactId = NewType("ArtifactId", int)
WorkerId = NewType("WorkerId", str)
Token = NewType("Token", str)

Json = Mapping[str, Any]


class Document(msgspec.Struct, frozen=True):
    id: DocumentId
    owner: Owner
    collection: str
    source: str
    name: str
    media_type: str | None
    size: int
    sha256: str
    metadata: Json
    status: DocumentStatus
    retry_count: int
    error: str | None
    pages: int | None
    chunks: int | None
    created_at: float
    updated_at: float


class Generation(msgspec.Struct, frozen=True):
    id: GenerationId
    document_id: DocumentId
    index_version: int
    raw_key: str
    size: int
    sha256: str
    staging: int = 0
    """1 if a re-index makes it, for the next version of the index; otherwise 0."""
    store: str | None = None
    """Where the table of that version is; None: in the index of the settings."""


class StepDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a workflow, as defined in YAML."""

    name: str
    kind: str
    method: str | None = None
    """Dotted path of the user's function; None: the built-in stage of the kind."""
    retries: int = 3
    parameters: dict[str, Any] = {}
    pool: str | None = None
    """The pool that executes the step; None: the pool of its kind."""
    resource_key: str | None = None
    """Only one step with this key runs at a time."""
    timeout: float | None = None
    """Seconds of work without progress after which the attempt is ended."""
    next: str | None = None
    """The next step; None: the following one in the list."""
    choices: dict[str, str] = {}
    """For a route: the next step for each choice; `default` for all other choices."""
    repeatable: bool = False
    """The output can be made again from stored data, so it does not have to survive a power failure."""

    @property
    def queue(self) -> str:
        """The queue that the step is claimed from."""
        return self.pool or self.kind


class Handler(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A receiver of lifecycle events: a function by its dotted path, or a webhook by its name."""

    name: str
    method: str | None = None
    webhook: str | None = None
    retries: int = 3
    """Maximum number of attempts."""
    parameters: dict[str, Any] = {}
    timeout: float = 60.0
    """Seconds for one attempt."""


class WorkflowRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The names of workflow and parameter set that a run was started with. A retry reads them again."""

    workflow: str
    """The id of the workflow, or the path of its file."""
    params: str | None = None
    values: dict[str, dict[str, Any]] = {}
    """Single values that override the parameter set."""


class Workflow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An ordered list of steps. A run keeps the snapshot of the workflow that it started with."""

    id: str
    name: str
    steps: tuple[StepDefinition, ...]
    meta: dict[str, Any] = {}
    lifecycle_events: dict[str, tuple[Handler, ...]] = {}
    asked: WorkflowRef | None = None
    """Set in a snapshot, unless the id alone identifies the workflow."""

    def position(self, name: str) -> int:
        return next(i for i, step in enumerate(self.steps) if step.name == name)


class ParameterSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values for the steps of a workflow, by step name or kind, defined separately from the workflow."""

    id: str
    config: dict[str, dict[str, Any]] = {}
    name: str = ""
    meta: dict[str, Any] = {}


class Lease(msgspec.Struct, frozen=True):
    """The right to write for one step, until the database's clock passes `lease_until`. `resource_key` names the lock
    that was claimed with the step, if there is one."""

    step_id: StepId
    token: Token
    epoch: int
    resource_key: str | None = None


class Step(msgspec.Struct, frozen=True):
    """A claimed step with everything that a worker needs to execute it."""

    lease: Lease
    run_id: RunId
    document_id: DocumentId
    generation_id: GenerationId
    owner: Owner
    snapshot: str
    position: int
    kind: str
    name: str
    priority: int
    rank: int
    attempts: int
    """Claims since the cursor last moved, this one included."""
    crashes: int
    errors: int
    pool: str | None = None
    forgiven: int = 0
    """How often progress has reset `crashes` and `errors` after a failure."""
    refused: int = 0
    """How often a target failed for this step since its last progress, while it answered another call."""

    @property
    def queue(self) -> str:
        """The queue that the step is claimed from."""
        return self.pool or self.kind


class StepView(msgspec.Struct, frozen=True):
    """A step as `status` shows it."""

    name: str
    kind: str
    status: StepStatus
    attempts: int
    waiting_on: str | None
    started_at: float | None
    finished_at: float | None
    meta: Json
    last_progress: float | None = None
    """When a checkpoint or a heartbeat last reported progress."""
    created_at: float | None = None
    """When its turn came. None: it has not come yet."""
    retry_at: float | None = None
    """Before this time, a step that waits for another attempt is not claimed."""
    crashes: int = 0
    """How many attempts ended with the death of the worker, and `errors`: with an error."""
    errors: int = 0
    error: str | None = None
    """The error of the last attempt."""


class Segment(msgspec.Struct, frozen=True):
    """An immutable part of an artifact. It counts only when a gated row names it."""

    ordinal: int
    key: str
    sha256: str
    size: int
    items: int
    first: int
    """Number of its first item, counted from the start of the artifact."""
    cursor: Json
    """The cursor before this segment. A rewind continues here."""
    data: bytes | None = None
    """The bytes, while a small segment is on its way to the ledger."""


class Artifact(msgspec.Struct, frozen=True):
    """The output of a step, complete or not, with the checkpoint of the step that builds it."""

    id: ArtifactId
    fingerprint: str
    complete: bool
    cursor: Json
    items: int
    segments: int
    meta: Json
