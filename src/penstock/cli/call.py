"""One invocation of a command: its global options, its app, its output, its exit code."""

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import completion
from penstock.cli.output import Answer, deliver, encode, note, visible, when, write_json
from penstock.cli.signals import Interrupted, Signals
from penstock.redaction import masked

if TYPE_CHECKING:
    from penstock.app import App
    from penstock.config import Config
    from penstock.metrics.base import Metrics
    from penstock.verbs.owner import OwnerScope

_M_TRIM_THRESHOLD, _M_ARENA_MAX = -1, -8

Body = Callable[..., Coroutine[Any, Any, Answer]]

SHARED = (
    click.option(
        "--home", metavar="DIR", shell_complete=completion.folders, help="Folder for all data  [default: ./.penstock]"
    ),
    click.option(
        "--config", metavar="FILE", shell_complete=completion.files, help="Settings file  [default: ./penstock.yaml]"
    ),
    click.option("--owner", metavar="NAME", help="Owner of the documents."),
    click.option("--server", metavar="URL", help="Use this server instead of a home."),
    click.option("--key-file", metavar="FILE", help="File with the API key for the server."),
    click.option("--json", is_flag=True, help="Print one JSON object."),
    click.option("--quiet", "-q", is_flag=True, help="Print only the result and errors."),
    click.option("--verbose", "-v", is_flag=True, help="Also print what the engine logs."),
    click.option("--log", type=click.Choice(["text", "json"]), help="Format of log lines on standard error."),
)
"""Options that every command accepts, before or after its name."""


@dataclass
class Call:
    home: str | None = None
    config: str | None = None
    owner: str | None = None
    server: str | None = None
    key_file: str | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    log: str | None = None
    signals: Signals = field(default_factory=Signals)

    def take(self, values: dict[str, Any]) -> None:
        """Move the shared options out of `values`; an option that is not given keeps its value."""
        for option in ("home", "config", "owner", "server", "key_file", "json", "quiet", "verbose", "log"):
            given = values.pop(option)
            if given not in (None, False):
                setattr(self, option, given)
        if self.verbose or self.log is not None:
            _log_all(verbose=self.verbose, as_json=self.log == "json")

    @property
    def server_url(self) -> str | None:
        """The server to use. None: a home."""
        return self.server or (None if self.home is not None else os.environ.get("PENSTOCK_SERVER") or None)

    def settings(self) -> "Config":
        from pathlib import Path

        from penstock.config import load_config

        if self.server_url is not None:
            from penstock.cli.server import refusal

            raise refusal(self)
        flags = {"home": self.home, "owner": self.owner}
        return load_config(flags, file=Path(self.config) if self.config is not None else None)

    @asynccontextmanager
    async def app(
        self, metrics: "Metrics | None" = None, *, for_ever: bool = False, new: bool = False
    ) -> "AsyncIterator[App]":
        """Open the app. `for_ever`: wait without limit for a database that is unavailable. `new`: make the home if
        there is none."""
        from penstock.app import PATIENCE_S, open_app

        _show("penstock.ledger")
        config = self.settings()
        if not new:
            _refuse_missing(config)
        async with open_app(config, metrics=metrics, patience_s=None if for_ever else PATIENCE_S) as app:
            yield app

    @asynccontextmanager
    async def scope(self, *, new: bool = False) -> "AsyncIterator[OwnerScope]":
        """The verbs of an owner, in the home or on a server."""
        if self.server_url is not None:
            from penstock.cli.server import scope_of

            async with scope_of(self) as there:
                yield there
            return
        async with self.app(new=new) as app:
            yield self.scoped(app)

    def scoped(self, app: "App") -> "OwnerScope":
        """The verbs of the owner that `--owner` or the settings name."""
        return app.for_owner(app.config.owner)

    @asynccontextmanager
    async def working_app(self, metrics: "Metrics | None" = None, *, for_ever: bool = False) -> "AsyncIterator[App]":
        """Open an app that releases its running steps when a signal arrives."""
        import asyncio

        _share_memory()
        # The output of the built-in handler `log`.
        _show("penstock.events")
        loop, cancel = asyncio.get_running_loop(), self.signals.stop
        async with self.app(metrics, for_ever=for_ever, new=True) as app:
            self.signals.working = True
            self.signals.stop = lambda: loop.call_soon_threadsafe(app.stop)
            if self.signals.received is not None:
                app.stop()
            try:
                yield app
            finally:
                self.signals.stop = cancel

    def confirms(self, question: str) -> bool:
        """Ask on the terminal, and return whether the answer is yes. A signal is an interruption."""
        import select

        sys.stderr.write(f"{visible(question)} [y/N] ")
        sys.stderr.flush()
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            if self.signals.received is not None:
                sys.stderr.write("\n")
                raise Interrupted
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def fail(self, error: "str | Exception", code: int) -> int:
        """Print the error to standard error, and with --json also as an object. Return `code`."""
        from penstock.errors import Ambiguous, ConfigError

        match error:
            case Ambiguous():
                lines = [error.message, *(f"  {line}" for line in error.candidates)]
            case ConfigError():
                lines = list(error.problems)
            case _:
                lines = [masked(str(error))]
        for line in lines:
            note(line if line.startswith("  ") else f"penstock: {masked(line)}")
        try:
            if self.json:
                write_json({"error": masked(str(error))})
        except OSError as error:
            _unwritten(error)
        return code


class InOrder(click.Group):
    """Lists commands in the order of their definition instead of alphabetically."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def shared(invoke: Callable[..., int]) -> Callable[..., int]:
    for option in reversed(SHARED):
        invoke = option(invoke)
    return invoke


def body(function: Body) -> Callable[..., int]:
    """Make a Click callback of `async def command(call, …) -> Answer`, and add the shared options."""

    def invoke(call: Call, **values: Any) -> int:
        call.take(values)
        return perform(call, function(call, **values))

    invoke.__name__, invoke.__doc__ = function.__name__, function.__doc__
    return shared(click.pass_obj(invoke))


def perform(call: Call, work: Coroutine[Any, Any, Answer]) -> int:
    """Run a command, print its output or error, and return the exit code."""
    import asyncio
    import traceback

    from penstock.errors import PenstockError, UsageError

    call.signals.give_up = lambda: call.fail(
        "interrupted; the work did not stop in time, but accepted documents are safe", 0
    )
    try:
        answer = _to_its_end(_stoppable(call.signals, work))
    except BrokenPipeError as error:
        return _unwritten(error)
    except (Interrupted, asyncio.CancelledError, KeyboardInterrupt):
        return call.fail("interrupted", call.signals.code_of_stop)
    except UsageError as error:
        return call.fail(error, 2)
    except PenstockError as error:
        if call.signals.received is not None:
            return call.fail(f"interrupted: {error}", call.signals.code)
        return call.fail(str(error), 1)
    except Exception as error:
        for line in traceback.format_exc().rstrip().splitlines():
            note(line)
        return call.fail(f"unexpected {type(error).__name__}: {error} (this is a bug; accepted documents are safe)", 1)
    try:
        deliver(answer, call.json, call.quiet)
    except OSError as error:
        return _unwritten(error)
    return answer.code


def _refuse_missing(config: "Config") -> None:
    """A command that only reads or changes documents makes no home: the folder is probably a wrong one."""
    from penstock.errors import UsageError

    try:
        missing = config.database is None and not (config.home_path / "ledger.db").exists()
    except PermissionError:
        return
    if missing:
        raise UsageError(
            f"there are no documents in {config.home_path}: add some with `penstock ingest PATH`, or name another "
            "folder with --home or PENSTOCK_HOME"
        )


def _to_its_end(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Like `asyncio.run`, but `sys.exit()` in another task does not end the event loop. Otherwise a custom step that
    starts such a task would end every worker that claims it, without using up an attempt."""
    import asyncio

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
                # It comes from a signal only if our handlers are not installed.
                if task.done() or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    raise


async def _stoppable(signals: Signals, work: Coroutine[Any, Any, Answer]) -> Answer:
    import asyncio

    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    signals.stop = lambda: loop.call_soon_threadsafe(task.cancel)
    try:
        return await work
    finally:
        signals.settle()


def _share_memory() -> None:
    """Let all threads share glibc's free memory. By default each thread keeps its own: a third of peak memory."""
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_ARENA_MAX, 2)
    mallopt(_M_TRIM_THRESHOLD, 128 << 10)


class Notes(logging.Handler):
    """Writes log records as lines to standard error."""

    def __init__(self, level: int = logging.NOTSET, *, as_json: bool = False) -> None:
        super().__init__(level)
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        if self._as_json:
            data = {
                "time": when(record.created),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": masked(self.format(record)),
            }
            note(encode(data).decode())
            return
        for line in self.format(record).splitlines():
            note(line)


def _log_all(*, verbose: bool, as_json: bool) -> None:
    """Write the records of all our loggers to standard error."""
    logger = logging.getLogger("penstock")
    logger.handlers[:] = [Notes(as_json=as_json)]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    # Otherwise a handler of the root logger would print them again.
    logger.propagate = False


def _show(name: str) -> None:
    """Write the records of this logger to standard error."""
    if logging.getLogger("penstock").handlers:
        return
    logger = logging.getLogger(name)
    if not logger.handlers:
        logger.setLevel(logging.INFO)
        logger.addHandler(Notes())


def _unwritten(error: OSError) -> int:
    """Standard output failed. Discard what is still buffered, so that the interpreter does not write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        # The reader closed the pipe, as `head` does: end without a message, like a program that SIGPIPE ends.
        return 128 + signal.SIGPIPE
    note(f"penstock: the output could not be written: {error.strerror}")
    return 1
