"""DBOS. Its own form of the work: a workflow of five steps, each of which is a checkpoint. Used as its documentation
says: a queue with a limit for each worker, async workflows; it looks for work every 10 ms, as with its default of a
second it would mostly wait."""

import asyncio
import json
import sys
import threading
import time

from dbos import DBOS, DBOSClient, DBOSConfig

STEPS = 5
CONCURRENCY = 10
LOOK_S = 0.01

done = 0
wanted = STEPS * int(sys.argv[2])
over = threading.Event()


@DBOS.step()
async def step(document: int, number: int) -> None:
    global done
    done += 1
    if done == wanted:
        over.set()


@DBOS.workflow()
async def work(document: int) -> None:
    for number in range(STEPS):
        await step(document, number)


async def main(url: str, documents: int) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "log_level": "ERROR",
        "sys_db_pool_size": 2 * CONCURRENCY,
    }
    DBOS(config=config)
    DBOS.launch()
    # Nobody looks at a queue that is not registered yet: the documents are there when the clock starts.
    client = DBOSClient(system_database_url=url)
    handles = [
        await client.enqueue_async({"queue_name": "documents", "workflow_name": work.__qualname__}, i)
        for i in range(documents)
    ]
    began = time.perf_counter()
    await DBOS.register_queue_async("documents", worker_concurrency=CONCURRENCY, polling_interval_sec=LOOK_S)
    await asyncio.to_thread(over.wait)
    # What it answers, it has written.
    for handle in handles[-CONCURRENCY:]:
        await handle.get_result(polling_interval_sec=LOOK_S)
    seconds = time.perf_counter() - began
    print(json.dumps({"steps_per_s": done / seconds}))
    client.destroy()
    DBOS.destroy()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
