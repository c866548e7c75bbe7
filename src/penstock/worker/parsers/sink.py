"""The pipe through which a parser process sends the members of a file. The worker reads only as fast as it stores them,
so that a member of any size needs little memory."""

import asyncio
import os

from penstock.errors import Transient
from penstock.extractors.members import FRAME, LONGEST_FRAME, Frame

BUFFER = 1 << 20


class Sink:
    def __init__(self) -> None:
        self.input = -1
        """The writing end, until a child has it."""
        self.version = 0
        """The number of pipes so far."""
        self.renewed = asyncio.Event()
        self._output = -1
        self._reader: asyncio.StreamReader | None = None
        self._transport: asyncio.ReadTransport | None = None
        self._since: float | None = None
        """Since when the worker waits for the child."""
        self._begun = False

    def renew(self) -> None:
        """Make a new pipe, because another child gets the call. The former child may still hold the old pipe."""
        if self._begun:
            raise Transient("the parser process ended while it read the file", reason="parser_crash")
        self.close()
        self._output, self.input = os.pipe()
        os.set_blocking(self._output, False)
        self.version += 1
        self.renewed.set()

    def close_input(self) -> None:
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def close(self) -> None:
        self.close_input()
        if self._transport is not None:
            self._transport.close()
            self._reader = self._transport = None
        elif self._output >= 0:
            os.close(self._output)
        self._output = -1

    def left_s(self, most_s: float) -> float:
        """How much of the time for the next piece is left."""
        if self._since is None:
            return most_s
        return self._since + most_s - asyncio.get_running_loop().time()

    async def next(self) -> tuple[Frame | None, float]:
        """The next frame, or None at the end of the pipe; and how long the child took."""
        loop = asyncio.get_running_loop()
        began = self._since = loop.time()
        frame: Frame | None = None
        try:
            reader = await self._open()
            if reader is not None:
                kind, size = FRAME.unpack(await reader.readexactly(FRAME.size))
                self._begun = True
                frame = Frame(kind, await reader.readexactly(size)) if size <= LONGEST_FRAME else None
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._since = None
        return frame, loop.time() - began

    async def _open(self) -> asyncio.StreamReader | None:
        if self._reader is None and self._output >= 0:
            reader = asyncio.StreamReader(BUFFER)
            pipe = os.fdopen(os.dup(self._output), "rb", buffering=0)
            os.close(self._output)
            self._output = -1
            connected = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            self._transport, self._reader = connected[0], reader
        return self._reader
