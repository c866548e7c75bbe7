"""Answers of the service that the library has no struct for."""

from typing import Any

import msgspec


class CountedAction(msgspec.Struct, frozen=True):
    """How many documents an action would change."""

    verb: str
    count: int
    exact: bool
    """False: there are at least `count`."""


class Session(msgspec.Struct, frozen=True):
    """Who the caller is, and what it may do."""

    owner: str
    actor: str
    scopes: list[str]
    collections: list[str] | None = None


class WorkflowView(msgspec.Struct, frozen=True):
    id: str
    name: str
    steps: list[str]


class ParameterSetView(msgspec.Struct, frozen=True):
    id: str
    name: str
    config: dict[str, Any]
