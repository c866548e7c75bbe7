"""Answers as JSON."""

from collections.abc import Mapping
from typing import Any

from fastapi import Response

from penstock.verbs.as_json import as_data, encode

JSON = "application/json"


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A struct, or a dict or list with structs in it, as JSON, with the times as ISO 8601."""
    return Response(encode(_shown(data)), status, headers, JSON)


def _shown(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _shown(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_shown(value) for value in data]
    return as_data(data)
