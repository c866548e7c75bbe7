"""The supervisor of several worker processes: it starts them (`cli/supervised.py`), forwards signals, and restarts
processes that die."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cli.output import note
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.metrics.registry import Registry

FIRST_S, LONGEST_S = 1.0, 30.0
"""Delay before a dead process is restarted. It doubles each time, and is reset after a process that lived longer than
the maximum."""
USAGE = 2
LONGEST_LINE = 1 << 20


class Supervisor:
    def __init__(
        self, arguments: Sequence[str], count: int, runtime: Runtime, registry: "Registry | None" = None
    ) -> None:
        """`registry`: receives the counts of all processes."""
        self.answers: list[dict[str, Any]] = []
        """The JSON output of each process; a killed process has none."""
        self.restarts = 0
        self.refused: str | None = None
        """The usage error of a process. All processes have the same settings, so all are stopped."""
        self._arguments = arguments
        self._count = count
        self._runtime = runtime
        self._registry = registry
        self._running: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run until `stop` is called and all processes have ended."""
        await asyncio.gather(*(self._keep_one() for _ in range(self._count)))

    def stop(self) -> None:
        self._stopping.set()
        for process in self._running:
            _terminate(process)

    async def _keep_one(self) -> None:
        wait_s = FIRST_S
        while not self._stopping.is_set():
            began = self._runtime.clock()
            code, pid = await self._one()
            if self._stopping.is_set():
                return
            if self._runtime.clock() - began > LONGEST_S:
                wait_s = FIRST_S
            end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            note(f"penstock: the worker process {pid} ended ({end}): it is restarted in {wait_s:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
                return
            wait_s = min(2 * wait_s, LONGEST_S)
            self.restarts += 1
            if self._registry is not None:
                self._registry.incr("worker_restarts")

    async def _one(self) -> tuple[int, int]:
        """Run one process until it ends."""
        if self._registry is None:
            return await self._process()
        reading, writing = os.pipe()
        try:
            counting = asyncio.create_task(_add_up(self._registry, reading))
            ended = await self._process("--send-metrics", str(writing), keep=writing)
        finally:
            os.close(writing)
        await counting
        return ended

    async def _process(self, *more: str, keep: int | None = None) -> tuple[int, int]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "penstock.cli.supervised", *self._arguments, *more,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, pass_fds=() if keep is None else (keep,),
        )  # fmt: skip
        self._running.add(process)
        if self._stopping.is_set():
            _terminate(process)
        assert process.stdout is not None
        said = await process.stdout.read()
        code = await process.wait()
        self._running.discard(process)
        with suppress(msgspec.DecodeError):
            answer = msgspec.json.decode(said, type=dict[str, Any])
            if code == USAGE:
                self.refused = answer["error"]
                self.stop()
            elif "error" not in answer:
                self.answers.append(answer)
        return code, process.pid


async def _add_up(registry: "Registry", descriptor: int) -> None:
    """Add what a process sends, until the pipe is closed."""
    from penstock.cli.metrics import received

    stream = asyncio.StreamReader(limit=LONGEST_LINE)
    with os.fdopen(descriptor, "rb") as pipe:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), pipe
        )
        with closing(transport):
            async for line in stream:
                received(registry, line)


def _terminate(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM, also after a SIGINT: Ctrl-C already reached the process, and a second SIGINT would kill it."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
