"""Parser processes for tests: a pool whose children know odd readers, and what a call needs."""

import asyncio
import os
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
from tests.kit.providers import DIRECT

from penstock.worker.parsers.pool import ParserPool

ROOT = Path(__file__).parents[2]
ODD = "tests.integration.odd_child"
PATHS = f"{ROOT / 'src'}{os.pathsep}{ROOT}"


class Listener:
    """A source that remembers what it was told to wait on."""

    name = "odd"
    size = 0

    def __init__(self, owner: str = "anna") -> None:
        self.flow = (owner, str(id(self)))
        self.heard: list[str | None] = []

    async def read_range(self, offset: int, length: int) -> bytes:
        raise NotImplementedError

    async def password(self) -> str | None:
        raise NotImplementedError

    def file(self) -> AbstractAsyncContextManager[Path]:
        raise NotImplementedError

    def waiting(self, on: str | None) -> None:
        if not self.heard or self.heard[-1] != on:
            self.heard.append(on)

    parser_s = 0.0
    providers = DIRECT

    def may_parse(self) -> None:
        pass

    def parsed(self, seconds: float) -> None:
        self.parser_s += seconds

    @property
    def waits(self) -> bool:
        return bool(self.heard) and self.heard[-1] == "parser"


class Bench:
    """A pool whose children know the odd readers."""

    def __init__(self, pool: ParserPool) -> None:
        self.pool = pool
        self.source = Listener()

    async def __call__(self, reader: str, /, source: Listener | None = None, **arguments: Any) -> Any:
        return msgspec.msgpack.decode(await self.pool.call(reader, arguments, source=source or self.source))

    def begin(self, reader: str, /, source: Listener | None = None, **arguments: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self(reader, source, **arguments))

    @property
    def pids(self) -> list[int]:
        processes = [child._process for child in self.pool._children]
        return sorted(process.pid for process in processes if process is not None)

    async def warm(self) -> "Bench":
        """Every child is there and has answered."""
        width = self.pool.width
        await asyncio.gather(*(self("echo", value=i, seconds=0.1) for i in range(width)))
        assert len(self.pids) == width
        return self


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(*pids: int, within: float = 0.5) -> float:
    began = time.monotonic()
    while any(alive(pid) for pid in pids):
        assert time.monotonic() - began < within, "a child is still there"
        await asyncio.sleep(0.01)
    return time.monotonic() - began
