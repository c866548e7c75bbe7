"""A look at a worker while it works: what it made, what it has in hand, what is to come. It asks no ledger."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.metrics.base import NULL_METRICS, Metrics
from penstock.model.nouns import DocumentId
from penstock.model.states import DocumentStatus

if TYPE_CHECKING:
    from penstock.worker.context import Context

MADE = {"extract": "pages", "chunk": "chunks", "embed": "embedded", "index": "indexed"}
"""What people call that which a kind of step makes."""
KINDS = ("extract", "clean", "chunk", "embed", "index")
COMMIT_ROWS = 2000
"""As many go into one commit to the index."""


@dataclass
class Counters:
    """Since the worker began, by this process alone."""

    made: Counter[str] = field(default_factory=Counter)
    """Items, by kind of step: nothing from a checkpoint or a re-used artifact is in it."""
    ended: Counter[str] = field(default_factory=Counter)
    """Documents, by the status they ended with."""
    news: deque[tuple[DocumentId, DocumentStatus]] = field(default_factory=lambda: deque(maxlen=10_000))
    """The last of these, one by one, until somebody takes them. Who misses one asks the ledger."""
    passed: Counter[str] = field(default_factory=Counter)
    """Bytes of the documents that have passed a kind of step, or will never meet it."""
    items: Counter[str] = field(default_factory=Counter)
    """What those gave, from checkpoints too."""
    opened: int = 0
    """Documents that have passed `extract`, or ended before it."""
    busy_s: dict[str, float] = field(default_factory=dict)
    """Seconds in batches of each kind; of steps side by side, all of them."""
    batches: Counter[str] = field(default_factory=Counter)
    began: float | None = None
    """When the first batch did: loading models is no pace."""
    metrics: Metrics = NULL_METRICS

    def worked(self, kind: str, items: int, began: float, ended: float) -> None:
        """One batch."""
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
        """`position`: of the first step that this document will not pass any more."""
        self.ended[status] += 1
        self.metrics.incr("document_ended", status=status)
        self.news.append((ctx.step.document_id, status))
        for definition in ctx.state.workflow.steps[position:]:
            self.passed[definition.kind] += ctx.generation.size
            self.opened += definition.kind == "extract"


class DocumentInProgress(msgspec.Struct, frozen=True):
    """A document that a worker has in hand: `done` of `of` pages or chunks (None: nobody knows how many)."""

    name: str
    kind: str
    done: int
    of: int | None
    waiting_on: str | None = None
    items: int = 0
    """What the step gave so far: chunks, where it counts pages."""
    size: int = 0
    """Of the document, in bytes."""

    @property
    def left(self) -> int:
        return max(0, self.of - self.done) if self.of is not None else 0


def in_hand(ctx: "Context") -> DocumentInProgress:
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
    return DocumentInProgress(ctx.document.name, kind, done, of, ctx.waiting_on, ctx.position, ctx.generation.size)


def _reported(ctx: "Context", kind: str, name: str) -> int | None:
    """What an earlier step of this kind reported; a workflow of one's own may have none."""
    for definition in ctx.state.workflow.steps[: ctx.step.position]:
        if definition.kind == kind and definition.name in ctx.state.artifacts:
            found: Any = ctx.state.artifacts[definition.name].meta.get(name)
            return found if isinstance(found, int) else None
    return None


def to_come(
    counters: Counters, hands: Sequence[DocumentInProgress], total: int, ended: int, size: int | None = None
) -> dict[str, int]:
    """About how many pages, chunks, vectors and rows are still to be made of `total` documents, of `size` bytes
    together. What is in hand says so itself; what nobody has opened yet is taken to hold as much for each byte as what
    has passed. Empty while nothing has."""
    so_far = counters.items + Counter({kind: sum(hand.items for hand in hands if hand.kind == kind) for kind in KINDS})
    left = {kind: sum(hand.left for hand in hands if hand.kind == kind) for kind in KINDS}
    unopened = _unopened(counters, hands, total, ended, size)
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
    counters: Counters, hands: Sequence[DocumentInProgress], total: int, ended: int, size: int | None
) -> float:
    """Bytes of documents of which nobody knows anything yet."""
    here = sum(counters.ended.values())
    reading = [hand for hand in hands if hand.kind == "extract" and hand.of is not None]
    seen = counters.passed["extract"] + sum(hand.size for hand in reading)
    if size is None:
        size = round(total * seen / (counters.opened + len(reading))) if counters.opened or reading else 0
    by_others = max(0, ended - here)
    return max(0.0, size * (total - by_others) / total - seen) if total else 0.0


def left_s(counters: Counters, more: dict[str, int], now: float) -> float | None:
    """About how many seconds: each stage takes as long for an item as it did so far. Steps side by side share the time
    that passed. The index has but one writer, and a commit of many rows takes hardly longer than one of few."""
    if counters.began is None or not more or not counters.made["embed"]:
        # Of a stage that has not begun nobody knows how long it takes.
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
