"""Opening and closing the app, and the methods that affect all owners. The methods for one owner are in `verbs/`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from penstock import wiring
from penstock.blobs.base import Blobs
from penstock.blobs.local import make_home
from penstock.blobs.overlay import OverlayBlobs
from penstock.config import Config, ConfigKeywords, check_config, load_config
from penstock.errors import LedgerDamaged, UsageError
from penstock.indexes import highest
from penstock.ledger.blobs import LedgerBlobs
from penstock.ledger.database import histories
from penstock.ledger.database.database import Database
from penstock.ledger.database.migrations import LATEST
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import work
from penstock.metrics.base import NULL_METRICS, Metrics, SafeMetrics
from penstock.model.callers import LOCAL
from penstock.redaction import tighten
from penstock.runtime import Failpoints, Runtime
from penstock.upkeep.restore_marker import refuse_half_restored
from penstock.verbs import actions, arguments, consuming, jobs, uploads, views, working
from penstock.verbs.consuming import Consumed
from penstock.verbs.jobs import Job, Report, Summary
from penstock.verbs.owner import OwnerScope
from penstock.verbs.resources import Resources
from penstock.verbs.usage import UsageReport, check_max_cost, usage_of_all
from penstock.verbs.views import WorkerView
from penstock.worker.broadcast import Listener

if TYPE_CHECKING:
    from penstock.upkeep.backup import BackupReport, ReportProgress
    from penstock.upkeep.prune import Pruned
    from penstock.upkeep.report import CheckReport
    from penstock.upkeep.restore import Places, Restored

PATIENCE_S = 15.0
"""How long a call waits for a PostgreSQL server that is away."""


class App(OwnerScope):
    """An open app. The methods that it inherits work on the configured owner; `for_owner` returns those of another
    owner."""

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        metrics: Metrics | None = None,
        patience_s: float | None = PATIENCE_S,
        blobs: Blobs | None = None,
    ) -> None:
        told = NULL_METRICS if metrics is None else SafeMetrics(metrics)
        ledger = Ledger(Database(config.database_url, runtime), told)
        ledger.database.outage_wait.limit_s = patience_s
        below = blobs if blobs is not None else wiring.make_blobs(config, runtime)
        resources = Resources(
            config,
            runtime,
            ledger,
            LedgerBlobs(ledger, below, config.small_bytes),
            told,
            lambda: wiring.make_parsers(config),
            lambda parsers: wiring.make_ports(config, runtime, parsers),
            lambda urls, include, exclude: wiring.make_sources(urls, config, runtime, include, exclude),
        )
        super().__init__(resources, config.owner)
        resources.app = self
        resources.open_trial = self._open_trial
        resources.make_trial_ports = lambda changed: wiring.make_ports(changed, runtime, resources.parsers)

    def for_owner(self, owner: str, actor: str = LOCAL) -> OwnerScope:
        """Return the methods for one owner. `actor` is who the audit log names for changes."""
        return OwnerScope(self.resources, owner, actor)

    async def run(
        self, *, budget_s: float | None = None, max_cost: float | None = None, report: Report | None = None
    ) -> Summary:
        """Process the queue, for all owners, then stop. `budget_s` and `max_cost` (US dollars) stop it earlier."""
        arguments.seconds("budget_s", budget_s)
        check_max_cost(self.resources, max_cost)
        job = Job(self.owner, self.ledger, self.runtime)
        worker = working.start_worker(self.resources, budget_s, self.runtime.clock(), max_cost=max_cost)
        return await jobs.run(job, worker, report)

    async def work(self, *, pools: str | None = None, report: Callable[[str], None] = lambda text: None) -> Summary:
        """Process the queue, for all owners, until `stop` is called. Return the number of documents that ended here, by
        status. `pools` names the kinds of steps to claim and the number of slots of each, as in
        `extract=2,embed=4,index=1,*=4`. When the disk is full or fails, or the PostgreSQL server is away, the worker
        waits and reports this to `report`."""
        return await working.work(self.resources, arguments.maybe("pools", pools), report, self._sweep)

    async def consume(
        self,
        url: str,
        *,
        owner: str | None = None,
        places: Sequence[str] = (),
        collection: str | None = None,
        workflow: str | None = None,
        params: str | None = None,
        priority: int = 0,
        queue_limit: int = consuming.QUEUE,
        until_empty: bool = False,
        report: Callable[[str], None] = lambda text: None,
        on_lag: Callable[[int], None] = lambda lag: None,
    ) -> Consumed:
        """Follow the messages of a stream (`kafka://HOST:PORT/TOPIC`, `sqs://QUEUE`) until the app is stopped, or until
        the stream is empty: submit the objects that they name, and delete the documents of objects that were removed.
        Workers process the documents. `owner` is the only owner that messages may name; `places` are the buckets or
        prefixes (`s3://BUCKET/PREFIX`) that they may name. While more than `queue_limit` steps wait, no messages are
        taken. `on_lag` is called with the number of messages that the stream still has."""
        order = consuming.Wanted(owner, tuple(places), collection, workflow, params, priority, queue_limit, until_empty)
        return await consuming.consume(self, self.for_owner, url, order, report, on_lag)

    async def _sweep(self) -> None:
        await asyncio.gather(uploads.sweep_uploads(self), actions.follow_actions(self))

    async def run_actions(self) -> int:
        """Do the bulk actions of all owners that nobody works on, and return how many. Workers do this too."""
        return await actions.run_actions(self)

    def events(self, until: "asyncio.Future[Any] | None" = None) -> Listener:
        """Yield the live events of the workers of this app: `async for event in app.events(): …`. The iteration ends
        when the task `until` is done, and raises its exception if it has one. It always ends when the app is closed.
        The ledger contains what an event reports. There can be several listeners. A listener that is more than 10,000
        events behind loses the oldest ones; `missed` counts them. A step that is released or cancelled has no end event
        here, because another process may end it."""
        return self.resources.broadcast.listen(until)

    def stop(self) -> None:
        """Release the running steps within two seconds. Checkpoints are kept. Signal handlers of the event loop may
        call this."""
        self.resources.stop()

    async def count_workers(self) -> int:
        """Return the number of workers that are alive, in all processes."""
        return sum(worker.alive for worker in await self.list_workers())

    async def list_workers(self) -> list[WorkerView]:
        """Return the workers of this ledger, for all owners. A worker that is not alive has died, and its steps were
        not reaped yet."""
        return await views.list_workers(self.ledger, self.resources.liveness())

    async def check(
        self, *, repair: bool = False, sample: float = 1.0, progress: Callable[[str, int], None] | None = None
    ) -> "CheckReport":
        """Like `check` of one owner, for all owners."""
        arguments.share("sample", sample)
        return await self.resources.maintenance.check(None, repair=repair, sample=sample, progress=progress)

    async def usage_of_all(self, *, days: int | None = None) -> UsageReport:
        """Like `usage` of one owner, for all owners."""
        return await usage_of_all(self.ledger, self.runtime, days)

    async def prune(self, *, older_than_s: float | None = None, dry_run: bool = False) -> "Pruned":
        """Remove unreferenced data, old history, and artifacts that `keep_artifacts` does not keep. Return the counts.
        `older_than_s` is the minimum age of unreferenced data and of history. The defaults are a day for unreferenced
        data and `retention.history_days` for history. Bytes of a submit in progress are kept, whatever their age. With
        `dry_run`, nothing is removed, only counted."""
        return await self.resources.maintenance.prune(arguments.seconds("older_than_s", older_than_s), dry_run=dry_run)

    async def backup(self, folder: str | Path, *, report: "ReportProgress | None" = None) -> "BackupReport":
        """Copy a consistent state of the ledger, the blobs that it names, and the index into a folder, while workers
        run. Blobs that an earlier backup in the folder contains are not copied again. `restore` creates a home from the
        folder."""
        return await self.resources.maintenance.backup(arguments.folder("folder", folder), report)

    def _places(self) -> "Places":
        from penstock.upkeep.restore import Places

        chosen = self.config
        if chosen.blobs_path is None or chosen.index_path is None:
            raise UsageError("a backup can be restored only where blobs and index are kept in folders")
        return Places(chosen.home_path, self.ledger.database, self.blobs, chosen.blobs_path, chosen.index_path)

    async def _open(self, *, migrate: bool = False) -> None:
        refuse_half_restored(self.config.home_path)
        await self.runtime.run_blocking("io", self._make_home)
        await self.ledger.open(migrate=migrate)
        await self._notice_older_ledger()
        self.resources.paces = await self.ledger.read(work.paces)

    @asynccontextmanager
    async def _open_trial(self, config: Config, folder: Path) -> AsyncIterator[Resources]:
        """Open an app with its own ledger and index in a folder, which reads the blobs of this one."""
        inside = msgspec.structs.replace(
            config, home=str(folder), database=None, blobs=None, index=None, keep_artifacts="always"
        )
        runtime = Runtime(Failpoints(config.failpoints))
        app = App(inside, runtime, blobs=OverlayBlobs(wiring.make_blobs(inside, runtime), self.blobs))
        try:
            await app._open()
            yield app.resources
        finally:
            await app.resources.close()

    async def _refuse_restore(self, force: bool) -> None:
        from penstock.ledger.upkeep import backup_tables
        from penstock.upkeep.restore import is_empty

        places = self._places()
        empty = is_empty(places)
        if self.ledger.database.dialect == "postgres":
            await self.ledger.open(migrate=True)
            empty = empty and await self.ledger.read(backup_tables.is_empty)
        await self._refuse_in_use()
        if not (empty or force):
            raise UsageError(
                f"{places.home} is not empty: use another home, or replace its content with --force; documents that "
                "the backup does not contain are then lost"
            )

    async def _refuse_in_use(self) -> None:
        """Raise UsageError if a worker is alive. A restore calls this at its start, and again before it replaces
        anything, because copying may take long."""
        from penstock.ledger.upkeep import backup_tables

        database = self.ledger.database
        if database.dialect == "postgres":
            alive = await self.count_workers()
        else:
            alive = await self.runtime.run_blocking("io", self.resources.liveness().count)
        if alive:
            raise UsageError(
                f"a worker is running in {self.config.home_path} (`penstock workers`): stop it, then restore"
            )
        if database.dialect == "sqlite" and database.path.exists():
            with suppress(LedgerDamaged):
                await self.runtime.run_blocking("io", backup_tables.single_file, database.path)

    async def _notice_older_ledger(self) -> None:
        index = self.config.index_path
        noticed = await self.ledger.notice(highest.read(index) if index is not None else 0)
        if noticed is not None:
            # A program that embeds Penstock may not show the log. `check` reports this too, until it is repaired.
            logging.getLogger("penstock").warning("%s", histories.sentence(noticed))

    def _make_home(self) -> None:
        make_home(self.config.home_path)
        tighten((self.config.home_path, *self.resources.local_folders()))


@asynccontextmanager
async def open_app(
    config: Config | None = None,
    *,
    metrics: Metrics | None = None,
    patience_s: float | None = PATIENCE_S,
    **settings: Unpack[ConfigKeywords],
) -> AsyncIterator[App]:
    """Open an app: `async with open_app(home="…") as app:`. Pass single settings by name, or a complete Config.
    `metrics` receives counters and measurements. `patience_s` is how long a call waits for a PostgreSQL server that is
    away (None: without limit). The wait is reported to the logger `penstock.ledger`."""
    chosen = _chosen(config, settings)
    app = App(chosen, Runtime(Failpoints(chosen.failpoints)), metrics, patience_s)
    try:
        await app._open()
        yield app
    finally:
        await app.resources.close()


def _chosen(config: Config | None, settings: Mapping[str, Any]) -> Config:
    if config is None:
        return load_config(settings)
    if settings:
        raise UsageError(f"pass a Config or single settings, not both ({', '.join(settings)})")
    return check_config(config)


class RestoreReport(msgspec.Struct, frozen=True):
    """What was restored, and the result of `check --repair` after it."""

    restored: "Restored"
    check: "CheckReport"
    elapsed_s: float


async def restore(
    folder: str | Path,
    config: Config | None = None,
    *,
    force: bool = False,
    report: "ReportProgress | None" = None,
    **settings: Any,
) -> RestoreReport:
    """Create a home from a backup. If the home is not empty, this raises UsageError, unless `force` is set: then the
    ledger and the index of the home are replaced. It always raises UsageError while a worker is alive there."""
    from penstock.upkeep.restore import Restore

    source = arguments.folder("folder", folder)
    chosen = _chosen(config, settings)
    app = App(chosen, Runtime(Failpoints(chosen.failpoints)))
    began = app.runtime.clock()
    try:
        await app._refuse_restore(force)
        restored = await Restore(source, app._places(), report).run(app._refuse_in_use)
        await app._open()
        check = await app.check(repair=True)
        return RestoreReport(restored, check, round(app.runtime.clock() - began, 3))
    finally:
        await app.resources.close()


async def migrate(config: Config) -> int:
    """Migrate the ledger to the schema of this version, even if it is shared. Return the version of the schema."""
    app = App(config, Runtime())
    try:
        await app._open(migrate=True)
        return LATEST
    finally:
        await app.resources.close()
