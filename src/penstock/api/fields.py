"""Fields that several operations have, with what is allowed in them."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from penstock.config import check_name
from penstock.errors import ConfigError, UsageError
from penstock.verbs import arguments
from penstock.yaml_file import SUFFIXES

COLLECTION = r"^[A-Za-z0-9][A-Za-z0-9_.@+-]{0,99}$"
TEXT = r"^[^\x00]*$"
ID = r"^[0-9A-HJKMNP-TV-Z]{26}$"
DEFINITION = r"^[^/\\\x00]*$"


def is_definition_id(name: str) -> bool:
    """False: the name is the path of a file on the server, which only the operator may name."""
    return "/" not in name and "\\" not in name and not name.endswith(SUFFIXES)


def _definition(name: str) -> str:
    if not is_definition_id(name):
        raise ValueError("name a workflow or a parameter set by its id")
    return _text(name)


def _collection(name: str) -> str:
    try:
        return check_name("collection", name)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _text(text: str) -> str:
    try:
        return arguments.text("the text", text)
    except UsageError as error:
        raise ValueError(str(error)) from None


Collection = Annotated[
    str, Field(json_schema_extra={"pattern": COLLECTION}, examples=["default"]), AfterValidator(_collection)
]
Text = Annotated[
    str, Field(max_length=arguments.TEXT_LIMIT, json_schema_extra={"pattern": TEXT}), AfterValidator(_text)
]
Named = Annotated[Text, Field(min_length=1)]
DocumentIdText = Annotated[str, Field(pattern=ID, examples=["01M7GZQJXCK1BXB2ZYP1YTP0G8"])]
DefinitionId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        json_schema_extra={"pattern": DEFINITION, "not": {"pattern": rf"({'|'.join(SUFFIXES).replace('.', '[.]')})$"}},
        examples=["default"],
    ),
    AfterValidator(_definition),
]


def _whole(value: object) -> object:
    # In JSON, 5.0 is a whole number.
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""Stands after the limits of a number, so that its schema has them."""
Priority = Annotated[
    int, Field(ge=-arguments.PRIORITY, le=arguments.PRIORITY, description="Higher ones come first."), WHOLE
]
Values = Annotated[
    dict[str, dict[str, Any]],
    Field(description="Parameters by the name of the step and their own.", examples=[{"chunk": {"size": 500}}]),
]

FILTER: dict[str, Any] = {"$ref": "#/components/schemas/Filter"}
_ANY: dict[str, Any] = {}
_SOME = {"type": "array", "minItems": 1, "items": FILTER}
_ORDERED = {"type": ["number", "string"]}
_TEST = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "$eq": _ANY, "$ne": _ANY, "$in": {"type": "array"}, "$nin": {"type": "array"},
        "$gt": _ORDERED, "$gte": _ORDERED, "$lt": _ORDERED, "$lte": _ORDERED, "$exists": {"type": "boolean"},
        "$not": {"$ref": "#/components/schemas/FilterTest"},
    },
}  # fmt: skip
FILTERS: dict[str, Any] = {
    "Filter": {
        "description": "Fields with their values or tests; all of them must hold.",
        "type": "object",
        "properties": {"$and": _SOME, "$or": _SOME, "$not": FILTER},
        "patternProperties": {"^[^$]": {"$ref": "#/components/schemas/FilterTest"}},
        "additionalProperties": False,
        "example": {"year": {"$gte": 2020}},
    },
    "FilterTest": {
        "anyOf": [
            _TEST,
            {"type": "object", "propertyNames": {"pattern": "^([^$]|$)"}},
            {"type": ["string", "number", "boolean", "array", "null"]},
        ]
    },
}
"""The schemas of filters."""
Filter = Annotated[dict[str, Any], Field(json_schema_extra={"contentSchema": FILTER})]


def in_query(schema: dict[str, Any]) -> dict[str, Any]:
    """What the schema of a query parameter says that holds JSON."""
    return {"contentMediaType": "application/json", "contentSchema": schema}
