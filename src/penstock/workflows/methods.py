"""Functions of the user, imported by their dotted path."""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import user_code
from penstock.errors import ConfigError
from penstock.model.nouns import Workflow
from penstock.yaml_file import YamlFile


def load(method: str) -> Callable[..., Any]:
    """Import `package.module.function`. The working directory is the last entry of the search path."""
    module, _, name = method.rpartition(".")
    if not module:
        raise ConfigError(f"{method!r} is not a dotted path: use package.module.function")
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
        # A module may do anything when it is imported, even call `sys.exit()`.
        raise ConfigError(f"{method!r} cannot be imported: {user_code.sentence(error)}") from error
    if not inspect.iscoroutinefunction(found):
        raise ConfigError(f"{method!r} is not an `async def` function")
    result: Callable[..., Any] = found
    return result


def version(method: str) -> str:
    """The version of a function: its attribute `version`, or `__version__` of its module. It is part of the
    fingerprint of its output."""
    function = load(method)
    own = getattr(function, "version", None) or getattr(sys.modules[function.__module__], "__version__", "")
    return str(own)


def check_methods(workflow: Workflow, text: YamlFile) -> None:
    for step in workflow.steps:
        if step.method is not None:
            _try(text, step.method, step.name)
    for event, handlers in workflow.lifecycle_events.items():
        for i, handler in enumerate(handlers):
            if handler.method is not None:
                _try(text, handler.method, ("lifecycle_events", event, i, "method"))


def _try(text: YamlFile, method: str, where: str | tuple[str | int, ...]) -> None:
    try:
        load(method)
    except ConfigError as error:
        place = text.step(where) if isinstance(where, str) else where
        text.complain(place, str(error))
