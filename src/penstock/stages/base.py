"""What a stage is, and what it can use. A stage knows ports and its context, and nothing about the queue."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.artifacts.checkpoint import Checkpoint
from penstock.artifacts.segments import Codec
from penstock.config import LimitsConfig
from penstock.config_providers import LOCAL
from penstock.embedders.base import Embedder, Relevance
from penstock.extractors.base import Child, CloudExtractor, Extractor, StoredRaw
from penstock.indexes.base import Index, TableId
from penstock.indexes.several import Indexes
from penstock.model.nouns import Document, Generation, Json, Step
from penstock.model.states import DocumentStatus
from penstock.model.usage import Booking
from penstock.net.providers import Providers, ProvidersOf
from penstock.rerankers.base import Reranker
from penstock.runtime import Runtime


class StepResult(msgspec.Struct, frozen=True):
    """The result of a step. `meta` is stored with the step, `end` ends the run here, and `choice` is the result of a
    route."""

    meta: dict[str, Any] = {}
    end: DocumentStatus | None = None
    media_type: str | None = None
    choice: str | None = None


async def _close_nothing() -> None:
    pass


async def _in_the_settings(table: TableId) -> None:
    """No ledger says otherwise."""


async def _no_others() -> list[str]:
    return []


@dataclass(frozen=True)
class Ports:
    """The adapters that `app.py` chose."""

    extractors: Mapping[str, Extractor]
    """By media type."""
    embedder: Embedder
    """That of the settings. Collections may have others."""
    make_index: Callable[[str | None], Index]
    """Makes an index that the ledger names; None: that of the settings."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    make_relevance: Callable[[], Relevance] | None = None
    make_reranker: Callable[[str], Reranker] | None = None
    cloud_extractors: Mapping[str, CloudExtractor] = field(default_factory=dict)
    """By name, as in the setting `extractor`."""
    close_extractors: Callable[[], Awaitable[None]] = _close_nothing
    locate: Callable[[TableId], Awaitable[str | None]] = _in_the_settings
    """Where the ledger says that a table is."""
    stores: Callable[[], Awaitable[list[str]]] = _no_others
    """Where it says that tables are, apart from the index of the settings."""
    index_name: str = ""
    """How the ledger names the index of the settings."""
    embedders: Mapping[str, Embedder] = field(default_factory=dict)
    """By name, as in the setting `embedder`; made on first use."""
    embedder_setting: str = ""
    """The name of the default one."""
    close_embedders: Callable[[], Awaitable[None]] = _close_nothing

    def embedder_for(self, params: Json) -> Embedder:
        """The embedder that the parameter `embedder` names; without one, that of the settings."""
        name = params.get("embedder")
        return self.embedder if name is None else self.embedders[str(name)]

    def extractor(self, media_type: str, params: Json) -> Extractor | None:
        """The extractor for a format: the one that the parameter `extractor` names, if it reads the format, else the
        local one; None if there is none."""
        cloud = self.cloud_extractor(params)
        return cloud if cloud is not None and cloud.reads(media_type) else self.extractors.get(media_type)

    def cloud_extractor(self, params: Json) -> CloudExtractor | None:
        name = params.get("extractor", LOCAL)
        return None if name == LOCAL else self.cloud_extractors[str(name)]

    @cached_property
    def relevance(self) -> Relevance:
        """Compares passages with a query; made on first use."""
        assert self.make_relevance is not None
        return self.make_relevance()

    def reranker(self, name: str) -> Reranker:
        """The reranker with this name, made on first use."""
        assert self.make_reranker is not None
        if name not in self._rerankers:
            self._rerankers[name] = self.make_reranker(name)
        return self._rerankers[name]

    @cached_property
    def _rerankers(self) -> dict[str, Reranker]:
        return {}

    @cached_property
    def index(self) -> Indexes:
        """The indexes, made on first use: code that only submits or reads documents does not load their libraries."""
        return Indexes(self.make_index, self.locate, self.stores)

    async def close(self) -> None:
        """Close connections to servers, in the event loop that used them."""
        await self.close_embedders()
        await self.close_extractors()
        if "index" in self.__dict__:
            await self.index.close()


class Limits(NamedTuple):
    """The limits of one call: the number of items, and the sum of their sizes. None means no limit."""

    items: int
    size: int | None = None


@dataclass(frozen=True)
class Gather:
    """A call that can serve several steps."""

    call: Callable[[Ports, Runtime, ProvidersOf, Sequence[Any]], Awaitable[Any]]
    """The result has one entry for each item, in order, and can be sliced. An entry depends only on its item."""
    size: Callable[[Any], int]
    limits: Callable[[Ports], Limits | None]
    """None: a common call saves nothing, and each step makes its own."""


class Children(Protocol):
    """The documents inside the document of a step."""

    async def submit(self, found: Sequence[Child]) -> list[str]:
        """Submit children. When this returns, they survive a power failure. Children that were submitted before have no
        effect. Returns why some were refused."""

    async def sweep(self) -> int:
        """Delete the children that were not submitted for this version of the document, and return their number."""


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
        """The cursor, and `append(items, cursor)`. An append flushes when it is time, releases the step when the budget
        is spent, and stops it when it was cancelled."""

    @property
    def children(self) -> Children | None:
        """None: documents inside the document are ignored."""

    @property
    def deadline(self) -> float | None:
        """The end of the budget, as a time of `runtime.clock()`."""

    def inputs(self, kind: str, start: int = 0) -> AsyncIterator[list[Any]]:
        """Return the items of an earlier step's artifact, from number `start` on, one segment at a time."""

    @property
    def providers(self) -> Providers:
        """For calls of providers: their limits, and what was bought from them."""

    def book(self, booking: Booking) -> None:
        """Record with the next checkpoint, or with the end of the step, what it did not have to buy."""

    def input_meta(self, kind: str) -> Json:
        """Return what an earlier step of this kind reported."""

    async def together(self, gather: Gather, items: Sequence[Any]) -> Any:
        """Return the result of the call of `gather` for these items. One call may contain items of several steps. If a
        common call fails, only the step whose items are the cause gets the error."""

    def raise_if_cancelled(self) -> None: ...

    def waiting(self, on: str | None) -> None:
        """Report what the step waits on; None means that it works again. While it waits, other steps may use its slot.
        It holds the slot again before its next input or append returns."""

    def progress(self) -> None:
        """Report progress: the `timeout` of the step starts again. An append to the checkpoint does this too."""


def never_ends(meta: Json) -> DocumentStatus | None:
    return None


def _free(ports: Ports, params: Json, media_type: str | None) -> bool:
    return False


def _no_version(ports: Ports, params: Json, media_type: str | None) -> Any:
    return ""


def _never_revised(ports: Ports, params: Json, media_type: str | None, meta: Json, cursor: Json) -> str | None:
    return None


def _no_children(media_type: str | None) -> bool:
    return False


def _no_target(ports: Ports, params: Json) -> str | None:
    return None


def _ignore(ctx: StepContext, meta: Json) -> None:
    pass


def _one(ctx: StepContext) -> int:
    return 1


async def _nothing(ctx: StepContext) -> None:
    return None


def _no_result(ctx: StepContext) -> StepResult:
    return StepResult()


def _never(ports: Ports, generation: Generation) -> bool:
    return False


def _always(ports: Ports) -> bool:
    return True


@dataclass(frozen=True)
class Stage:
    """The code of one kind of step. `codec` is None for a stage that makes no artifact. `version` names everything
    besides input and parameters that determines the output. `ends` returns from the result whether the run ends
    here."""

    kind: str
    run: Callable[[StepContext], Awaitable[StepResult]]
    codec: Codec[Any] | None = None
    version: Callable[[Ports, Json, str | None], Any] = field(default=_no_version)
    ends: Callable[[Json], DocumentStatus | None] = field(default=never_ends)
    durable: bool = False
    """The output cannot be made again, and is fsynced."""
    paid: Callable[[Ports, Json, str | None], bool] = field(default=_free)
    """Whether the adapter costs money for a document of this media type. If so, the output is fsynced too."""
    has_children: Callable[[str | None], bool] = field(default=_no_children)
    """Whether documents of this media type may contain others, which the stage submits."""
    target: Callable[[Ports, Json], str | None] = field(default=_no_target)
    """The target that the stage calls, if it can be away. Steps are not started while it is."""
    gathers: bool = False
    """Whether steps wait for each other, to make common calls."""
    separate: frozenset[str] = frozenset()
    """Parameters that are not a part of the fingerprint. `version` and `revised` take care of them."""
    revised: Callable[[Ports, Json, str | None, Json, Json], str | None] = field(default=_never_revised)
    """Takes meta and cursor of an artifact with the right fingerprint. If it depends on something that has changed
    since, and that most artifacts do not depend on, returns what it is now."""
    check: Callable[[Ports, Json, Runtime], Awaitable[object]] | None = None
    """A small call that succeeds if the target works. It is made after a probe that failed."""
    warm_up: Callable[[Ports, Runtime], Awaitable[None]] | None = None
    """Loads models and libraries before the first step needs them."""
    reused: Callable[[StepContext, Json], None] = field(default=_ignore)
    """Called with the meta of an artifact that a step need not make, because it exists already."""


Ctx = TypeVar("Ctx", bound=StepContext)


class Member(NamedTuple, Generic[Ctx]):
    """A step of a group. `resumed` means that part of its rows may exist already, so it is written by id."""

    ctx: Ctx
    resumed: bool


@dataclass(frozen=True)
class Alone:
    """How a step is executed that is too heavy for a batch: alone, with a checkpoint."""

    run: Callable[[Any, Member[Any]], Awaitable[None]]
    """Takes the target of the group and the step."""
    codec: Codec[Any]
    fingerprint: Callable[[StepContext], str]
    """The fingerprint of the artifact that contains the checkpoint."""


@dataclass(frozen=True)
class GroupedStage:
    """A kind whose steps are executed in groups, in batches with one call each. Steps of one owner with the same
    `group_key` may share a group."""

    kind: str
    run_group: Callable[[Any, Sequence[Member[Any]], Sequence[Any]], Awaitable[None]]
    """Takes the target of the group (`GroupHost.open`), the steps, and what was loaded for each. If a batch fails, each
    half of it is tried again."""
    group_key: Callable[[Document, Generation], str]
    exclusive: Callable[[Ports, Generation], bool] = field(default=_never)
    """Whether only one group with the same key may be executed at a time. Then its steps wait behind a lock. Such a
    step cannot be the first one of a workflow."""
    shared: Callable[[Ports], bool] = field(default=_always)
    """Whether steps without a lock may be claimed. It is asked before each claim and must not load anything: False
    while that is not known."""
    weigh: Callable[[StepContext], int] = field(default=_one)
    """Returns the weight of a step. An error here is an error of the step."""
    most: Callable[[], int] = field(default=lambda: 64)
    """The largest weight of a batch."""
    load: Callable[[StepContext], Awaitable[Any]] = field(default=_nothing)
    """Loads what a step adds to its batch. An error here is an error of the step."""
    alone: Alone | None = None
    """How a step is executed that is heavier than a batch; None: like all others."""
    result: Callable[[StepContext], StepResult] = field(default=_no_result)
    inputs: tuple[str, ...] = ()
    """The kinds whose items `load` reads. A worker keeps small ones in memory."""
    target: Callable[[Ports, Json], str | None] = field(default=_no_target)
    """As for `Stage`."""
    warm_up: Callable[[Ports, Runtime], Awaitable[None]] | None = None
    """As for `Stage`."""
