"""`penstock serve` as a child process, so that the demo can be watched in a browser."""

import asyncio
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from contextlib import suppress
from pathlib import Path

from penstock.errors import PenstockError

PORT = 8440
WAIT_S = 60.0
STOP_S = 3.5
LOOK_S = 0.05


class Dashboard:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _free_port()
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self, *, worker: bool) -> None:
        """Start the server and wait until it answers. Raise PenstockError if it ends instead."""
        arguments = ["serve", "--home", ".penstock", "--port", str(self._port), *([] if worker else ["--no-worker"])]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "penstock.cli.main", *arguments, "--quiet"),
            cwd=self._folder,
            env=environment,
            stdin=DEVNULL,
            stdout=DEVNULL,
        )
        self._process = process
        try:
            async with asyncio.timeout(WAIT_S):
                while process.returncode is None and not await self._answers():
                    await _ended(process, LOOK_S)
        except TimeoutError:
            raise PenstockError(f"the dashboard did not start within {WAIT_S:.0f} s") from None
        if process.returncode is not None:
            raise PenstockError(f"the dashboard ended with {process.returncode}")

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    async def ended(self) -> None:
        """Return when the server has ended."""
        if self._process is not None:
            await self._process.wait()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        if not await _ended(process, STOP_S):
            process.kill()
            await process.wait()


def _free_port() -> int:
    """The usual port, or any that is free."""
    for port in (PORT, 0):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                found: int = one.getsockname()[1]
                return found
    raise PenstockError("there is no free port for the dashboard")


async def _ended(process: Process, seconds: float) -> bool:
    """Whether the process ends within so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
            return True
    return False
