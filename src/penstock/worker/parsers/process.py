"""One parser process. It executes calls in order, and is killed when it exceeds the limit of time or memory."""

import asyncio
import math
import os
import signal
import socket
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from penstock.errors import ParserBreach, Permanent, Transient
from penstock.extractors.base import Raw
from penstock.worker.fair_queue import FlowKey
from penstock.worker.parsers.messages import HEADER, Answer
from penstock.worker.parsers.sink import Sink

CHILD = "penstock.worker.parsers.child"
START_S = 60.0
GRACE_S = 0.25
"""How long a child may continue with a call whose result is no longer wanted."""
IDLE_S = 2.0
"""How long a child without calls is kept."""
SPARE_S = 5
"""Processor time for one call in addition to its timeout. The kernel enforces the sum if the worker does not."""
LONGEST_ANSWER = 1 << 30
_TAIL = 2000
_OUT_OF_MEMORY = {signal.SIGTRAP, signal.SIGILL, signal.SIGABRT}
"""The signals with which PDFium and its libraries end when they cannot allocate memory."""
_ENVIRONMENT = {"PATH", "HOME", "TMPDIR", "LANG", "LANGUAGE", "VIRTUAL_ENV", "LD_LIBRARY_PATH"}
_ENVIRONMENT_FAMILIES = ("PYTHON", "LC_", "DYLD_")
"""The environment variables that a child needs. Keys and passwords are not passed on."""

_DECODER = msgspec.msgpack.Decoder(Answer)


@dataclass(eq=False)
class Call:
    request: bytes
    source: Raw
    flow: FlowKey
    answer: asyncio.Future[bytes]
    path: Path | None = None
    """The file that the call reads."""
    document: FileIO | None = None
    """The open file. It is opened when a child gets the call, because many more calls may wait."""
    seconds: float = 0.0
    """How long a child worked on the call."""
    began: float | None = None
    """When a child began with the call."""
    charged: float = 0.0
    """How many seconds since then were counted already."""
    was_stopped: bool = False
    """The call was stopped in favour of a short document and has to start again."""
    is_void: bool = False
    """The call was taken back from its child, which may still answer it."""
    sink: Sink | None = None
    """Receives the members of the file, if the call reads them."""

    @property
    def abandoned(self) -> bool:
        return self.is_void or self.answer.done()

    def fail(self, error: Exception) -> None:
        if not self.abandoned:
            self.answer.set_exception(error)

    def open(self) -> None:
        """Open the file. Each child reads it from its beginning, and an earlier child may still have it open."""
        self.close()
        if self.sink is not None:
            self.sink.renew()
        if self.path is not None:
            try:
                self.document = FileIO(self.path)
            except OSError as error:
                raise Transient(
                    f"the stored file cannot be opened: {error.strerror}", reason="raw_unreadable"
                ) from error

    def close(self) -> None:
        if self.document is not None:
            self.document.close()
        if self.sink is not None:
            self.sink.close_input()


class Program(NamedTuple):
    """A program that a child executes, and the folder with its data."""

    path: str
    data: str


class Supervisor(Protocol):
    """What a child needs from its pool."""

    memory_mb: int
    timeout_s: float
    program: Program | None

    def distribute(self) -> None: ...

    def ended(self, call: Call) -> None: ...

    def is_too_many(self) -> bool: ...

    def exclude(self, child: "Child") -> None: ...

    def remove_child(self, child: "Child", blamed: Call | None, error: Exception) -> None: ...


class Child:
    """One parser process, from its start to its end."""

    def __init__(self, pool: Supervisor) -> None:
        self.calls: deque[Call] = deque()
        self._pool = pool
        self._process: asyncio.subprocess.Process | None = None
        self._ready = False
        self._breach: str | None = None
        self._killed_for: Call | None = None
        """The call because of which the child was killed. Its answer may still arrive, and then the next call must not
        be blamed."""
        self.stopped: Call | None = None
        """The same call, if it will be started again on another child."""
        self._timer: asyncio.TimerHandle | None = None
        self._since: float | None = None
        """When the child began with its first call in `calls`."""
        self._documents: socket.socket | None = None
        """The socket through which the child receives open files."""
        self.task = asyncio.create_task(self._run())

    def take(self, call: Call) -> None:
        self.calls.append(call)
        if self._process is not None:
            self._send(call)
            if self.calls[0] is call:
                self._since = asyncio.get_running_loop().time()
                self._watch()

    def abandon(self, call: Call) -> None:
        """Note that the result of a call is no longer wanted. If the child is executing it, only GRACE_S remain."""
        if self.calls and self.calls[0] is call:
            self._watch()

    def takes(self, now: float) -> float:
        """How long the first call has taken so far."""
        began = self.calls[0].began if self.calls else None
        return 0.0 if began is None else now - began

    @property
    def is_slow(self) -> bool:
        """Whether the child has a call that must not be stopped again."""
        return any(call.was_stopped for call in self.calls)

    def take_back(self) -> list[Call]:
        """Take back the calls after the first, for another child. They are in the pipe already; their answers will be
        ignored."""
        back = [call for call in islice(self.calls, 1, None) if not call.abandoned]
        self.calls = deque(replace(call, is_void=True, document=None) if call in back else call for call in self.calls)
        return back

    def stop(self) -> None:
        """Kill the child in favour of other calls. Its call is started again."""
        self.stopped = self._killed_for = self.calls[0]
        if self._process is not None:
            _kill(self._process)

    async def _run(self) -> None:
        errors = ""
        try:
            self._process = process = await self._start()
            assert process.stdout is not None
            assert process.stderr is not None
            listening = asyncio.create_task(_tail(process.stderr))
            try:
                for call in self.calls:
                    self._send(call)
                self._watch()
                await self._receive(process.stdout)
            except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
                self._pool.exclude(self)
                # The process is ending by itself. Its exit code says more than a signal from here would.
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), GRACE_S)
            finally:
                self._pool.exclude(self)
                await self._end(process)
                errors = await listening
        except OSError as error:
            errors = str(error)
        finally:
            if self._documents is not None:
                self._documents.close()
            if self._timer is not None:
                self._timer.cancel()
            self._count()
            blamed = self._killed_for or (self.calls[0] if self.calls else None)
            self._pool.remove_child(self, blamed, self._exit_error(errors))

    async def _start(self) -> asyncio.subprocess.Process:
        environment = {name: value for name, value in os.environ.items() if _is_inherited(name)}
        seconds = math.ceil(self._pool.timeout_s) + SPARE_S
        self._documents, theirs = socket.socketpair()
        self._documents.setblocking(False)
        with theirs:
            executes = self._pool.program or ("", "")
            arguments = (os.getpid(), self._pool.memory_mb, seconds, theirs.fileno(), *executes)
            return await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", CHILD, *map(str, arguments),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env=environment | {"MALLOC_ARENA_MAX": "2"}, pass_fds=(theirs.fileno(),),
            )  # fmt: skip

    def _send(self, call: Call) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        if call.document is not None:
            self._send_file(call.document, call.sink)
        self._process.stdin.write(call.request)

    def _send_file(self, document: FileIO, sink: Sink | None) -> None:
        """Send one byte for each document, with the open file and the pipe for its members. They are left out if the
        call was abandoned or the system refuses to send them."""
        assert self._documents is not None
        with suppress(BlockingIOError, ConnectionError):
            try:
                pipe = [] if sink is None else [sink.input]
                socket.send_fds(self._documents, [b"f"], [document.fileno(), *pipe])
            except (OSError, ValueError):
                self._documents.send(b"-")
        if sink is not None:
            sink.close_input()

    async def _receive(self, answers: asyncio.StreamReader) -> None:
        while True:
            (size,) = HEADER.unpack(await answers.readexactly(HEADER.size))
            if size > LONGEST_ANSWER or (self._ready and not self.calls):
                return
            answer = _DECODER.decode(await answers.readexactly(size))
            if not self._ready:
                self._ready = True
                self._count()
                self._watch()
                continue
            if answer.reason == "parser_memory":
                # Its memory is fragmented: a new process has the full limit.
                self._breach = answer.reason
                return
            self._count()
            call = self.calls.popleft()
            self._pool.ended(call)
            _deliver(call, answer)
            self._watch()
            if self._pool.is_too_many() and not self.calls:
                return
            self._pool.distribute()

    def _count(self) -> None:
        """Count the time of the first call when it has ended, or start the count when the child is ready."""
        now = asyncio.get_running_loop().time()
        if self._since is not None and self.calls:
            self.calls[0].seconds += now - self._since
        self._since = now if self._ready else None

    def _watch(self) -> None:
        """Set the timer for the first call, the start or the idle time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._ready:
            self._timer = asyncio.get_running_loop().call_later(START_S, self._kill)
        elif self.calls:
            if self.calls[0].began is None:
                self.calls[0].began = asyncio.get_running_loop().time()
            seconds = GRACE_S if self.calls[0].abandoned else self._pool.timeout_s
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)
        else:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._retire)

    def _retire(self) -> None:
        """End an idle child, because its memory may be needed elsewhere. A new one starts quickly."""
        self._pool.exclude(self)
        self.task.cancel()

    def _expire(self) -> None:
        """End a call that exceeds its time. One that sends members has the whole time for each piece, and the time
        that the worker needs to store them does not count."""
        call = self.calls[0] if self.calls else None
        left = 0.0 if call is None or call.sink is None or call.abandoned else call.sink.left_s(self._pool.timeout_s)
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._expire)
        else:
            self._kill()

    def _kill(self) -> None:
        self._breach = "parser_timeout"
        self._killed_for = self.calls[0] if self.calls else None
        if self._process is not None:
            _kill(self._process)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        _kill(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        # A pipe that is not read to its end is never closed.
        while await process.stdout.read(1 << 16):
            pass
        await process.wait()

    def _exit_error(self, errors: str) -> Exception:
        """Return the error for the call that the child was executing when it ended."""
        if not self._ready:
            said = errors or "it said nothing"
            return Transient(f"a parser process could not be started: {said}", reason="parser_start")
        code = self._process.returncode if self._process is not None and self._process.returncode is not None else 0
        if self._breach == "parser_timeout" or -code == signal.SIGXCPU:
            limit = f"{self._pool.timeout_s:g} s (parsers.timeout_s)"
            return ParserBreach(f"the parser took longer than {limit}", reason="parser_timeout")
        if self._breach == "parser_memory" or -code in _OUT_OF_MEMORY or "allocate memory" in errors:
            limit = f"{self._pool.memory_mb:,} MB (parsers.memory_mb)"
            return ParserBreach(f"the parser needed more memory than {limit}", reason="parser_memory")
        end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return ParserBreach(f"the parser crashed ({end}) {errors}".rstrip(), reason="parser_crash")


def _is_inherited(name: str) -> bool:
    return name in _ENVIRONMENT or name.startswith(_ENVIRONMENT_FAMILIES)


def _kill(process: asyncio.subprocess.Process) -> None:
    # process.kill() would first poll the process, and take its exit code away from asyncio's watcher.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _deliver(call: Call, answer: Answer) -> None:
    if call.abandoned:
        return
    if not answer.reason:
        call.answer.set_result(answer.data)
    elif answer.permanent:
        call.fail(Permanent(answer.message, reason=answer.reason, page=answer.page))
    else:
        call.fail(Transient(answer.message, reason=answer.reason, page=answer.page))


async def _tail(stream: asyncio.StreamReader) -> str:
    """Return the last characters that a process wrote."""
    tail = b""
    while data := await stream.read(1 << 14):
        tail = (tail + data)[-_TAIL:]
    return " ".join(tail.decode(errors="replace").split())
