"""A process that has everything imported, and forks a child for each scenario that it is asked to play: a child that
is killed after a tenth of a second should not take a second to start.

One JSON object a line: `{scenario, settings, log, acks, counts}` comes in, `{pid}` and then `{status}` go out.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.crash.scenarios import BY_NAME

import penstock.app
from penstock.app import open_app
from penstock.config import load_config
from penstock.runtime import Failpoints


class Recorder(Failpoints):
    """Counts every passage, also of names that nobody has listed."""

    def __init__(self, spec: str = "") -> None:
        super().__init__(spec)
        self.armed = True

    def hit(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


async def play(request: dict[str, Any]) -> None:
    config = load_config(request["settings"], environment={})
    acknowledged = os.open(request["acks"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    async with open_app(config) as app:
        for operation in BY_NAME[request["scenario"]].operations:
            await operation.do(app)
            os.write(acknowledged, b".")
    if request["counts"]:
        Path(request["counts"]).write_text(json.dumps(app.runtime.failpoints.counts))


def child(request: dict[str, Any]) -> None:
    log = os.open(request["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if request["counts"]:
        vars(penstock.app)["Failpoints"] = Recorder
    status = 1
    try:
        asyncio.run(play(request))
        status = 0
    finally:
        sys.stderr.flush()
        if status:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        os._exit(status)


def main() -> None:
    import lance.fragment
    import lance.optimize
    import psycopg

    del lance, psycopg
    print("{}", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
