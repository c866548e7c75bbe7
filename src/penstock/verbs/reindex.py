"""Re-index: make the documents of a collection again with other settings, in the next version of its index, while
searches read the current one."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec

from penstock.config import check_name
from penstock.embedders.base import outline
from penstock.errors import NotFound, UsageError
from penstock.intake import RunSpec
from penstock.ledger.engine import index_versions, reindexes, switches
from penstock.ledger.engine.index_versions import IndexVersion
from penstock.ledger.engine.reindexes import Counts, Reindex
from penstock.ledger.reads import searchable
from penstock.model.usage import NANO, cost
from penstock.stages.buying import estimated_tokens
from penstock.upkeep.prune import DAY_S
from penstock.upkeep.reindex import advance, clear
from penstock.verbs import arguments
from penstock.verbs.documents import show
from penstock.verbs.jobs import PROGRESS_S, Job, Report
from penstock.verbs.reindex_specs import (
    PAGE,
    affected,
    embedder_of,
    given_names,
    is_changed,
    is_elsewhere,
    is_made_with,
    recipe_of,
    spec_of,
    store_named,
    with_former_embedder,
)
from penstock.verbs.scope import Scope, chosen_collection
from penstock.verbs.usage import check_max_cost
from penstock.verbs.working import start_worker
from penstock.workflows.load import decode

MEASURED = 50
"""The texts of up to this many documents are counted for an estimate."""


class ReindexView(msgspec.Struct, frozen=True):
    """The re-index of a collection."""

    collection: str
    state: Literal["none", "unchanged", "building", "paused", "cancelling", "done"]
    """`unchanged`: all documents are made with these settings already, so nothing was started. `none`: no re-index is
    under way, and none can be undone."""
    version: int | None = None
    """The index version that is built; when done, the current one."""
    former: int | None = None
    documents: int = 0
    """The documents with text in the collection."""
    staged: int = 0
    """How many of them are in the next version."""
    working: int = 0
    failed: int = 0
    """Documents whose run for the next version failed: the switch waits until they are retried or deleted."""
    others: int = 0
    """Documents that are being ingested: the switch waits for them."""
    embedder: str | None = None
    """The fingerprint of the embedder of that version."""
    index: str | None = None
    """Where that version is, if a collection was moved: the name or URL of the index, or `home`."""
    given: dict[str, str | int | float | bool] = {}
    """The values that were given, as in `{"embedder": "…", "chunk.size": 500}`."""
    begun_at: float | None = None
    ended_at: float | None = None
    undo_until: float | None = None
    """Until then the former version is kept. None: there is nothing to undo."""
    cost: float = 0.0
    """What this call has spent, in US dollars."""
    interrupted: bool = False
    """This call was stopped before the end. A worker, or the same call, continues."""


class ReindexEstimate(msgspec.Struct, frozen=True):
    """What a re-index would do."""

    collection: str
    documents: int
    changed: int
    """Documents that were made with other settings. If there is none, nothing would be started."""
    steps: tuple[str, ...]
    """The kinds of steps that are executed again. The others use what is stored."""
    from_raw: int
    """Documents whose pages, chunks and vectors were dropped: these are made from their raw bytes."""
    chunks: int
    """The chunks of the current version."""
    tokens: int
    """About so many tokens are embedded. Those of texts that were bought before cost nothing."""
    embedder: str
    index: str | None
    """Where the next version would be, if that is not where the current one is."""
    cost: float | None
    """US dollars at most, about; None: the price is not known."""


async def reindex(
    scope: Scope,
    collection: str | None = None,
    *,
    embedder: str | None = None,
    values: Mapping[str, Mapping[str, Any]] | None = None,
    index: str | None = None,
    again: bool = False,
    wait: bool = True,
    budget_s: float | None = None,
    max_cost: float | None = None,
    report: Report | None = None,
) -> ReindexView:
    """Make the documents of a collection again for the next version of its index: with the present settings, another
    `embedder`, or other `values` of steps, as in `{"chunk": {"size": 500}}`. `index` moves it to another index: a URL
    as in the setting `index`, or a name below `indexes`. Only the steps that these affect are executed; everything else
    is read from what is stored. Searches use the current version until every document is in
    the next one at its newest content. Then all of them switch at once.

    The call can be interrupted at any time. A worker, or the same call, continues. With `wait=False` workers do all
    of it. If all documents are made with these settings already, nothing is started, unless `again` is set."""
    scope.ledger.database.refuse_read_only()
    where = chosen_collection(scope, collection)
    arguments.seconds("budget_s", budget_s)
    check_max_cost(scope.resources, max_cost)
    given = arguments.values(values)
    spec = spec_of(scope, where, arguments.maybe("embedder", embedder), given)
    store = await store_named(scope, arguments.maybe("index", index))
    one = await _continued(
        scope, where, spec if embedder is not None or given else None, None if index is None else store
    )
    if one is None:
        if not again and not await is_changed(scope, spec, store):
            view = await reindex_status(scope, where)
            return msgspec.structs.replace(view, state="unchanged")
        one = await _begin(scope, spec, store, given_names(embedder, given, index))
    if not wait:
        await advance(scope.ledger, one)
        return await reindex_status(scope, where)
    return await _work(scope, where, budget_s, max_cost, report)


async def reindex_status(scope: Scope, collection: str | None = None) -> ReindexView:
    """Return how far the re-index of a collection is. Raises NotFound if there is no such collection."""
    where = chosen_collection(scope, collection)
    async with scope.ledger.snapshot() as snapshot:
        one = await snapshot.read(lambda c: reindexes.get(scope.owner, c, where))
        version = await snapshot.read(lambda c: index_versions.current(scope.owner, c, where))
        if version is None:
            raise NotFound(f"no collection {where!r}: `penstock collection list` shows all collections")
        if one is None:
            return ReindexView(where, "none", version.version, embedder=version.embedder, index=version.store)
        counts = await snapshot.read(partial(reindexes.counts, scope.owner), where, one.version)
        target = await snapshot.read(lambda c: index_versions.of(scope.owner, c, where, one.version))
    return _view(scope, one, counts, target)


def _view(scope: Scope, one: Reindex, counts: Counts, target: IndexVersion | None) -> ReindexView:
    done = one.state == "DONE"
    kept_s = scope.config.retention.former_index_days * DAY_S
    states = {"BUILDING": "building", "PAUSED": "paused", "CANCELLING": "cancelling", "DONE": "done"}
    return ReindexView(
        one.collection,
        states[one.state],  # type: ignore[arg-type]
        one.version,
        one.former,
        counts.documents,
        counts.documents if done else counts.staged,
        counts.working,
        0 if done else counts.failed,
        counts.others,
        None if target is None else target.embedder,
        None if target is None else target.store,
        one.recipe.given,
        one.begun_at,
        one.ended_at,
        one.ended_at + kept_s if one.ended_at is not None else None,
    )


async def pause_reindex(scope: Scope, collection: str | None = None) -> ReindexView:
    """Start no more runs of a re-index. Those that have been started end. `reindex` continues."""
    return await _change(scope, collection, "PAUSED")


async def cancel_reindex(scope: Scope, collection: str | None = None) -> ReindexView:
    """Give up a re-index that has not ended. The current version stays as it is. If this call is interrupted, a worker
    or the same call completes it."""
    where = chosen_collection(scope, collection)
    view = await _change(scope, where, "CANCELLING")
    one = await scope.ledger.read(lambda c: reindexes.get(scope.owner, c, where))
    if one is not None and one.state == "CANCELLING":
        await clear(scope.ledger, one, one.version)
        return await reindex_status(scope, where)
    return view


async def _change(scope: Scope, collection: str | None, state: reindexes.State) -> ReindexView:
    scope.ledger.database.refuse_read_only()
    where = chosen_collection(scope, collection)
    view = await reindex_status(scope, where)
    if view.state in ("none", "done"):
        raise UsageError(f"no re-index of collection {where!r} is under way")
    await scope.ledger.write(reindexes.CHANGE_REINDEX, reindexes.Change(scope.owner, where, state))
    return await reindex_status(scope, where)


async def undo_reindex(
    scope: Scope, collection: str | None = None, *, wait: bool = True, report: Report | None = None
) -> ReindexView:
    """Go back to the former version of the index, as long as it is kept (`retention.former_index_days`). Documents that
    were changed or added since then are made for it first."""
    scope.ledger.database.refuse_read_only()
    where = chosen_collection(scope, collection)
    view = await reindex_status(scope, where)
    one = await scope.ledger.read(lambda c: reindexes.get(scope.owner, c, where))
    if one is None or view.state != "done":
        under_way = (
            "a re-index or an undo is under way: `penstock reindex` continues it"
            if one is not None
            else "no former index is kept"
        )
        raise UsageError(f"there is nothing to undo in collection {where!r}: {under_way}")
    version = await scope.ledger.read(lambda c: index_versions.of(scope.owner, c, where, one.former))
    setting = version.setting if version is not None else None
    recipe = with_former_embedder(scope, one.former_recipe, where, setting)
    await scope.ledger.write(switches.UNDO, switches.Undo(scope.owner, where, recipe))
    started = await scope.ledger.read(lambda c: reindexes.get(scope.owner, c, where))
    if started is not None:
        await advance(scope.ledger, started)
    if not wait or (await reindex_status(scope, where)).state == "done":
        return await reindex_status(scope, where)
    return await _work(scope, where, None, None, report)


async def estimate_reindex(
    scope: Scope,
    collection: str | None = None,
    *,
    embedder: str | None = None,
    values: Mapping[str, Mapping[str, Any]] | None = None,
    index: str | None = None,
) -> ReindexEstimate:
    """Return what `reindex` would do and about what it would cost. Nothing is changed or bought."""
    where = chosen_collection(scope, collection)
    spec = spec_of(scope, where, arguments.maybe("embedder", embedder), arguments.values(values))
    version = await scope.ledger.read(lambda c: index_versions.current(scope.owner, c, where))
    if version is None:
        raise NotFound(f"no collection {where!r}: `penstock collection list` shows all collections")
    store = await store_named(scope, arguments.maybe("index", index))
    moved = store if is_elsewhere(scope, version, store) else None
    model = outline(embedder_of(scope, spec))
    documents = changed = raw = chunks = 0
    sample: list[str] = []
    after = ""
    while page := await scope.ledger.read(partial(searchable.searchable, scope.owner), where, after, PAGE):
        after, documents = page[-1].id, documents + len(page)
        changed += sum(moved is not None or not is_made_with(one, spec) for one in page)
        raw += sum(one.dropped for one in page)
        chunks += sum(one.chunks for one in page)
        sample += [one.id for one in page[: MEASURED - len(sample)] if not one.dropped]
    body = await scope.ledger.read(lambda c: reindexes.newest(scope.owner, c, where))
    former = None if body is None else decode(body)
    steps = affected(spec.workflow, former, (model.fingerprint, *model.former_names), version.embedder)
    tokens = 0
    if "embed" in steps and sample:
        texts = [chunk.text for one in sample for chunk in [c async for c in show(scope, one, "chunks")]]
        tokens = round(sum(map(estimated_tokens, texts)) / max(1, len(texts)) * chunks)
    price = model.price if model.paid else 0.0
    dollars = None if price is None else cost(tokens, price) / NANO
    return ReindexEstimate(
        where, documents, changed, steps, raw, chunks, tokens, model.name or model.fingerprint, moved, dollars
    )


async def _continued(scope: Scope, collection: str, spec: RunSpec | None, store: str | None) -> Reindex | None:
    """The re-index that is under way, continued. Raises UsageError if it has other settings than those asked for."""
    one = await scope.ledger.read(lambda c: reindexes.get(scope.owner, c, check_name("collection", collection)))
    if one is not None and one.state == "CANCELLING":
        await clear(scope.ledger, one, one.version)
        return None
    if one is None or one.state == "DONE":
        return None
    target = await scope.ledger.read(lambda c: index_versions.of(scope.owner, c, collection, one.version))
    moved = store is not None and target is not None and is_elsewhere(scope, target, store)
    if moved or (spec is not None and spec.settings != one.recipe.settings):
        raise UsageError(
            f"a re-index of collection {collection!r} with other settings is under way: continue it with `penstock "
            f"reindex --collection {collection}`, or give it up with --cancel"
        )
    return await scope.ledger.write(reindexes.CHANGE_REINDEX, reindexes.Change(scope.owner, collection, "BUILDING"))


async def _begin(scope: Scope, spec: RunSpec, store: str, given: dict[str, Any]) -> Reindex:
    embedder = embedder_of(scope, spec)
    model = embedder.model
    steps = [step for step in spec.workflow.steps if step.kind == "index"]
    setting = str(steps[-1].parameters.get("embedder") or scope.ports.embedder_setting) or None
    order = reindexes.Begin(
        *(scope.owner, spec.collection, recipe_of(spec, given), model.fingerprint, model.dimensions, setting),
        *(store, scope.ports.index_name),
    )
    begun = await scope.ledger.write(reindexes.BEGIN_REINDEX, order)
    if begun is None:
        raise UsageError(f"nothing is indexed in collection {spec.collection!r}: there is nothing to re-index")
    return begun


async def _work(
    scope: Scope, collection: str, budget_s: float | None, max_cost: float | None, report: Report | None
) -> ReindexView:
    """Execute steps until the re-index has ended, or only failed documents are left."""

    async def done() -> bool:
        one = await scope.ledger.read(lambda c: reindexes.get(scope.owner, c, collection))
        if one is None or one.state != "BUILDING":
            return True
        if await advance(scope.ledger, one):
            worker.wake()
            return False
        view = await reindex_status(scope, collection)
        return view.state != "building" or (view.failed > 0 and not view.working and not view.others)

    worker = start_worker(scope.resources, budget_s, scope.runtime.clock(), max_cost=max_cost)
    job = Job(scope.owner, scope.ledger, scope.runtime, worker=worker)
    ticker = asyncio.create_task(_tick(scope, collection, job, report)) if report is not None else None
    try:
        await worker.run(done)
    finally:
        if ticker is not None:
            ticker.cancel()
            with suppress(asyncio.CancelledError):
                await ticker
    view = await reindex_status(scope, collection)
    if report is not None:
        report(job.progress(total=view.documents, ended=view.staged, failed=view.failed))
    spent = worker.services.budget
    interrupted = view.state == "building" and (worker.told_to_stop or spent.spent)
    return msgspec.structs.replace(view, cost=spent.cost / NANO, interrupted=interrupted)


async def _tick(scope: Scope, collection: str, job: Job, report: Report) -> None:
    clock = scope.runtime.clock
    due, view = 0.0, ReindexView(collection, "building")
    while True:
        began = clock()
        if began >= due:
            view = await reindex_status(scope, collection)
            due = began + max(1.0, 20 * (clock() - began))
        report(job.progress(total=view.documents, ended=view.staged, failed=view.failed))
        await scope.runtime.sleep(PROGRESS_S)
