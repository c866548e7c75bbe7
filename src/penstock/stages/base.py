"""What a stage is, and what it is offered. A stage knows ports and its context, never the queue."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.artifacts.checkpoint import Checkpoint
from penstock.artifacts.segments import Codec
from penstock.config import LimitsConfig
from penstock.embedders.base import Embedder
from penstock.extractors.base import Extractor, StoredRaw
from penstock.indexes.base import Index
from penstock.model.nouns import Document, Generation, Json, Step
from penstock.model.states import DocumentStatus
from penstock.runtime import Runtime


class StepResult(msgspec.Struct, frozen=True):
    """What a step reports. `meta` is kept on the step; `end` ends the run here; `choice` is what a route answers."""

    meta: dict[str, Any] = {}
    end: DocumentStatus | None = None
    media_type: str | None = None
    choice: str | None = None


@dataclass(frozen=True)
class Ports:
    """The adapters that `app.py` chose."""

    extractors: Mapping[str, Extractor]
    """By media type."""
    embedder: Embedder
    make_index: Callable[[], Index]
    limits: LimitsConfig = field(default_factory=LimitsConfig)

    @cached_property
    def index(self) -> Index:
        """Made when it is first asked for: what submits or reads documents can do without its libraries."""
        return self.make_index()

    @property
    def many_writers(self) -> bool:
        """Whether the index is made already and takes many writers at once."""
        return "index" in self.__dict__ and not self.index.traits.single_writer


class Limits(NamedTuple):
    """What one call takes: so many items, and so much by the size of each. None: as much as there is."""

    items: int
    size: int | None = None


@dataclass(frozen=True)
class Gather:
    """Work that one call can do for several steps."""

    call: Callable[[Ports, Runtime, Sequence[Any]], Awaitable[Any]]
    """Its answer has one entry for each item, in order, and can be sliced. The entry depends on the item alone."""
    size: Callable[[Any], int]
    limits: Callable[[Ports], Limits | None]
    """None: a common call saves nothing, and each step makes its own."""


class StepContext(Protocol):
    @property
    def document(self) -> Document: ...

    @property
    def generation(self) -> Generation: ...

    @property
    def step(self) -> Step: ...

    @property
    def params(self) -> dict[str, Any]: ...

    @property
    def ports(self) -> Ports: ...

    @property
    def runtime(self) -> Runtime: ...

    @property
    def source(self) -> StoredRaw:
        """The raw bytes."""

    @property
    def checkpoint(self) -> Checkpoint[Any]:
        """Cursor, and `append(items, cursor)`, which flushes when it is time, hands over when the budget is spent and
        stops when the step was cancelled."""

    @property
    def deadline(self) -> float | None:
        """By `runtime.clock()`."""

    def inputs(self, kind: str, start: int = 0) -> AsyncIterator[list[Any]]:
        """The items of an earlier step's artifact from number `start` on, a segment at a time."""

    def input_meta(self, kind: str) -> Json:
        """What an earlier step of this kind reported."""

    async def together(self, gather: Gather, items: Sequence[Any]) -> Any:
        """What the call of `gather` answers for these items, which it may be given together with those of other
        steps. If a common call is refused, only the step whose items are the cause gets the error."""

    def raise_if_cancelled(self) -> None: ...

    def waiting(self, on: str | None) -> None:
        """Say what the step waits on; None: it works again. While it waits, other steps may use its place; it has the
        place again when its next input or its next append comes."""

    def progress(self) -> None:
        """The step gets on: its `timeout` begins anew. An append to the checkpoint says so by itself."""


def never_ends(meta: Json) -> DocumentStatus | None:
    return None


def _free(ports: Ports, media_type: str | None) -> bool:
    return False


def _no_version(ports: Ports, params: Json, media_type: str | None) -> Any:
    return ""


def _no_target(ports: Ports, params: Json) -> str | None:
    return None


@dataclass(frozen=True)
class Stage:
    """One kind of step. `codec` is None for a stage that makes no artifact. `version` names everything besides input
    and parameters that decides the output; `ends` tells from the result whether the run ends here."""

    kind: str
    run: Callable[[StepContext], Awaitable[StepResult]]
    codec: Codec[Any] | None = None
    version: Callable[[Ports, Json, str | None], Any] = field(default=_no_version)
    ends: Callable[[Json], DocumentStatus | None] = field(default=never_ends)
    durable: bool = False
    """What it makes cannot be made again, and is fsynced."""
    paid: Callable[[Ports, str | None], bool] = field(default=_free)
    """Whether its adapter costs money for a document of this media type: then what it makes is fsynced too."""
    target: Callable[[Ports, Json], str | None] = field(default=_no_target)
    """What the stage calls, if that may be away: such steps are not begun while it is."""


Ctx = TypeVar("Ctx", bound=StepContext)


class Member(NamedTuple, Generic[Ctx]):
    """A step of a group. `resumed`: part of its effect may be there already, so it is repeated by id."""

    ctx: Ctx
    resumed: bool


@dataclass(frozen=True)
class GroupedStage:
    """A kind whose steps are executed many at a time, in batches that have one effect. Steps of one group share what
    they write to (`target`); what that is, the worker opens."""

    kind: str
    weigh: Callable[[StepContext], int]
    """What raises here is the step's own error."""
    most: Callable[[], int]
    """The weight of a batch. A step that is heavier is executed alone, with a checkpoint."""
    load: Callable[[StepContext], Awaitable[Any]]
    """What a step adds to its batch. What raises here is the step's own error."""
    write: Callable[[Any, Sequence[Member[Any]], Sequence[Any]], Awaitable[None]]
    """Target, steps, and what was loaded for each. If a batch is refused, each half of it is written again."""
    write_heavy: Callable[[Any, Member[Any]], Awaitable[None]]
    codec: Codec[Any]
    """Of the checkpoint of a heavy step."""
    fingerprint: Callable[[StepContext], str]
    """Of its artifact."""
    result: Callable[[StepContext], StepResult]
