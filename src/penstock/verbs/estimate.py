"""`estimate`: what an ingest would need and cost, without buying anything. Some of the files are read and split in a
folder of their own, and the rest is expected to be like them."""

import hashlib
import heapq
import tempfile
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.config import CollectionConfig, Config
from penstock.config_providers import LOCAL
from penstock.embedders.base import Embedder, Model, outline
from penstock.errors import UsageError
from penstock.intake import Intake, RunSpec
from penstock.intake_items import SubmitItem
from penstock.ledger.engine import limits, usage, work
from penstock.model.nouns import DocumentId, StepDefinition, Workflow
from penstock.model.usage import NANO, cost
from penstock.stages import buying
from penstock.stages.embed import BATCH
from penstock.verbs import jobs, views
from penstock.verbs.ingest import Given, InCollection
from penstock.verbs.ingest_plan import IngestPlan, Looked, make_plan
from penstock.verbs.jobs import Job, Report
from penstock.verbs.run_specs import RunSpecs
from penstock.verbs.scope import Scope, chosen_collection
from penstock.verbs.working import start_worker
from penstock.worker.bought import place_of, stored_keys
from penstock.worker.context import reader
from penstock.worker.limits import known_limits
from penstock.workflows.routing import END

if TYPE_CHECKING:
    from penstock.verbs.resources import Resources

MEASURED = 50
"""Up to this many files of each type are read."""
LOOKED = 500
"""How many texts are compared with the bought answers at once."""


class Estimate(msgspec.Struct, frozen=True):
    """What an ingest would need. All numbers but those of the plan are estimates if not all files were measured."""

    documents: int
    """New and changed files of formats that can be read."""
    measured: int
    """How many of them were read for this estimate. The others are expected to be like them."""
    pages: int
    chunks: int
    tokens: int
    cached_chunks: int
    """Chunks whose vectors were bought before."""
    cached_tokens: int
    embedder: str
    cost: float | None
    """US dollars for the tokens that are not cached; None: the price of the embedder is not known."""
    seconds: float | None
    """At the measured speed; None: nothing was embedded yet."""
    plan: IngestPlan


@dataclass
class _Counts:
    documents: int = 0
    size: int = 0
    pages: float = 0
    chunks: float = 0
    tokens: float = 0
    cached_chunks: float = 0
    cached_tokens: float = 0

    def add(self, other: "_Counts", times: float = 1.0) -> None:
        for name in ("pages", "chunks", "tokens", "cached_chunks", "cached_tokens"):
            setattr(self, name, getattr(self, name) + times * getattr(other, name))


@dataclass
class _Sample:
    """The files of one type: how many there are, and those with the smallest hashes."""

    documents: int = 0
    size: int = 0
    chosen: list[tuple[int, str, SubmitItem, int]] = field(default_factory=list)

    def add(self, item: SubmitItem, size: int) -> None:
        self.documents, self.size = self.documents + 1, self.size + size
        rank = -int.from_bytes(hashlib.sha256(item.uri.encode(errors="surrogatepass")).digest()[:8])
        entry = (rank, item.uri, item, size)
        if len(self.chosen) < MEASURED:
            heapq.heappush(self.chosen, entry)
        else:
            heapq.heappushpop(self.chosen, entry)


async def estimate(
    scope: Scope,
    paths: str | Path | Sequence[str | Path],
    *,
    manifest: str | Path | None = None,
    collection: str | None = None,
    workflow: str | None = None,
    params: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    again: bool = False,
    report: Report | None = None,
) -> Estimate:
    """Return what `ingest` would do with these files and folders, how many pages, chunks and tokens they have, what
    their embeddings would cost, and how long it would take. Up to 50 files of each type are read and split, locally and
    in a temporary folder. Nothing is bought, and nothing is written to the home."""
    where = chosen_collection(scope, collection)
    embedder = scope.ports.embedder_for(scope.config.embed_parameters(where))
    config = _local(scope.config, where)
    specs = RunSpecs(config, scope.runtime, scope.catalog, lambda: scope.resources.make_trial_ports(config))
    spec = specs.start(scope.owner, where, specs.asked(where, workflow, params), retry=True)
    spec = replace(spec, workflow=_cut(spec.workflow), group=None)
    given = Given.of_files(scope, paths, InCollection(scope, where), include, exclude, manifest)
    await given.recall(where, again=False)
    if again:
        given.forgotten = frozenset()
    samples: dict[str, _Sample] = {}

    def sort(item: SubmitItem, looked: Looked) -> None:
        if looked.state != "unchanged" and looked.media_type in scope.ports.extractors:
            samples.setdefault(looked.media_type, _Sample()).add(item, looked.size)

    async with given:
        plan = await make_plan(scope, where, given.items(work=False), sort)
        plan = msgspec.structs.replace(plan, forgotten=given.kept_away, problems=[*plan.problems, *given.problems])
        measured = await _measure(scope, config, spec, samples, embedder, report)
    return await _extrapolated(scope, plan, samples, measured, embedder)


def _local(config: Config, collection: str) -> Config:
    """The settings with local extraction and no embedder: nothing is bought."""
    own = config.collections.get(collection) or CollectionConfig()
    own = msgspec.structs.replace(own, extractor=LOCAL, embedder=None)
    return msgspec.structs.replace(
        config,
        collections={**config.collections, collection: own},
        extractor=LOCAL,
        embedder="fake",
        webhooks={},
        workflows=str(config.folder(config.workflows, "workflows")),
        parameter_sets=str(config.folder(config.parameter_sets, "params")),
    )


def _cut(workflow: Workflow) -> Workflow:
    """The workflow up to its chunk steps, without events."""

    def cut(step: StepDefinition) -> StepDefinition:
        return msgspec.structs.replace(step, next=END) if step.kind == "chunk" else step

    steps = workflow.steps
    ends = [at for at, step in enumerate(steps) if step.kind == "chunk"]
    own = [step.name for step in steps[: ends[0] if ends else len(steps)] if step.method is not None]
    if own or not ends:
        why = f"the step {own[0]!r} is a function, which may have effects" if own else "it has no chunk step"
        raise UsageError(f"workflow {workflow.id!r} cannot be estimated: {why}. --dry-run shows what would be ingested")
    return msgspec.structs.replace(workflow, steps=tuple(map(cut, steps)), lifecycle_events={}, asked=None)


@dataclass
class _Measured:
    seconds: float = 0.0
    seen: set[str] = field(default_factory=set)
    """The texts so far, by key: one that is there twice is bought once."""
    by_type: dict[str, _Counts] = field(default_factory=dict)


async def _measure(
    scope: Scope,
    config: Config,
    spec: RunSpec,
    samples: dict[str, _Sample],
    embedder: Embedder,
    report: Report | None,
) -> _Measured:
    measured = _Measured()
    chosen = {item.uri: (kind, item, size) for kind, one in samples.items() for _, _, item, size in one.chosen}
    if not chosen:
        return measured

    async def items() -> AsyncGenerator[SubmitItem, None]:
        for _, item, _ in chosen.values():
            if scope.resources.stopping:
                return
            yield item

    resources = scope.resources
    with tempfile.TemporaryDirectory(prefix="penstock-estimate-") as folder:
        async with resources.open_trial(config, Path(folder)) as opened:
            resources.trial = opened
            try:
                inner = Scope(opened, scope.owner)
                job = Job(inner.owner, inner.ledger, inner.runtime)
                intake = Intake(inner.ledger, inner.blobs, inner.runtime)
                began = inner.runtime.clock()
                await jobs.ingest(job, intake, spec, items(), lambda: start_worker(opened, None, began), report)
                measured.seconds = inner.runtime.clock() - began
                await _count(scope, inner, chosen, embedder, measured)
            finally:
                resources.trial = None
    return measured


async def _count(
    scope: Scope,
    inner: Scope,
    chosen: dict[str, tuple[str, SubmitItem, int]],
    embedder: Embedder,
    measured: _Measured,
) -> None:
    """Count the documents of the trial, each for the type of the file that contains it."""
    model = outline(embedder)
    ratio = await _tokens_per_character(scope, model)
    kinds: dict[DocumentId, str] = {}
    async for view in _all(inner):
        kind = kinds[view.parent] if view.parent is not None else chosen[view.source][0]
        kinds[view.id] = kind
        counts = measured.by_type.setdefault(kind, _Counts())
        if view.parent is None:
            counts.documents, counts.size = counts.documents + 1, counts.size + view.size
        counts.pages += view.pages or 0
        texts: list[str] = []
        async for chunks in views.items(inner.owner, inner.ledger, reader(inner.ledger, inner.blobs), view.id, "chunk"):
            texts += [chunk.text for chunk in chunks]
            if len(texts) >= LOOKED:
                await _add(scope, counts, model, texts, ratio, measured.seen)
                texts = []
        await _add(scope, counts, model, texts, ratio, measured.seen)


async def _all(inner: Scope) -> "AsyncGenerator[views.DocumentView, None]":
    """All documents, parents before their children."""
    from penstock.verbs.documents import list_documents

    found: list[views.DocumentView] = []
    after: str | None = None
    while page := await list_documents(inner, limit=1000, after=after):
        found += page
        after = page[-1].id
    for view in reversed(found):
        yield view


async def _add(
    scope: Scope, counts: _Counts, model: Model, texts: Sequence[str], ratio: float | None, seen: set[str]
) -> None:
    keys = [buying.key(model, text) for text in texts]
    if model.paid and model.dimensions and texts:
        place = place_of(scope.owner, shared=scope.config.retention.share_bought)
        seen |= await stored_keys(scope.ledger, place, list(dict.fromkeys(keys)))
    for key, text in zip(keys, texts, strict=True):
        tokens = _tokens(text, ratio)
        counts.chunks, counts.tokens = counts.chunks + 1, counts.tokens + tokens
        if model.paid and key in seen:
            counts.cached_chunks, counts.cached_tokens = counts.cached_chunks + 1, counts.cached_tokens + tokens
        seen.add(key)


def _tokens(text: str, ratio: float | None) -> float:
    return buying.estimated_tokens(text) if ratio is None else ratio * len(text)


async def _tokens_per_character(scope: Scope, model: Model) -> float | None:
    """What the provider has counted so far; None: nothing was bought yet."""
    bought = await scope.ledger.read(partial(usage.of_model, scope.owner), model.fingerprint)
    return bought.tokens / bought.characters if bought.characters else None


async def _extrapolated(
    scope: Scope, plan: IngestPlan, samples: dict[str, _Sample], measured: _Measured, embedder: Embedder
) -> Estimate:
    model, whole = outline(embedder), _Counts()
    for kind, counts in measured.by_type.items():
        whole.add(counts, max(1.0, samples[kind].size / counts.size) if counts.size else 1.0)
    tokens = round(whole.tokens - whole.cached_tokens)
    price = model.price if model.paid else 0.0
    size = sum(one.size for one in samples.values())
    read = sum(counts.size for counts in measured.by_type.values())
    making_s = measured.seconds * max(1.0, size / read) if read else 0.0
    return Estimate(
        documents=sum(one.documents for one in samples.values()),
        measured=sum(counts.documents for counts in measured.by_type.values()),
        pages=round(whole.pages),
        chunks=round(whole.chunks),
        tokens=round(whole.tokens),
        cached_chunks=round(whole.cached_chunks),
        cached_tokens=round(whole.cached_tokens),
        embedder=model.name or model.fingerprint,
        cost=None if price is None else cost(tokens, price) / NANO,
        seconds=await _seconds(scope.resources, embedder, whole.chunks - whole.cached_chunks, tokens, making_s),
        plan=plan,
    )


async def _seconds(
    resources: "Resources", embedder: Embedder, chunks: float, tokens: int, making_s: float
) -> float | None:
    """The time at the measured pace of a batch. A provider is called while documents are read; a local model uses the
    same processors."""
    if chunks < 1:
        return making_s
    model, pace = outline(embedder), (await resources.ledger.read(work.paces)).get("embed")
    if pace is None:
        return None
    batches = -(-round(chunks) // min(BATCH, model.max_texts))
    if not model.remote:
        return making_s + batches * pace
    stated = await resources.ledger.read(limits.stated, embedder.target)
    known = limits.merged(known_limits(resources.config.targets, embedder.target), *stated)
    buying_s = batches * pace / min(resources.config.worker.slots, known.calls)
    if known.requests_per_minute:
        buying_s = max(buying_s, 60 * batches / known.requests_per_minute)
    if known.tokens_per_minute:
        buying_s = max(buying_s, 60 * tokens / known.tokens_per_minute)
    return max(making_s, buying_s)
