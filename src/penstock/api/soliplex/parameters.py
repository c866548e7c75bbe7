"""The parameters of the calls of Soliplex's clients, and their schemas."""

from dataclasses import dataclass
from typing import Any, Literal

from penstock.api.fields import DEFINITION, TEXT
from penstock.verbs.arguments import TEXT_LIMIT

Kind = Literal["text", "number", "flag", "json", "file", "definition"]
LARGEST = 10**15


@dataclass(frozen=True)
class Word:
    """A parameter."""

    name: str
    kind: Kind = "text"
    example: Any = "x"
    needed: bool = True
    also: str = ""
    """Another name, which some clients use."""
    choices: tuple[str, ...] = ()
    pattern: str = ""
    least: int = -LARGEST
    most: int = LARGEST


_TEXT = {"type": "string", "maxLength": TEXT_LIMIT, "pattern": TEXT}
_NUMERAL = "-?[0-9]{1,15}"
_FLAG = {"type": "string", "pattern": "^([Tt]rue|[Ff]alse|1|0|yes|no|on|off|)$"}
_OBJECT: dict[str, Any] = {"contentMediaType": "application/json", "contentSchema": {"type": "object"}}
_NAME: dict[str, Any] = {
    "type": "string", "minLength": 1, "maxLength": 200, "pattern": DEFINITION, "not": {"pattern": "[.](yaml|yml)$"},
}  # fmt: skip


def schema_of(word: Word, *, in_json: bool = False) -> dict[str, Any]:
    """The schema of a parameter. JSON may have what a form has, as strings, too."""
    some = _schemas(word)
    if in_json:
        some += [] if word.needed else [{"type": "null"}]
    elif word.kind == "flag":
        some = [some[0], _FLAG]
    else:
        some = some[:1]
    return {**(some[0] if len(some) == 1 else {"anyOf": some}), "example": word.example}


def _schemas(word: Word) -> list[dict[str, Any]]:
    if word.choices:
        return [{"type": "string", "enum": list(word.choices)}]
    match word.kind:
        case "text":
            return [{**_TEXT, "pattern": word.pattern} if word.pattern else _TEXT, {"type": "number"}]
        case "number":
            numeral = f"^{_NUMERAL}$" if word.needed else f"^({_NUMERAL})?$"
            return [
                {"type": "integer", "minimum": word.least, "maximum": word.most},
                {"type": "string", "pattern": numeral},
            ]
        case "flag":
            return [{"type": "boolean"}, {"type": "integer", "enum": [0, 1]}, _FLAG]
        case "json":
            return [{"type": "string", **_OBJECT}, {"type": "object"}]
        case "definition":
            return [_NAME if word.needed else {**_NAME, "minLength": 0}]
        case "file":
            return [{"type": "string", "format": "binary"}]
