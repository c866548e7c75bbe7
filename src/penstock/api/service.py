"""What all requests share."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from penstock.api.callers import Authority
from penstock.api.keys import Keys
from penstock.api.limits import RequestLimits, UploadLimits
from penstock.app import App
from penstock.config_serve import ServeConfig
from penstock.errors import PenstockError
from penstock.indexes.base import TableId
from penstock.ledger.reads import gauges
from penstock.metrics import disk
from penstock.metrics.registry import Gauge, Registry
from penstock.verbs.accepting import Gatherer

GAUGES_S = 5.0
"""How long gauges that were read from the ledger are reused."""
READY_S = 5.0


class Service:
    def __init__(self, app: App, authority: Authority | None = None, registry: Registry | None = None) -> None:
        self.app = app
        self.runtime = app.runtime
        self.settings: ServeConfig = app.config.serve
        self.keys = Keys(app)
        self.authority: Authority = authority or self.keys
        self.requests = RequestLimits(app, self.settings)
        self.uploads = UploadLimits(app, self.settings)
        self.gatherer = Gatherer()
        self._registry = registry
        self._gauges: tuple[float, list[Gauge]] = (-GAUGES_S, [])
        self.closing: list[Callable[[], Awaitable[None]]] = []
        """Called when the server has ended."""
        self.stopping = asyncio.Event()
        """Set when the server is told to stop: streams and long polls end by themselves then."""

    async def readiness(self) -> dict[str, bool]:
        """Whether each part that the service needs answers."""
        app = self.app
        where = TableId(app.owner, app.config.collection, 1)
        ledger, blobs, index = await asyncio.gather(
            _answers(app.ledger.is_there()),
            _answers(app.blobs.stat(f"{app.owner}/raw/ready")),
            _answers(app.ports.index.open(where)),
        )
        return {"ledger": ledger, "blobs": blobs, "index": index, "accepting": not self.stopping.is_set()}

    async def metrics(self) -> str:
        """The text for Prometheus."""
        from penstock.workflows.read import KINDS

        now = self.runtime.clock()
        if now - self._gauges[0] >= GAUGES_S:
            try:
                found = await self.app.ledger.read(partial(gauges.read, kinds=KINDS))
                found.insert(0, Gauge("ledger_up", 1))
            except PenstockError:
                found = [Gauge("ledger_up", 0)]
            disks = await self.runtime.run_blocking("io", disk.gauges, self.app.config, self.app.ledger.database.file)
            self._gauges = (now, [*found, *disks])
        registry = self._registry or Registry({})
        return registry.render(self._gauges[1])


async def _answers(asked: Awaitable[object]) -> bool:
    try:
        async with asyncio.timeout(READY_S):
            return (await asked) is not False
    except (PenstockError, OSError, TimeoutError):
        return False
