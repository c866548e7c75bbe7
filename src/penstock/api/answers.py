"""Answers as JSON, and their schemas."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Response

from penstock.verbs.as_json import TIMES, as_data, encode

JSON = "application/json"
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "error"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        # Text for clients of Soliplex, an object for those of OpenAI.
        "error": {"type": ["string", "object"]},
        "request_id": {"type": "string"},
    },
}
_REF = "#/components/schemas/"


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A struct, or a dict or list with structs in it, as JSON, with the times as ISO 8601."""
    return Response(encode(_shown(data)), status, headers, JSON)


def _shown(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _shown(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_shown(value) for value in data]
    return as_data(data)


def described(shape: Any, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The responses of an operation that answers with a struct, or with an object of named types. `[T]` is a list."""
    content = {JSON: {"schema": _schema(shape)}}
    return {status: {"description": "The answer.", "content": content}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The responses of an operation that may fail with these statuses."""
    content = {"application/problem+json": {"schema": PROBLEM}}
    return {status: {"description": "A problem.", "content": content} for status in statuses}


def _schema(shape: Any) -> dict[str, Any]:
    if isinstance(shape, dict):
        properties = {name: _schema(inner) for name, inner in shape.items()}
        return {"type": "object", "required": list(properties), "properties": properties}
    if isinstance(shape, list):
        return {"type": "array", "items": _schema(shape[0])}
    [schema], components = msgspec.json.schema_components([shape], ref_template=_REF + "{name}")
    resolved: dict[str, Any] = _resolved(schema, components)
    return resolved


def _resolved(schema: Any, components: Mapping[str, Any]) -> Any:
    """The schema with what it refers to in place."""
    if isinstance(schema, list):
        return [_resolved(one, components) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolved(components[schema["$ref"].removeprefix(_REF)], components)
    if "prefixItems" in schema:
        # FastAPI writes tuples in a form that OpenAPI 3.1 does not know.
        return {"type": "array"}
    made = {key: _resolved(value, components) for key, value in schema.items() if key not in ("title", "default")}
    properties = made.get("properties")
    if isinstance(properties, dict):
        for name in properties:
            if name in TIMES:
                properties[name] = {"type": ["string", "null"], "format": "date-time"}
    return made
