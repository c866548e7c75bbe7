"""The open resources of an app, shared by the scopes of all owners."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from penstock.blobs.base import Blobs
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.events.feed import Feed
from penstock.indexes.base import TableId
from penstock.ledger.database import liveness
from penstock.ledger.database.liveness import Liveness
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import index_versions, leasing
from penstock.metrics.base import Metrics
from penstock.model.nouns import Owner, WorkerId
from penstock.runtime import Runtime
from penstock.sources.base import Source
from penstock.verbs.admissions import Admissions
from penstock.worker.broadcast import Broadcast

if TYPE_CHECKING:
    from penstock.stages.base import Ports
    from penstock.verbs.maintenance_runner import MaintenanceRunner
    from penstock.verbs.run_specs import RunSpecs
    from penstock.worker.limits import CallLimits
    from penstock.worker.parsers.pool import ParserPool
    from penstock.worker.pool import Worker
    from penstock.workflows.catalog import Catalog

DAY_S = 86_400.0


class Resources:
    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        ledger: Ledger,
        blobs: Blobs,
        metrics: Metrics,
        make_parsers: "Callable[[], ParserPool]",
        make_ports: "Callable[[ParserPool], Ports]",
        make_sources: Callable[[Sequence[str], Sequence[str], Sequence[str]], list[Source]],
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.ledger = ledger
        self.blobs = blobs
        self.metrics = metrics
        self._make_parsers = make_parsers
        self._make_ports = make_ports
        self.make_sources = make_sources
        """Makes the sources that URLs name, with patterns to include and exclude."""
        self.broadcast = Broadcast()
        self.workers: WeakSet[Worker] = WeakSet()
        """One for each call that executes steps. A worker is removed when nothing refers to it any more."""
        self.stopping = False
        self.stopped = asyncio.Event()
        """Set with `stopping`: ends reads of remote sources."""
        self.paces: dict[str, float] = {}
        """Measured speeds of the stages, read from the ledger when the app is opened."""
        self.open_trial: Callable[[Config, Path], AbstractAsyncContextManager[Resources]]
        """Opens the resources of a trial in a folder. Its blobs are read from here if it has no own ones."""
        self.make_trial_ports: Callable[[Config], Ports]
        self.trial: Resources | None = None
        """The open trial, which stops with this app."""
        self.key_changes = 0
        """Counts keys that were made or revoked here, so that what is remembered of them is read again."""
        self.app: Any = None
        """The app that is passed to event handlers."""

    @cached_property
    def parsers(self) -> "ParserPool":
        return self._make_parsers()

    @cached_property
    def ports(self) -> "Ports":
        """The adapters. The ledger knows which index each table is in."""
        read = self.ledger.read

        async def locate(table: TableId) -> str | None:
            found = await read(partial(index_versions.of, Owner(table.owner)), table.collection, table.version)
            return None if found is None else found.store

        return replace(self._make_ports(self.parsers), locate=locate, stores=lambda: read(index_versions.stores))

    @cached_property
    def catalog(self) -> "Catalog":
        from penstock.workflows.catalog import open_catalog

        return open_catalog(self.config)

    @cached_property
    def run_specs(self) -> "RunSpecs":
        from penstock.verbs.run_specs import RunSpecs

        return RunSpecs(self.config, self.runtime, self.catalog, lambda: self.ports)

    @cached_property
    def maintenance(self) -> "MaintenanceRunner":
        from penstock.verbs.maintenance_runner import MaintenanceRunner

        return MaintenanceRunner(
            self.config,
            self.runtime,
            self.ledger,
            self.blobs,
            lambda: self.ports.index,
            self.liveness,
            self.metrics,
        )

    @cached_property
    def feed(self) -> Feed:
        """The change feed of this process."""
        return Feed(self.ledger, self.runtime, DAY_S * self.config.retention.history_days)

    @cached_property
    def admissions(self) -> Admissions:
        """Which owners may bring in documents now."""
        return Admissions(self.ledger, self.runtime, self.config.quota)

    @cached_property
    def query_calls(self) -> "CallLimits":
        """The calls of providers for searches. They share the limits with those of workers."""
        from penstock.worker.limits import CallLimits
        from penstock.worker.paid import PaidWork

        self._asking = WorkerId(self.runtime.ulid())
        return CallLimits(
            self.ledger, self.runtime, self._asking, self.metrics, self.config.targets, PaidWork(), lambda error: None
        )

    def liveness(self) -> Liveness:
        return liveness.of(self.ledger.database)

    def local_folders(self) -> list[Path]:
        """The folders of blobs and index on this machine. Adapters that store data elsewhere have none."""
        return [folder for folder in (self.config.blobs_path, self.config.index_path) if folder is not None]

    def stop(self) -> None:
        self.stopping = True
        self.stopped.set()
        self.ledger.database.outage_wait.hurry()
        if "feed" in vars(self):
            self.feed.close()
        for worker in self.workers:
            worker.told_to_stop = True
            worker.stop()
        if self.trial is not None:
            self.trial.stop()

    async def close(self) -> None:
        self.broadcast.close()
        if "feed" in vars(self):
            await self.feed.end()
        if "query_calls" in vars(self):
            await self.query_calls.close()
            with suppress(PenstockError):
                await self.ledger.write(leasing.LEAVE, self._asking)
        if "ports" in vars(self):
            await self.ports.close()
        if "parsers" in vars(self):
            await self.parsers.close()
        await self.ledger.close()
        self.runtime.close()
