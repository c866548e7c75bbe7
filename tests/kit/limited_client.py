"""A worker process that calls a provider within its limits: `python -m tests.kit.limited_client DATABASE URL SECONDS
REQUESTS_PER_MINUTE CALLS TASKS`; 0 stands for a limit that is not known."""

import asyncio
import os
import sys

from penstock.config_providers import TargetConfig
from penstock.errors import RateLimited
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import leasing
from penstock.metrics.base import NULL_METRICS
from penstock.model.nouns import WorkerId
from penstock.net.client import Client, check
from penstock.runtime import Runtime
from penstock.worker.limits import CallLimits
from penstock.worker.paid import PaidWork


async def main(database: str, url: str, seconds: float, per_minute: float, calls: int, tasks: int) -> None:
    runtime = Runtime()
    ledger = Ledger(Database(database, runtime))
    await ledger.open(migrate=False)
    worker = WorkerId(f"w{os.getpid()}")
    settings = {"api": TargetConfig(calls or None, per_minute or None)}

    def fail(error: BaseException) -> None:
        print(repr(error), flush=True)
        os._exit(1)

    limits = CallLimits(ledger, runtime, worker, NULL_METRICS, settings, PaidWork(), fail)
    client = Client(runtime, allow_private=True)
    end = runtime.clock() + seconds

    async def post() -> None:
        check(await client.request("POST", url, content=b"{}"), "the provider", setting="API_KEY")

    async def work() -> None:
        while runtime.clock() < end:
            try:
                await limits.call("api", post)
            except RateLimited:
                await runtime.sleep(0.5)

    await asyncio.gather(*(work() for _ in range(tasks)))
    await limits.close()
    await ledger.write(leasing.LEAVE, worker)
    await client.close()
    print(ledger.commits, flush=True)
    await ledger.close()
    runtime.close()


if __name__ == "__main__":
    place, address, *numbers = sys.argv[1:]
    asyncio.run(main(place, address, *map(float, numbers[:2]), *map(int, numbers[2:])))  # type: ignore[arg-type]
