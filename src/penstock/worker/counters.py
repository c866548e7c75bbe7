"""What a worker has made, what it is working on and what remains. None of this reads the ledger."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.metrics.base import NULL_METRICS, Metrics
from penstock.model.nouns import DocumentId
from penstock.model.states import DocumentStatus
from penstock.worker.sampling import Tallies

if TYPE_CHECKING:
    from penstock.worker.context import Context

MADE = {"extract": "pages", "chunk": "chunks", "embed": "embedded", "index": "indexed"}
"""The name that the output shows for what each kind of step makes."""
KINDS = ("extract", "clean", "chunk", "embed", "index")
COMMIT_ROWS = 2000
"""How many rows one commit to the index contains."""


@dataclass
class Counters:
    """What this process has done since its worker began."""

    made: Counter[str] = field(default_factory=Counter)
    """Items by kind of step. Items from a checkpoint or a reused artifact are not counted."""
    ended: Counter[str] = field(default_factory=Counter)
    """Documents by the status that they ended with."""
    news: deque[tuple[DocumentId, DocumentStatus]] = field(default_factory=lambda: deque(maxlen=10_000))
    """The last documents that ended, until a reader takes them. A reader that misses one reads the ledger."""
    passed: Counter[str] = field(default_factory=Counter)
    """Bytes of the documents that have completed a kind of step, or will never reach it."""
    items: Counter[str] = field(default_factory=Counter)
    """The items of those documents, including items from checkpoints."""
    opened: int = 0
    """Documents that have completed `extract`, or ended before it."""
    busy_s: dict[str, float] = field(default_factory=dict)
    """Seconds spent in batches of each kind, summed over steps that run at the same time."""
    batches: Counter[str] = field(default_factory=Counter)
    began: float | None = None
    """When the first batch began. The time to load models does not count."""
    metrics: Metrics = NULL_METRICS
    tallies: Tallies = field(default_factory=Tallies)

    def worked(self, kind: str, items: int, began: float, ended: float) -> None:
        """Count one batch."""
        self.made[kind] += items
        if items and kind in MADE:
            self.metrics.incr(MADE[kind], items)
        self.batches[kind] += items > 0
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + ended - began
        if self.began is None:
            self.began = began

    def named(self) -> dict[str, int]:
        return {name: self.made[kind] for kind, name in MADE.items()}

    def passes(self, ctx: "Context", items: int) -> None:
        self.passed[ctx.step.kind] += ctx.generation.size
        self.items[ctx.step.kind] += items
        self.opened += ctx.step.kind == "extract"

    def ends(self, ctx: "Context", status: DocumentStatus, position: int) -> None:
        """Count a document that has ended. `position` is that of the first step that it will not reach."""
        self.ended[status] += 1
        self.metrics.incr("document_ended", status=status)
        self.tallies.ended(ctx.step.owner, failed=status == DocumentStatus.FAILED)
        self.news.append((ctx.step.document_id, status))
        for definition in ctx.state.workflow.steps[position:]:
            self.passed[definition.kind] += ctx.generation.size
            self.opened += definition.kind == "extract"


class DocumentInProgress(msgspec.Struct, frozen=True):
    """A document that a worker is working on. `done` of `of` pages or chunks are done; `of` is None if the number is
    unknown."""

    name: str
    kind: str
    done: int
    of: int | None
    waiting_on: str | None = None
    items: int = 0
    """Items that the step has made so far. For example, `chunk` counts pages in `done` and chunks here."""
    size: int = 0
    """The size of the document in bytes."""
    source: str = ""

    @property
    def left(self) -> int:
        return max(0, self.of - self.done) if self.of is not None else 0


def document_in_progress(ctx: "Context") -> DocumentInProgress:
    kind = ctx.step.kind
    cursor = ctx.checkpoint.cursor if ctx.has_checkpoint else {}
    done, of = ctx.position, None
    match kind:
        case "extract":
            of = cursor.get("of")
        case "clean" | "chunk":
            done, of = cursor.get("pages", 0), _reported(ctx, "extract", "pages")
        case "embed" | "index":
            of = _reported(ctx, "chunk", "chunks")
    d = ctx.document
    return DocumentInProgress(d.name, kind, done, of, ctx.waiting_on, ctx.position, ctx.generation.size, d.source)


def _reported(ctx: "Context", kind: str, name: str) -> int | None:
    """Return a number that an earlier step of this kind reported, or None. A user's workflow may have no such step."""
    for definition in ctx.state.workflow.steps[: ctx.step.position]:
        if definition.kind == kind and definition.name in ctx.state.artifacts:
            found: Any = ctx.state.artifacts[definition.name].meta.get(name)
            return found if isinstance(found, int) else None
    return None


def to_come(
    counters: Counters, in_progress: Sequence[DocumentInProgress], total: int, ended: int, size: int | None = None
) -> dict[str, int]:
    """Estimate how many pages, chunks, vectors and rows remain to be made for `total` documents of `size` bytes
    together. Documents in progress know their own remainder. For documents that were not opened yet, the estimate uses
    the items per byte so far. The result is empty while there is nothing to estimate from."""
    so_far = counters.items + Counter(
        {kind: sum(document.items for document in in_progress if document.kind == kind) for kind in KINDS}
    )
    left = {kind: sum(document.left for document in in_progress if document.kind == kind) for kind in KINDS}
    unopened = _unopened(counters, in_progress, total, ended, size)
    if not so_far["extract"] and not counters.passed["extract"]:
        return {}

    def in_unopened(kind: str) -> float:
        return unopened * counters.items[kind] / counters.passed[kind] if counters.passed[kind] else 0.0

    pages = left["extract"] + in_unopened("extract")
    uncut = left["extract"] + max(0, so_far["extract"] - so_far["clean"]) + left["clean"] + left["chunk"]
    a_page = so_far["chunk"] / so_far["clean"] if so_far["clean"] else 0.0
    chunks = uncut * a_page + in_unopened("chunk")
    embedded = chunks + max(left["embed"], so_far["chunk"] - so_far["embed"])
    indexed = embedded + max(left["index"], so_far["embed"] - so_far["index"])
    return {"pages": round(pages), "chunks": round(chunks), "embedded": round(embedded), "indexed": round(indexed)}


def _unopened(
    counters: Counters, in_progress: Sequence[DocumentInProgress], total: int, ended: int, size: int | None
) -> float:
    """Estimate the bytes of the documents that were not opened yet."""
    here = sum(counters.ended.values())
    reading = [document for document in in_progress if document.kind == "extract" and document.of is not None]
    seen = counters.passed["extract"] + sum(document.size for document in reading)
    if size is None:
        size = round(total * seen / (counters.opened + len(reading))) if counters.opened or reading else 0
    by_others = max(0, ended - here)
    return max(0.0, size * (total - by_others) / total - seen) if total else 0.0


def left_s(counters: Counters, more: dict[str, int], now: float) -> float | None:
    """Estimate the remaining seconds, or return None if that is not possible yet. Each stage is expected to take as
    long for an item as it did so far. Steps that run at the same time share the time that passed. The index has only
    one writer, and a commit of many rows takes hardly longer than a commit of few."""
    if counters.began is None or not more or not counters.made["embed"]:
        # There is no measurement for a stage that has not begun.
        return None
    busy = sum(seconds for kind, seconds in counters.busy_s.items() if kind != "index")
    shared = (now - counters.began) / busy if busy else 0.0

    def ahead(kind: str, more_of_it: int) -> float:
        return shared * counters.busy_s[kind] * more_of_it / counters.made[kind] if counters.made[kind] else 0.0

    uncleaned = more["chunks"] * counters.made["clean"] // max(1, counters.made["chunk"])
    commits = -(-more["indexed"] // COMMIT_ROWS)
    indexing = counters.busy_s["index"] * commits / counters.batches["index"] if counters.batches["index"] else 0.0
    made = ahead("extract", more["pages"]) + ahead("chunk", more["chunks"]) + ahead("embed", more["embedded"])
    return ahead("clean", uncleaned) + made + indexing
