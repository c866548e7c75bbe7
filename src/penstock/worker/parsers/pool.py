"""The parser processes of a worker. A call goes to a free child. A child that crashes, hangs or exceeds its memory is
replaced, and only the call that it was executing fails."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.errors import Transient
from penstock.extractors.base import Raw
from penstock.extractors.members import Frame
from penstock.worker.fair_queue import FairQueue, FlowKey
from penstock.worker.parsers.messages import Request, packed
from penstock.worker.parsers.process import Call, Child, Program
from penstock.worker.parsers.sink import Sink

OCR = "ocr"
"""The reader whose calls go to children that execute Tesseract."""
CALLS_PER_CHILD = 2
"""How many calls a child has: one that runs and one that waits in its pipe, so that the child is never idle."""
QUICK_S = 0.25
"""A document that has used at most this many seconds comes before other documents of its owner. The value is not much
more than a page needs: documents should be read one after the other, so that their next steps can begin soon."""
SLOW_S = 2.0
"""A call that takes longer must not delay a short document."""
LOOK_S = 0.5
"""Time between two checks whether a short document waits for slow calls."""


class ParserPool:
    def __init__(self, *, children: int, memory_mb: int, timeout_s: float, program: Program | None = None) -> None:
        """`memory_mb` and `timeout_s` are the limits of one call. 0 megabytes means no limit. `program`: the children
        execute it, instead of reading documents."""
        self.width = children
        self.program = program
        self._executing: ParserPool | None = None
        """The pool of the children that execute Tesseract. They have other rights, and exist only while needed."""
        self.memory_mb = memory_mb
        self.timeout_s = timeout_s
        self._children: set[Child] = set()
        self._leaving: set[Child] = set()
        self._waiting: FairQueue[Call] = FairQueue(QUICK_S)
        self._busy: Counter[int] = Counter()
        """How many calls of each source a child has."""
        self._idle: dict[int, Call] = {}
        """One call of each source that is new, or whose last call has ended, since calls were last given to
        children."""
        self._look: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the children before they are needed, so that they load while the worker loads."""
        while len(self._children) < self.width:
            self._children.add(Child(self))

    async def call(self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path | None = None) -> bytes:
        source.may_parse()
        if reader == OCR and self.program is None:
            return await self._for_ocr(arguments).call(reader, arguments, source=source, document=document)
        # A child cannot open files. It receives the open file.
        request = packed(Request(reader, arguments, document is not None))
        call = Call(request, source, FlowKey(*source.flow), asyncio.get_running_loop().create_future(), document)
        self._waiting.add(call.flow, call)
        self._idle[id(source)] = call
        self.distribute()
        try:
            return await call.answer
        finally:
            source.parsed(call.seconds)
            self._give_up(call)

    @asynccontextmanager
    async def members(
        self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path
    ) -> AsyncIterator["MemberStream"]:
        source.may_parse()
        request = packed(Request(reader, arguments, document=True, output=True))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        # Members that were received cannot be taken back: the call must not be stopped in favour of others.
        call = Call(request, source, FlowKey(*source.flow), answer, document, was_stopped=True, sink=Sink())
        self._waiting.add(call.flow, call)
        self._idle[id(source)] = call
        self.distribute()
        try:
            yield MemberStream(call)
        finally:
            answer.cancel()
            if not answer.cancelled():
                answer.exception()
            self._give_up(call)

    def _give_up(self, call: Call) -> None:
        self._waiting.remove(call.flow, call)
        for child in self._children:
            child.abandon(call)
        call.close()
        if call.sink is not None:
            call.sink.close()

    def _for_ocr(self, arguments: dict[str, Any]) -> "ParserPool":
        if self._executing is None:
            program = Program(arguments["program"], arguments["data"])
            self._executing = ParserPool(
                children=self.width, memory_mb=self.memory_mb, timeout_s=self.timeout_s, program=program
            )
        return self._executing

    def distribute(self) -> None:
        """Give waiting calls to the children with the fewest calls. Tell the sources that have no call with a child
        that they wait."""
        later: list[Call] = []
        while self._waiting:
            self.start()
            child = min(self._children, key=lambda child: len(child.calls))
            if len(child.calls) >= CALLS_PER_CHILD:
                break
            call = self._waiting.pop()
            if call.was_stopped and sum(child.is_slow for child in self._children) >= self.width:
                later.append(call)
                continue
            try:
                call.open()
            except Transient as error:
                call.fail(error)
                continue
            self._busy[id(call.source)] += 1
            call.source.waiting(None)
            child.take(call)
        for call in reversed(later):
            self._waiting.add(call.flow, call, again=True)
        for call in self._idle.values():
            if not self._busy[id(call.source)] and self._waiting.waits(call.flow):
                call.source.waiting("parser")
        self._idle.clear()
        if self._look is None and (self._waiting or any(len(child.calls) > 1 for child in self._children)):
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._check_slow_calls)

    def _check_slow_calls(self) -> None:
        """A call cannot be interrupted, and may take a minute. If a short document waits and all children execute slow
        calls, start one more child for a while. If there are as many children as allowed, stop the slow call that has
        taken longest and start it again later. A call that was stopped once is not stopped again, and does not use the
        additional child."""
        self._look = None
        now = asyncio.get_running_loop().time()
        slow = [child for child in self._children if child.takes(now) >= SLOW_S]
        for child in slow:
            self._charge(child.calls[0])
            for call in child.take_back():
                self.ended(call)
                self._waiting.add(call.flow, call, again=True)
        if self._waiting.is_quick and len(slow) == len(self._children):
            if len(slow) < self.most:
                self._children.add(Child(self))
            elif stoppable := [child for child in slow if not child.is_slow]:
                max(stoppable, key=lambda child: child.takes(now)).stop()
        self.distribute()

    @property
    def most(self) -> int:
        """The largest number of children, including those for short documents."""
        return self.width + max(1, self.width // 2)

    def is_too_many(self) -> bool:
        return len(self._children) > self.width and not self._waiting.is_quick

    def ended(self, call: Call) -> None:
        """Called when a child has completed a call or no longer has it."""
        if call.is_void:
            return
        self._busy[id(call.source)] -= 1
        if not self._busy[id(call.source)]:
            del self._busy[id(call.source)]
            self._idle[id(call.source)] = call
        self._charge(call)
        call.began, call.charged = None, 0.0

    def _charge(self, call: Call) -> None:
        """Count the time that the call has taken so far."""
        if call.began is not None:
            taken = asyncio.get_running_loop().time() - call.began
            self._waiting.used(call.flow, taken - call.charged)
            call.charged = taken

    def exclude(self, child: "Child") -> None:
        """Give no more calls to a child that ends."""
        self._children.discard(child)
        self._leaving.add(child)

    def remove_child(self, child: "Child", blamed: Call | None, error: Exception) -> None:
        """Remove a child that has ended. Calls that it had not begun go to other children."""
        self._children.discard(child)
        self._leaving.discard(child)
        for call in reversed(child.calls):
            self.ended(call)
            if call is child.stopped and not call.abandoned:
                call.was_stopped = True
                self._waiting.add(call.flow, call)
            elif call is blamed:
                call.fail(error)
            elif not call.abandoned:
                self._waiting.add(call.flow, call, again=True)
        self.distribute()

    async def close(self) -> None:
        """Kill all children. They have no state that must be kept."""
        if self._executing is not None:
            await self._executing.close()
        if self._look is not None:
            self._look.cancel()
        for call in list(self._waiting):
            self._waiting.remove(call.flow, call)
            call.answer.cancel()
        children = list(self._children)
        for child in children:
            for call in child.calls:
                call.answer.cancel()
            child.task.cancel()
        children += self._leaving
        await asyncio.gather(*(child.task for child in children), return_exceptions=True)
        self._children.clear()


class MemberStream:
    """The members of a file, as a parser process sends them."""

    def __init__(self, call: Call) -> None:
        assert call.sink is not None
        self._call = call
        self._sink = call.sink

    async def next(self) -> Frame | None:
        """The next frame; None when the parser process has sent everything."""
        while True:
            version = self._sink.version
            frame, seconds = await self._sink.next()
            self._call.source.parsed(seconds)
            if frame is not None:
                self._call.source.may_parse()
                return frame
            if version == self._sink.version and not self._call.answer.done():
                # The child has not got the call yet, or its answer is on the way, or another child gets the call.
                self._sink.renewed.clear()
                renewed = asyncio.ensure_future(self._sink.renewed.wait())
                either: set[asyncio.Future[Any]] = {self._call.answer, renewed}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                renewed.cancel()
            if version == self._sink.version:
                return None

    async def result(self) -> bytes:
        """The encoded result of the reader, after the last frame. Raises what ended it."""
        return await asyncio.shield(self._call.answer)
