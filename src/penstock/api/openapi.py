"""The OpenAPI document: what FastAPI makes, with the ways to show a key, and shared schemas named once."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from penstock.api.answers import PROBLEM
from penstock.api.fields import FILTERS
from penstock.api.keys import COOKIE

METHODS = ("get", "put", "post", "patch", "delete", "head", "options", "query")
OPEN = ("upload_options", "open_session", "healthz", "readyz", "problems")
"""The operations that need no key."""
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key (`pk_…`), or a tenant token."},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API key, or a tenant token."},
    "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "The session of a browser."},
}


def describe(api: FastAPI) -> None:
    """Let the app make its document when it is first asked for. Routes may be added until then."""

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _document(api)
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """The path, the method and the description of each operation."""
    return [
        (path, method, one)
        for path, methods in document["paths"].items()
        for method, one in methods.items()
        if method in METHODS
    ]


def _document(api: FastAPI) -> dict[str, Any]:
    made = get_openapi(title=api.title, version=api.version, routes=api.routes)
    components = made.setdefault("components", {})
    components["schemas"] = _linked(components.get("schemas", {})) | FILTERS | {"Problem": PROBLEM}
    components["securitySchemes"] = SCHEMES
    made["security"] = [{name: []} for name in SCHEMES]
    for _, _, one in operations(made):
        if one["operationId"] in OPEN:
            one["security"] = []
        one.update(_linked({name: one[name] for name in ("parameters", "requestBody") if name in one}))
        for parameter in one.get("parameters", ()):
            _show_json(parameter)
        for answer in one["responses"].values():
            for content in answer.get("content", {}).values():
                if content.get("schema") == PROBLEM:
                    content["schema"] = {"$ref": "#/components/schemas/Problem"}
    return made


def _linked(schema: Any) -> Any:
    """The schema with what stands for an object replaced by the schema of that object."""
    if isinstance(schema, list):
        return [_linked(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "object" and "contentSchema" in schema:
        return schema["contentSchema"]
    return {name: _linked(value) for name, value in schema.items()}


def _show_json(parameter: dict[str, Any]) -> None:
    """Let a parameter that is JSON say so."""
    schema = parameter.get("schema", {})
    found = [one for one in (schema, *schema.get("anyOf", ())) if "contentSchema" in one]
    if found:
        del parameter["schema"]
        parameter["content"] = {"application/json": {"schema": found[0]["contentSchema"]}}
