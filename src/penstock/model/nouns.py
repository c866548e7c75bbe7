"""The frozen nouns of the ledger. Times are seconds since 1970 by the database's clock."""

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


class StepDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One stage of a workflow as its YAML names it."""

    name: str
    kind: str
    method: str | None = None
    """The user's own function, by its dotted path; None: the shipped one of its kind."""
    retries: int = 3
    parameters: dict[str, Any] = {}
    pool: str | None = None
    """The pool that works on it; None: the one of its kind."""
    resource_key: str | None = None
    """What only one worker may write at a time."""
    timeout: float | None = None
    """Seconds of work without progress after which it is taken away from its worker."""
    next: str | None = None
    """The step that follows; None: the one below."""
    choices: dict[str, str] = {}
    """For a route: the step that follows each answer of its method; `default` for any other."""
    repeatable: bool = False
    """What it makes can be made again from what is kept, and need not survive a power cut."""

    @property
    def lane(self) -> str:
        """What it is claimed by."""
        return self.pool or self.kind


class Handler(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Somebody who is told of a lifecycle event: a function by its dotted path, or a webhook by its name."""

    name: str
    method: str | None = None
    webhook: str | None = None
    retries: int = 3
    """Attempts in all."""
    parameters: dict[str, Any] = {}
    timeout: float = 60.0
    """Seconds for one attempt."""


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The names by which a run's workflow and values were found: a retry looks there again."""

    workflow: str
    """Its id, or the path of its file."""
    params: str | None = None
    values: dict[str, dict[str, Any]] = {}
    """Given one by one, over those of the parameter set."""


class Workflow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An ordered set of steps. A run keeps the snapshot that it started with."""

    id: str
    name: str
    steps: tuple[StepDefinition, ...]
    meta: dict[str, Any] = {}
    lifecycle_events: dict[str, tuple[Handler, ...]] = {}
    asked: Asked | None = None
    """In a snapshot, unless its id says it all."""

    def position(self, name: str) -> int:
        return next(i for i, step in enumerate(self.steps) if step.name == name)


class ParameterSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values for the steps of a workflow, by step name or kind, apart from the workflow."""

    id: str
    config: dict[str, dict[str, Any]] = {}
    name: str = ""
    meta: dict[str, Any] = {}


class Lease(msgspec.Struct, frozen=True):
    """The right to write for one step, until the database's clock passes `lease_until`. `resource_key` names the
    lock that came with it, if its kind is claimed through one."""

    step_id: StepId
    token: Token
    epoch: int
    resource_key: str | None = None


class Step(msgspec.Struct, frozen=True):
    """A claimed step with all that a worker needs to know about it."""

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

    @property
    def lane(self) -> str:
        """What it is claimed by."""
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
    """When a checkpoint or a heartbeat last told that it got on."""


class Segment(msgspec.Struct, frozen=True):
    """An immutable piece of an artifact. It counts only once a gated row names it."""

    ordinal: int
    key: str
    sha256: str
    size: int
    items: int
    first: int
    """Number of the first item in it, counted through the artifact."""
    cursor: Json
    """Where its producer stood before it: a rewind goes back to here."""


class Artifact(msgspec.Struct, frozen=True):
    """What a stage makes, finished or not, with the checkpoint of whoever builds it."""

    id: ArtifactId
    fingerprint: str
    complete: bool
    cursor: Json
    items: int
    segments: int
    meta: Json
