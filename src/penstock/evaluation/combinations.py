"""The settings to compare: `chunk.size=500,1000` and `mode=text,hybrid` are four combinations."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import UsageError

MODES = ("hybrid", "vector", "text")
MOST = 32
"""The highest number of combinations of one call."""

Settings = dict[str, Any]


def parse_try(text: str) -> tuple[str, list[Any]]:
    """Parse `NAME=VALUE,VALUE`."""
    import yaml

    name, equals, values = text.partition("=")
    name = name.strip()
    found = []
    for value in values.split(","):
        try:
            one = yaml.safe_load(value)
        except yaml.YAMLError:
            one = ()
        if not isinstance(one, bool | int | float | str) or (isinstance(one, float) and not math.isfinite(one)):
            raise UsageError(f"--try {text}: write NAME=VALUE,VALUE, as in chunk.size=500,1000")
        found.append(one)
    if not (name and equals):
        raise UsageError(f"--try {text}: write NAME=VALUE,VALUE, as in chunk.size=500,1000")
    return name, found


def combinations(tries: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """The present settings, which are an empty combination, then all combinations of the values. Raises UsageError for
    more than MOST."""
    for name, values in tries.items():
        if name == "mode" and (wrong := [value for value in values if value not in MODES]):
            raise UsageError(f"mode {wrong[0]!r}: use one of {', '.join(MODES)}")
        if not (name in ("mode", "embedder") or all(name.rpartition(".")[::2])):
            raise UsageError(
                f"{name!r} cannot be tried: use mode, embedder, or STEP.NAME for a value of a step, as in chunk.size"
            )
        if not values:
            raise UsageError(f"{name}: no value to try")
    count = math.prod(len(values) for values in tries.values())
    if count > MOST:
        raise UsageError(f"these values make {count:,} combinations, and at most {MOST} can be compared in one call")
    products = [dict(zip(tries, chosen, strict=True)) for chosen in itertools.product(*tries.values())]
    found: list[Settings] = [{}]
    for one in products:
        if one not in found:
            found.append(one)
    return found


def label(settings: Settings) -> str:
    return "  ".join(f"{name}={value}" for name, value in settings.items()) or "present settings"
