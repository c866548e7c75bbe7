"""The MCP server on standard input and output."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import cast

import anyio
from mcp.server import MCPServer
from mcp.server.stdio import stdio_server

LONGEST_LINE = 64 << 20


class _Lines:
    """The lines of a pipe, read by the event loop. A thread that reads could not be interrupted: the process would not
    end before the client closes the pipe."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await self._reader.readline():
            yield line.decode(errors="replace")


async def serve(server: MCPServer[None]) -> None:
    """Serve until the client closes standard input, or the task is cancelled."""
    lowlevel = server._lowlevel_server
    async with stdio_server(await _stdin()) as (read, write):
        await lowlevel.run(read, write, lowlevel.create_initialization_options())


async def _stdin() -> "anyio.AsyncFile[str] | None":
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    except ValueError:
        # A regular file: reading it in a thread does not block.
        return None
    return cast("anyio.AsyncFile[str]", _Lines(reader))
