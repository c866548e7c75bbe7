"""Options of `retry` and `dlq replay` that change workflow, parameter set or values."""

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
    from penstock.verbs import step_values

    return step_values.by_step(given)
