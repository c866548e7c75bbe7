"""What a retry or a replay changes, compared with the run that it repeats."""

from collections.abc import Mapping
from typing import Any

import msgspec


class Changes(msgspec.Struct, frozen=True):
    """The changes. None or an empty value means no change."""

    workflow: str | None = None
    params: str | None = None
    values: Mapping[str, Mapping[str, Any]] = {}
    password: str | None = None
