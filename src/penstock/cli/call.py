"""One call of a command: its global options, its app, its answer, its exit code. Commands are registered here."""

import asyncio
import inspect
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from penstock.cli.output import Answer, deliver, note, visible, write_json
from penstock.cli.signals import Interrupted, Signals

if TYPE_CHECKING:
    from penstock.app import App
    from penstock.config import Config

Home = Annotated[str | None, typer.Option("--home", metavar="DIR", help="Where everything is kept [./.penstock].")]
ConfigFile = Annotated[str | None, typer.Option("--config", metavar="FILE", help="Settings [./penstock.yaml].")]
OwnerName = Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Whose documents.")]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]

SHARED = {"home": (Home, None), "config": (ConfigFile, None), "owner": (OwnerName, None), "json": (Json, False)}
"""Options that every command takes, and that may also stand before its name."""

Body = Callable[..., Coroutine[Any, Any, Answer]]


@dataclass
class Call:
    home: str | None = None
    config: str | None = None
    owner: str | None = None
    json: bool = False
    signals: Signals = field(default_factory=Signals)

    def settings(self) -> "Config":
        from pathlib import Path

        from penstock.config import load_config

        flags = {"home": self.home, "owner": self.owner}
        return load_config(flags, file=Path(self.config) if self.config is not None else None)

    @asynccontextmanager
    async def app(self) -> "AsyncIterator[App]":
        from penstock.app import open_app

        async with open_app(self.settings()) as app:
            yield app

    @asynccontextmanager
    async def working_app(self) -> "AsyncIterator[App]":
        """An app that is told to hand its work over when a signal comes, not just left."""
        loop, cancel = asyncio.get_running_loop(), self.signals.stop
        async with self.app() as app:
            self.signals.working = True
            self.signals.stop = lambda: (loop.call_soon_threadsafe(app.stop), None)[1]
            if self.signals.received is not None:
                app.stop()
            try:
                yield app
            finally:
                self.signals.stop = cancel

    def fail(self, message: str, code: int) -> int:
        """One sentence for people, one object for programs."""
        note(f"penstock: {visible(message)}")
        if self.json:
            write_json({"error": message})
        return code


def command(group: typer.Typer, name: str) -> Callable[[Body], Body]:
    """Register `async def body(call, …) -> Answer` under a name, with the shared options added to its own."""

    def register(body: Body) -> Body:
        hints = get_type_hints(body, include_extras=True)
        own = [p.replace(annotation=hints[p.name]) for p in list(inspect.signature(body).parameters.values())[1:]]

        def invoke(ctx: typer.Context, **values: Any) -> int:
            call: Call = ctx.obj
            for option in SHARED:
                setattr(call, option, values.pop(option) or getattr(call, option))
            return perform(call, body(call, **values))

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *(p.replace(kind=keyword) for p in own),
            *(inspect.Parameter(n, keyword, annotation=kind, default=no) for n, (kind, no) in SHARED.items()),
        ]
        invoke.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        invoke.__annotations__ = {p.name: p.annotation for p in parameters}
        group.command(name, help=inspect.getdoc(body))(invoke)
        return body

    return register


def perform(call: Call, body: Coroutine[Any, Any, Answer]) -> int:
    """Run a command to its end, whatever that is; the exit code."""
    from penstock.errors import PenstockError, UsageError

    call.signals.give_up = lambda: (call.fail("interrupted while something was still waiting", 0), None)[1]
    try:
        answer = asyncio.run(_stoppable(call.signals, body))
        deliver(answer, call.json)
        return answer.code
    except (Interrupted, asyncio.CancelledError, KeyboardInterrupt):
        return call.fail("interrupted", call.signals.code)
    except BrokenPipeError:
        return gone()
    except UsageError as error:
        return call.fail(str(error), 2)
    except PenstockError as error:
        return call.fail(str(error), 1)
    except Exception as error:
        note(traceback.format_exc().rstrip())
        return call.fail(f"unexpected {type(error).__name__}: {error} (a bug: what was accepted is safe)", 1)


async def _stoppable(signals: Signals, body: Coroutine[Any, Any, Answer]) -> Answer:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    signals.stop = lambda: (loop.call_soon_threadsafe(task.cancel), None)[1]
    try:
        return await body
    finally:
        signals.settle()


def gone() -> int:
    """The reader has left, as `head` does: end quietly, as a program does that SIGPIPE ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE
