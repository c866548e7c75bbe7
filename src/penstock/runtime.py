"""Clock, sleep, randomness, ids, threads and failpoints, passed as one object.

All code below `app.py` uses these instead of the standard library, so that a simulation can replace them.
"""

import asyncio
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, TypeVar

from penstock.errors import ConfigError

T = TypeVar("T")

ThreadPool = Literal["read", "io", "cpu", "index", "net", "upkeep", "speech"]
THREAD_POOLS: dict[ThreadPool, int] = {"read": 2, "io": 2, "cpu": 1, "index": 1, "net": 8, "upkeep": 1, "speech": 1}

SMALL = 16 << 10
"""Work on up to this many bytes takes less time (a fraction of a millisecond) than passing it to a thread."""

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Failpoints:
    """Named places before and after durable writes where a test can kill or stop the process. If `armed` is False, no
    other attribute is read."""

    def __init__(self, spec: str = "") -> None:
        """`spec`: `name=kill@3` kills the process at the third hit, `name=stop@1` stops it (SIGSTOP) at the first.
        Several are separated by commas."""
        self.plans: dict[str, tuple[str, int]] = {}
        self.counts: dict[str, int] = {}
        for part in filter(None, spec.split(",")):
            name, _, action = part.partition("=")
            verb, _, nth = action.partition("@")
            if verb not in ("kill", "stop", "count"):
                raise ConfigError(f"failpoint {part!r}: the action must be kill, stop or count, as in {name}=kill@3")
            self.plans[name] = (verb, int(nth or 1))
        self.armed = bool(self.plans)

    def hit(self, name: str) -> None:
        plan = self.plans.get(name)
        if plan is None:
            return
        count = self.counts[name] = self.counts.get(name, 0) + 1
        verb, nth = plan
        if count == nth and verb != "count":
            # Sent to this thread: a signal to the process might arrive only after this thread has continued.
            signal.pthread_kill(threading.get_ident(), signal.SIGKILL if verb == "kill" else signal.SIGSTOP)


class Runtime:
    """The real clock, threads and random numbers. A simulation provides the same methods."""

    def __init__(self, failpoints: Failpoints | None = None) -> None:
        self.failpoints = failpoints or Failpoints()
        self._random = random.Random(secrets.randbits(256))
        self._executors: dict[ThreadPool, ThreadPoolExecutor] = {}
        self._last_ulid = 0

    def clock(self) -> float:
        """Monotonic seconds, for measuring durations."""
        return time.monotonic()

    def now(self) -> float:
        """Seconds since 1970, for display. Leases use the database's clock."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Sleep until the time has passed or the event is set. If it is already set, return without yielding."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    def block(self, seconds: float) -> None:
        """Sleep in a thread other than that of the event loop."""
        time.sleep(seconds)

    def random(self) -> float:
        return self._random.random()

    def token(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

    def secret(self, bits: int = 256) -> str:
        """Random digits from the operating system, for keys. Those of `token` could be guessed from others."""
        return secrets.token_hex(bits // 8)

    def ulid(self) -> str:
        return self.ulids(1)[0]

    def ulids(self, count: int) -> Sequence[str]:
        """Identifiers that sort by time, even within one millisecond of a process."""
        fresh = (int(time.time() * 1000) << 80) | self._random.getrandbits(80)
        first = max(fresh, self._last_ulid + 1)
        self._last_ulid = first + count - 1
        return [_crockford(first + i) for i in range(count)]

    async def run_blocking(self, pool: ThreadPool, function: Callable[..., T], *args: object) -> T:
        """Run a blocking function in a thread pool, so that the event loop does not block."""
        return await asyncio.get_running_loop().run_in_executor(self.executor(pool), function, *args)

    async def run_sized(self, pool: ThreadPool, size: int, function: Callable[..., T], *args: object) -> T:
        """Like `run_blocking`, but call the function directly if its input of `size` bytes is small."""
        if size <= SMALL:
            return function(*args)
        return await self.run_blocking(pool, function, *args)

    def executor(self, pool: ThreadPool) -> ThreadPoolExecutor:
        if pool not in self._executors:
            self._executors[pool] = ThreadPoolExecutor(THREAD_POOLS[pool], thread_name_prefix=f"penstock-{pool}")
        return self._executors[pool]

    def close(self) -> None:
        for executor in self._executors.values():
            executor.shutdown(wait=True, cancel_futures=True)
        self._executors.clear()


async def opened(runtime: Runtime, connect: Callable[[], T], close: Callable[[T], object]) -> T:
    """Connect in a thread. If the caller is cancelled meanwhile, the thread closes the connection: the event loop may
    have ended by then."""
    lock, abandoned, made = threading.Lock(), False, list[T]()

    def connect_and_check() -> T:
        connection = connect()
        with lock:
            made.append(connection)
            unwanted = abandoned
        if unwanted:
            close(connection)
        return connection

    try:
        return await runtime.run_blocking("read", connect_and_check)
    except asyncio.CancelledError:
        with lock:
            abandoned = True
            unwanted = list(made)
        for connection in unwanted:
            close(connection)
        raise


def shielded(work: "Coroutine[Any, Any, T]") -> "asyncio.Future[T]":
    """Like `asyncio.shield`, but if the caller is cancelled, a later error of the work is not reported as a traceback
    on standard error."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_hear)
    return asyncio.shield(task)


def _hear(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


def _crockford(value: int) -> str:
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))
