"""Options of `retry` and `dlq replay` that change workflow, parameter set or values."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def changes(command: F) -> F:
    for option in (
        click.option("--set", "values", metavar="STEP.NAME=VALUE", multiple=True, help="Use this value."),
        click.option("--params", metavar="ID", help="Use the values of this parameter set."),
        click.option("--workflow", metavar="ID", help="Use this workflow instead of the run's own."),
    ):
        command = option(command)
    return command


def by_step(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse `chunk.size=300` into values by step. The name of a step may contain dots, that of a value may not."""
    from penstock.errors import UsageError

    found: dict[str, dict[str, Any]] = {}
    for text in given:
        place, equals, value = text.partition("=")
        step, _, name = place.rpartition(".")
        if not (step and name and equals):
            raise UsageError(f"--set {text}: write STEP.NAME=VALUE, as in chunk.size=300")
        found.setdefault(step, {})[name] = _scalar(text, value)
    return found


def _scalar(text: str, value: str) -> object:
    import yaml

    from penstock.errors import UsageError

    try:
        found: object = yaml.safe_load(value)
    except yaml.YAMLError:
        found = ()
    if isinstance(found, float) and not math.isfinite(found):
        found = ()
    if found is None or isinstance(found, bool | int | float | str):
        return found
    if isinstance(found, list | dict | tuple):
        raise UsageError(f"--set {text}: the value must be a number, a string, true, false or null")
    # YAML parses dates; Penstock keeps them as strings.
    return value
