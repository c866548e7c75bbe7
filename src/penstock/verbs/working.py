"""The workers of an open app. Each call that executes steps makes its own."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from penstock.embedders.base import Remote
from penstock.errors import LedgerDamaged, Refused, StorageError
from penstock.ledger.engine import generations
from penstock.model.nouns import WorkerId
from penstock.model.states import DocumentStatus
from penstock.verbs.jobs import Summary
from penstock.verbs.resources import Resources
from penstock.worker.counters import Counters

if TYPE_CHECKING:
    from penstock.worker.budget import Budget
    from penstock.worker.children import FoundChildren, SubmitChildren
    from penstock.worker.outage import Outage
    from penstock.worker.pool import Worker
    from penstock.worker.services import WorkerServices

PROVIDERS = ("openai", "azure", "ollama", "cohere")
COMPANY = 512
"""Small documents that wait for each other to make full calls to an embedding provider."""
IN_HAND = 4
"""Runs that a worker holds for each slot: while some are being committed, others are executed."""


def pool_sizes(text: str) -> dict[str, int]:
    """Parse `extract=2,*=4` into sizes by queue."""
    from penstock.stages.registry import KINDS
    from penstock.worker.pools import parse_pools
    from penstock.workflows.read import OPEN_KINDS

    return parse_pools(text, (*KINDS, *OPEN_KINDS))


def start_worker(
    resources: Resources,
    budget_s: float | None,
    began: float,
    pools: Mapping[str, int] | None = None,
    *,
    children: bool = True,
    max_cost: float | None = None,
) -> "Worker":
    """Make a worker. No other function does this. `children`: documents found inside others are submitted. `max_cost`:
    what it may spend, in US dollars."""
    resources.ledger.database.refuse_read_only()
    from penstock.events.dispatcher import EventDispatcher
    from penstock.worker.budget import Budget
    from penstock.worker.pool import Worker

    config = resources.config
    budget = Budget(resources.runtime, budget_s, resources.paces, began, max_cost)
    services = _services(resources, budget, pools, children)
    dispatcher = EventDispatcher(
        resources.ledger,
        resources.runtime,
        services.worker,
        resources.app,
        config.webhooks,
        resources.metrics,
        config.serve.private_webhooks,
    )
    slots = IN_HAND * config.worker.slots
    worker = Worker(
        services,
        resources.liveness(),
        slots=slots,
        chores=[_dropping(resources), _reindexing(resources), _purging(resources, services)],
        dispatcher=dispatcher,
    )
    resources.workers.add(worker)
    if resources.stopping:
        resources.stop()
    return worker


def _services(
    resources: Resources, budget: "Budget", pools: Mapping[str, int] | None, children: bool
) -> "WorkerServices":
    from penstock.stages.registry import GROUPED, STAGES
    from penstock.worker.retry import RetryPolicy
    from penstock.worker.services import WorkerServices

    config, runtime = resources.config, resources.runtime
    return WorkerServices(
        ledger=resources.ledger,
        blobs=resources.blobs,
        ports=resources.ports,
        runtime=runtime,
        stages=STAGES,
        worker=WorkerId(runtime.ulid()),
        lease_s=config.worker.lease_s,
        policy=RetryPolicy(),
        budget=budget,
        slots=config.worker.slots,
        broadcast=resources.broadcast,
        pools=pools,
        metrics=resources.metrics,
        limits=config.targets,
        company=COMPANY if _calls_provider(resources) else 0,
        gather_s=config.worker.gather_s,
        share_bought=config.retention.share_bought,
        grouped=GROUPED,
        drops_small=config.drops_small,
        submit_children=_child_submitter(resources) if children else None,
    )


def _calls_provider(resources: Resources) -> bool:
    """Whether an embedder in the settings calls a server. Those of collections are not made here: one that lacks its
    key must not keep the worker from other documents."""
    own = [one.embedder for one in resources.config.collections.values() if one.embedder is not None]
    return isinstance(resources.ports.embedder, Remote) or any(name.partition(":")[0] in PROVIDERS for name in own)


def _dropping(resources: Resources) -> Callable[[], Awaitable[int]]:
    """Return the function that the worker calls periodically to complete drops that were interrupted."""
    from penstock.upkeep.drop import finish_drops

    return lambda: finish_drops(resources.ledger)


def _reindexing(resources: Resources) -> Callable[[], Awaitable[bool]]:
    """Return the function that the worker calls periodically to continue re-indexes."""
    from penstock.upkeep.reindex import advance_all

    return lambda: advance_all(resources.ledger)


def _child_submitter(resources: Resources) -> "SubmitChildren":
    """Return the function that submits documents found inside others. They go through the same intake as files."""
    from penstock.intake import Intake, RunSpec
    from penstock.verbs.children import submit_children

    async def submit(found: "FoundChildren") -> list[str]:
        document, origin = found.document, found.origin
        spec = RunSpec(
            document.owner,
            document.collection,
            found.workflow,
            origin.settings,
            origin.priority,
            origin.batch,
            password=found.password,
            parent=found.parent,
        )
        intake = Intake(resources.ledger, resources.blobs, resources.runtime)
        receipts = await submit_children(intake, spec, document.source, found.children, dict(document.metadata))
        return [receipt.problem or receipt.source for receipt in receipts if receipt.id is None]

    return submit


def _purging(resources: Resources, services: "WorkerServices") -> Callable[[], Awaitable[bool]]:
    """Return the function that the worker calls periodically to purge what is due. It returns whether there was
    anything to purge."""
    from penstock.upkeep.purge import purge

    def failed(key: str, error: BaseException) -> None:
        services.notices.fails(f"{key}, purge", error, "What was replaced there is taken out later")

    async def purge_due() -> bool:
        found = bool(await resources.ledger.read(generations.due_purges, 1))
        if found:
            await purge(resources.ledger, resources.ports.index, services.worker, failed=failed)
        return found

    return purge_due


async def work(
    resources: Resources, pools: str | None, report: Callable[[str], None], sweep: Callable[[], Awaitable[None]]
) -> Summary:
    """Execute steps of all owners until the app is stopped. When storage fails, wait until it can be used again.
    `sweep` finishes what calls left undone, until it is cancelled."""
    runtime, patience = resources.runtime, resources.ledger.database.outage_wait
    began = runtime.clock()
    sizes = pool_sizes(pools) if pools is not None else None
    counters, outage = Counters(), _outage(resources, report)
    patience.limit_s, patience.say = None, report
    while True:
        worker = start_worker(resources, None, began, sizes)
        tending = asyncio.gather(resources.maintenance.tend(worker.services.worker), sweep())
        try:
            await worker.run(None)
            break
        except (LedgerDamaged, Refused):
            # Waiting does not help if the ledger is damaged or rejects a statement.
            raise
        except StorageError as error:
            failed = error
        finally:
            tending.cancel()
            await asyncio.gather(tending, return_exceptions=True)
            counters.made.update(worker.services.record.counters.made)
            counters.ended.update(worker.services.record.counters.ended)
        if resources.stopping or not await outage.outlast(failed, worked=worker.steps_done > 0):
            break
    return Summary(
        completed=counters.ended[DocumentStatus.COMPLETED],
        not_indexable=counters.ended[DocumentStatus.NOT_INDEXABLE],
        unsupported=counters.ended[DocumentStatus.UNSUPPORTED],
        failed=counters.ended[DocumentStatus.FAILED],
        elapsed_s=round(runtime.clock() - began, 3),
        interrupted=resources.stopping,
        made=counters.named(),
    )


def _outage(resources: Resources, report: Callable[[str], None]) -> "Outage":
    from penstock.worker.outage import Outage

    folders, database = resources.local_folders(), resources.ledger.database
    if database.dialect == "sqlite":
        folders.append(database.path.parent)
    return Outage(resources.runtime, folders, resources.ledger.is_there, report, lambda: resources.stopping)
