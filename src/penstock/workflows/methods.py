"""The user's own functions, by their dotted path."""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import foreign
from penstock.errors import ConfigError
from penstock.model.nouns import Workflow
from penstock.workflows.source import Source


def load(method: str) -> Callable[..., Any]:
    """`package.module.function`. The working directory is looked into last, as for a script of the user's own."""
    module, _, name = method.rpartition(".")
    if not module:
        raise ConfigError(f"{method!r} is no dotted path: write package.module.function")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"{method!r} cannot be imported: {error}") from error
    except KeyboardInterrupt:
        raise
    except AttributeError as error:
        raise ConfigError(f"{method!r} cannot be imported: {module} has no {name}") from error
    except BaseException as error:
        # Whatever a module does when it is loaded, `sys.exit()` included.
        raise ConfigError(f"{method!r} cannot be imported: {foreign.sentence(error)}") from error
    if not inspect.iscoroutinefunction(found):
        raise ConfigError(f"{method!r} is no `async def` function")
    result: Callable[..., Any] = found
    return result


def version(method: str) -> str:
    """What decides, besides the path, what a function makes: its own `version`, or its module's `__version__`."""
    function = load(method)
    own = getattr(function, "version", None) or getattr(sys.modules[function.__module__], "__version__", "")
    return str(own)


def check_methods(workflow: Workflow, text: Source) -> None:
    for step in workflow.steps:
        if step.method is not None:
            _try(text, step.method, step.name)
    for event, handlers in workflow.lifecycle_events.items():
        for i, handler in enumerate(handlers):
            if handler.method is not None:
                _try(text, handler.method, ("lifecycle_events", event, i, "method"))


def _try(text: Source, method: str, where: str | tuple[str | int, ...]) -> None:
    try:
        load(method)
    except ConfigError as error:
        place = text.step(where) if isinstance(where, str) else where
        text.complain(place, str(error))
