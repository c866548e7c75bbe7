"""Values of steps as a person writes them: `chunk.size=300`."""

import math
from collections.abc import Sequence
from typing import Any

from penstock.errors import UsageError


def by_step(given: Sequence[str], what: str = "--set ") -> dict[str, dict[str, Any]]:
    """Parse `chunk.size=300` into values by step. The name of a step may contain dots, that of a value may not. `what`
    is how an error begins."""
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        place, equals, value = text.partition("=")
        step, _, name = place.rpartition(".")
        if not (step and name and equals):
            raise UsageError(f"{what}{text[:200]}: write STEP.NAME=VALUE, as in chunk.size=300")
        found.setdefault(step, {})[name] = _scalar(f"{what}{text[:200]}", value)
    return found


def _scalar(where: str, value: str) -> object:
    import yaml

    try:
        found: object = yaml.safe_load(value)
    except yaml.YAMLError:
        found = ()
    if isinstance(found, float) and not math.isfinite(found):
        found = ()
    if found is None or isinstance(found, bool | int | float | str):
        return found
    if isinstance(found, list | dict | tuple):
        raise UsageError(f"{where}: the value must be a number, a string, true, false or null")
    # YAML parses dates; Penstock keeps them as strings.
    return value
