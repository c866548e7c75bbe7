"""Maintenance calls of an app. Each call is registered like a worker, with a heartbeat, so that other processes can
release its locks if it dies."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from penstock.blobs.base import Blobs
from penstock.config import Config, check_name
from penstock.errors import NotFound, PenstockError, UsageError
from penstock.indexes.several import Indexes
from penstock.ledger.database.liveness import Liveness
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import backup_guard, index_versions, locks
from penstock.ledger.engine.locks import Forced, index_key
from penstock.ledger.reads import stats
from penstock.ledger.upkeep import audit_index
from penstock.metrics.base import Metrics
from penstock.model.nouns import Owner, WorkerId
from penstock.runtime import Runtime
from penstock.upkeep.backup import Backup, BackupReport, ReportProgress
from penstock.upkeep.prune import DAY_S, Ages, Prune, Pruned, tend
from penstock.upkeep.report import CheckReport, Stores
from penstock.upkeep.trials import Trials
from penstock.upkeep.vacuum import VacuumReport, vacuum
from penstock.worker.heartbeat import Heartbeat, reap
from penstock.worker.holding import HeldLock, hold
from penstock.worker.retry import RetryPolicy

TEND_S = 60.0
"""Interval at which a worker checks whether to prune."""
BACKUP_WAIT_S = 60.0
"""How long to wait for a backup of another process."""


class MaintenanceRunner:
    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        ledger: Ledger,
        blobs: Blobs,
        index: Callable[[], Indexes],
        liveness: Callable[[], Liveness],
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._ledger = ledger
        self._blobs = blobs
        self._index = index
        self._liveness = liveness
        self._metrics = metrics

    async def check(
        self, owner: Owner | None, *, repair: bool, sample: float, progress: Callable[[str, int], None] | None
    ) -> CheckReport:
        from penstock.upkeep.check import check

        stores = replace(self.stores(owner), sample=sample, chance=self._runtime.random)
        if not repair:
            return await check(stores, WorkerId(self._runtime.ulid()), progress=progress)
        async with self.alive() as heartbeat:
            return await check(stores, heartbeat.worker, repair=True, progress=progress)

    async def prune(self, older_than_s: float | None, *, dry_run: bool) -> Pruned:
        return await self._ledger.despite_full_disk(lambda: self._prune(older_than_s, dry_run=dry_run))

    async def _prune(self, older_than_s: float | None, *, dry_run: bool) -> Pruned:
        async with self.alive() as heartbeat:
            prune = Prune(self.stores(None), heartbeat.worker, self._ages(older_than_s), dry_run=dry_run)
            await prune.rows()
            await prune.leftovers(self._liveness())
        if not dry_run:
            await self._ledger.truncate()
        prune.pruned.trials = await self._runtime.run_blocking("io", self._prune_trials, older_than_s, dry_run)
        return prune.pruned

    def _prune_trials(self, older_than_s: float | None, dry_run: bool) -> int:
        trials = Trials(self._config.home_path)
        left = trials.leftovers(self._runtime.now() - self._ages(older_than_s).unnamed_s)
        return len(left) if dry_run else sum(trials.remove(key) for key in left)

    async def backup(self, folder: Path, report: ReportProgress | None) -> BackupReport:
        async with self.alive() as heartbeat, self._hold(heartbeat, backup_guard.LOCK, BACKUP_WAIT_S, "backup") as held:
            return await Backup(self.stores(None), folder, report).run(held.verify)

    async def vacuum(
        self, owner: Owner, collection: str | None, wait_s: float | None, *, force: bool, by: str | None
    ) -> VacuumReport:
        places = sorted(await self._ledger.read(audit_index.places, owner))
        if collection is not None:
            where = check_name("collection", collection)
            places = [place for place in places if place.collection == where]
            if not places:
                raise NotFound(f"no collection {where!r}: no documents were ingested into it")

        async with self.alive() as heartbeat:

            @asynccontextmanager
            async def take(key: str) -> AsyncIterator[HeldLock]:
                if force:
                    with suppress(NotFound):
                        await self.release_lock(owner, key, force=True, by=by)
                async with self._hold(heartbeat, key, wait_s, "vacuum") as held:
                    yield held

            return await vacuum(self.stores(owner), places, take, whole=collection is None)

    @asynccontextmanager
    async def hold_index(self, owner: Owner, collection: str, max_wait: float | None) -> AsyncIterator[HeldLock]:
        known = await self._ledger.read(partial(index_versions.current, owner), collection)
        if not self._index().at(None if known is None else known.store).traits.single_writer:
            raise UsageError("this index supports concurrent writers: it has no lock, and needs none")
        key = index_key(owner, collection, known.version if known is not None else index_versions.FIRST)
        async with self.alive() as heartbeat, self._hold(heartbeat, key, max_wait, "hold") as held:
            yield held

    async def release_lock(self, owner: Owner, key: str, *, force: bool, by: str | None) -> Forced:
        not_held = NotFound(f"the lock {key!r} is not held: `penstock lock list` shows the held locks")
        if not force:
            held = {lock.key: lock for lock in await self._ledger.read(partial(stats.locks, owner))}.get(key)
            if held is None:
                raise not_held
            where = f" on {held.host}, pid {held.pid}" if held.host else ""
            raise UsageError(
                f"the lock {key} is held by worker {held.worker}{where} (for: {held.purpose}): wait, or take it "
                "with --force; the work of its holder is then repeated"
            )
        done = await self._ledger.write(locks.FORCE, locks.Force(owner, key, by or _somebody()))
        if done is None:
            raise not_held
        return done

    async def tend(self, worker: WorkerId) -> None:
        """Prune regularly until cancelled."""

        async def start() -> Prune:
            # A worker that has indexed nothing loads the library here, in a thread, to keep the event loop free.
            await self._runtime.run_blocking("index", self._index)
            return Prune(self.stores(None), worker, self._ages(None))

        while True:
            await self._runtime.sleep(TEND_S)
            try:
                await tend(self._ledger, worker, self._liveness(), start)
            except PenstockError:
                # Try again later. No step depends on a prune, and the steps report the same problem.
                continue

    def stores(self, owner: Owner | None) -> Stores:
        return Stores(self._ledger, self._blobs, self._index(), owner or "")

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[Heartbeat]:
        self._ledger.database.refuse_read_only()
        name = WorkerId(self._runtime.ulid())
        heartbeat = Heartbeat(self._ledger, self._liveness(), name, self._config.worker.lease_s, lambda lost: None)
        await heartbeat.start()
        try:
            await self._reap(name)
            yield heartbeat
        finally:
            await heartbeat.stop()

    @asynccontextmanager
    async def _hold(
        self, heartbeat: Heartbeat, key: str, max_wait: float | None, purpose: str
    ) -> AsyncIterator[HeldLock]:
        lease_s, again = self._config.worker.lease_s, partial(self._reap, heartbeat.worker)
        async with hold(self._ledger, heartbeat, key, lease_s, max_wait, again, purpose) as held:
            yield held

    async def _reap(self, name: WorkerId) -> int:
        return await reap(self._ledger, self._liveness(), name, frozenset(), RetryPolicy().crashes, self._metrics)

    def _ages(self, older_than_s: float | None) -> Ages:
        def keep(collection: str) -> float | None:
            days = self._config.keep_days(collection)
            return None if days is None else days * DAY_S

        retention = self._config.retention
        bought = (retention.bought_days * DAY_S, retention.bought_megabytes * 1_000_000)
        if older_than_s is not None:
            return Ages(keep, older_than_s, older_than_s, *bought, older_than_s)
        former_s = retention.former_index_days * DAY_S
        return Ages(keep, retention.history_days * DAY_S, DAY_S, *bought, former_s)


def _somebody() -> str:
    """The user and the machine, as shown by `lock list`."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # The user id has no name, as in many containers.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
