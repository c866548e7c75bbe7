"""PgQueuer. It has no chain of steps: each job enqueues the next one. What its documentation offers for speed is used:
asyncpg, jobs enqueued as lists, dequeued and acknowledged in batches, its autovacuum settings, uvloop. The cap on
running jobs has to be twice the batch, so it runs up to 20 at once where the others run 10."""

import asyncio
import json
import sys
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

STEPS = 5
BATCH = 10


async def main(url: str, documents: int) -> None:
    async with asyncpg.create_pool(url, min_size=BATCH, max_size=2 * BATCH) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        await queries.install()
        await queries.optimize_autovacuum()
        worker = PgQueuer(driver)
        done = 0

        def step(number: int) -> None:
            async def run(job: Job) -> None:
                nonlocal done
                if number + 1 < STEPS:
                    await queries.enqueue(f"s{number + 1}", job.payload)
                done += 1

            worker.entrypoint(f"s{number}")(run)

        for number in range(STEPS):
            step(number)
        await queries.enqueue(["s0"] * documents, [str(i).encode() for i in range(documents)], [0] * documents)
        began = time.perf_counter()
        await worker.run(batch_size=BATCH, max_concurrent_tasks=2 * BATCH, mode=QueueExecutionMode.drain)
        seconds = time.perf_counter() - began
    assert done == documents * STEPS, done
    print(json.dumps({"steps_per_s": done / seconds}))


uvloop.install()
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
