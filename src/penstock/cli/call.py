"""One call of a command: its global options, its app, its answer, its exit code."""

import asyncio
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import Answer, deliver, note, write_json
from penstock.cli.signals import Interrupted, Signals
from penstock.privacy import masked

if TYPE_CHECKING:
    from penstock.app import App
    from penstock.config import Config
    from penstock.metrics.base import Metrics
    from penstock.verbs.owner import OwnerScope

_M_TRIM_THRESHOLD, _M_ARENA_MAX = -1, -8

Body = Callable[..., Coroutine[Any, Any, Answer]]

SHARED = (
    click.option("--home", metavar="DIR", help="Where everything is kept  [default: ./.penstock]"),
    click.option("--config", metavar="FILE", help="Settings  [default: ./penstock.yaml]"),
    click.option("--owner", metavar="NAME", help="Whose documents."),
    click.option("--json", is_flag=True, help="Answer with one JSON object."),
)
"""Options that every command takes, and that may also stand before its name."""


@dataclass
class Call:
    home: str | None = None
    config: str | None = None
    owner: str | None = None
    json: bool = False
    signals: Signals = field(default_factory=Signals)

    def take(self, values: dict[str, Any]) -> None:
        """Take the shared options out of what Click parsed; one that is not given keeps its value."""
        for option in ("home", "config", "owner", "json"):
            given = values.pop(option)
            if given not in (None, False):
                setattr(self, option, given)

    def settings(self) -> "Config":
        from pathlib import Path

        from penstock.config import load_config

        flags = {"home": self.home, "owner": self.owner}
        return load_config(flags, file=Path(self.config) if self.config is not None else None)

    @asynccontextmanager
    async def app(self, metrics: "Metrics | None" = None, *, for_ever: bool = False) -> "AsyncIterator[App]":
        """`for_ever`: waits for a database that is away, however long that takes."""
        from penstock.app import PATIENCE_S, open_app

        _show("penstock.ledger")
        async with open_app(self.settings(), metrics=metrics, patience_s=None if for_ever else PATIENCE_S) as app:
            yield app

    @asynccontextmanager
    async def scope(self) -> "AsyncIterator[OwnerScope]":
        async with self.app() as app:
            yield self.scoped(app)

    def scoped(self, app: "App") -> "OwnerScope":
        """The verbs of the owner that `--owner` or the settings name."""
        return app.for_owner(app.config.owner)

    @asynccontextmanager
    async def working_app(self, metrics: "Metrics | None" = None, *, for_ever: bool = False) -> "AsyncIterator[App]":
        """An app that is told to hand its work over when a signal comes, not just left."""
        _share_memory()
        # What the shipped handler `log` writes.
        _show("penstock.events")
        loop, cancel = asyncio.get_running_loop(), self.signals.stop
        async with self.app(metrics, for_ever=for_ever) as app:
            self.signals.working = True
            self.signals.stop = lambda: loop.call_soon_threadsafe(app.stop)
            if self.signals.received is not None:
                app.stop()
            try:
                yield app
            finally:
                self.signals.stop = cancel

    def fail(self, message: str, code: int) -> int:
        """One sentence for people, one object for programs."""
        message = masked(message)
        note(f"penstock: {message}")
        try:
            if self.json:
                write_json({"error": message})
        except OSError as error:
            _unwritten(error)
        return code


class InOrder(click.Group):
    """Commands are listed in the order in which one meets them, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def shared(invoke: Callable[..., int]) -> Callable[..., int]:
    for option in reversed(SHARED):
        invoke = option(invoke)
    return invoke


def body(function: Body) -> Callable[..., int]:
    """`async def command(call, …) -> Answer` as Click calls it, with the shared options added to its own."""

    def invoke(call: Call, **values: Any) -> int:
        call.take(values)
        return perform(call, function(call, **values))

    invoke.__name__, invoke.__doc__ = function.__name__, function.__doc__
    return shared(click.pass_obj(invoke))


def perform(call: Call, work: Coroutine[Any, Any, Answer]) -> int:
    """Run a command to its end, whatever that is; the exit code."""
    from penstock.errors import PenstockError, UsageError

    call.signals.give_up = lambda: call.fail(
        "interrupted; something did not stop in time, but what was accepted is safe", 0
    )
    try:
        answer = _to_its_end(_stoppable(call.signals, work))
    except BrokenPipeError as error:
        return _unwritten(error)
    except (Interrupted, asyncio.CancelledError, KeyboardInterrupt):
        return call.fail("interrupted", call.signals.code)
    except UsageError as error:
        return call.fail(str(error), 2)
    except PenstockError as error:
        if call.signals.received is not None:
            return call.fail(f"interrupted: {error}", call.signals.code)
        return call.fail(str(error), 1)
    except Exception as error:
        for line in traceback.format_exc().rstrip().splitlines():
            note(line)
        return call.fail(f"unexpected {type(error).__name__}: {error} (a bug: what was accepted is safe)", 1)
    try:
        deliver(answer, call.json)
    except OSError as error:
        return _unwritten(error)
    return answer.code


def _to_its_end(work: Coroutine[Any, Any, Answer]) -> Answer:
    """As `asyncio.run`. There, `sys.exit()` in any task ends the loop and all that runs in it: a step that starts such
    a task would end every worker, and no attempt would count. Here only whoever waits for that task hears of it."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(work)
        while True:
            try:
                return loop.run_until_complete(task)
            except SystemExit:
                if task.done():
                    raise
            except KeyboardInterrupt:
                # From a signal only where our handlers are not installed.
                if task.done() or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    raise


async def _stoppable(signals: Signals, work: Coroutine[Any, Any, Answer]) -> Answer:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    signals.stop = lambda: loop.call_soon_threadsafe(task.cancel)
    try:
        return await work
    finally:
        signals.settle()


def _share_memory() -> None:
    """Else glibc keeps what each of our threads and of Lance's has freed for that thread alone: a third of the peak."""
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_ARENA_MAX, 2)
    mallopt(_M_TRIM_THRESHOLD, 128 << 10)


class Notes(logging.Handler):
    """Log records as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            note(line)


def _show(name: str) -> None:
    """What this logger is told goes to standard error."""
    logger = logging.getLogger(name)
    if not logger.handlers:
        logger.setLevel(logging.INFO)
        logger.addHandler(Notes())


def _unwritten(error: OSError) -> int:
    """Standard output takes nothing more; what is still buffered must not be tried again at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        # The reader has left, as `head` does: end quietly, as a program does that SIGPIPE ends.
        return 128 + signal.SIGPIPE
    note(f"penstock: the answer could not be written: {error.strerror}")
    return 1
