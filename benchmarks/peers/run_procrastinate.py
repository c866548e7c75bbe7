"""procrastinate. It has no chain of steps: each task defers the next one. Used as its documentation says: async tasks,
a pool with a connection for each and one that listens, documents deferred as one batch."""

import asyncio
import json
import logging
import sys
import time

from procrastinate import App, PsycopgConnector

STEPS = 5
CONCURRENCY = 10


async def main(url: str, documents: int) -> None:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=CONCURRENCY + 2, max_size=CONCURRENCY + 2))
    done = 0
    over = asyncio.Event()

    @app.task(name="step")
    async def step(document: int, number: int) -> None:
        nonlocal done
        if number + 1 < STEPS:
            await step.defer_async(document=document, number=number + 1)
        done += 1
        if done == documents * STEPS:
            over.set()

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await step.batch_defer_async(*({"document": i, "number": 0} for i in range(documents)))
        began = time.perf_counter()
        worker = asyncio.create_task(app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False))
        await over.wait()
        # It goes when what it runs is over and written.
        worker.cancel()
        await asyncio.wait([worker])
        seconds = time.perf_counter() - began
    print(json.dumps({"steps_per_s": done / seconds}))


logging.disable(logging.WARNING)
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
