"""Filters: which documents a search or a list may return.

A filter is a mapping with the words `$eq $ne $in $nin $gt $gte $lt $lte $exists $and $or $not`, for example
`{"author": "ann", "year": {"$gte": 2020}}`. `compiled` checks it and returns a predicate; `parsed` reads the form of
the command line, such as `year>=2020`. The rules of comparison:

- Values are equal only if they have the same type: a number never equals text, and true is not 1.
- `$gt`, `$gte`, `$lt` and `$lte` compare a number with a number, and text with text. Dates are text in ISO form.
- A list matches if one of its elements does. `$eq` with a list also matches an equal list.
- A missing key matches only `$ne`, `$nin`, `$exists: false` and `$not`.
- In `path`, `name` and `type`, `$eq`, `$ne`, `$in` and `$nin` accept the wildcards `*`, `?` and `[…]`.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import translate
from typing import Any, NamedTuple

import msgspec

from penstock.errors import UsageError

DEEPEST = 20
MOST = 1_000
"""The maximum number of comparisons and listed values of a filter."""
GLOBS = ("path", "source", "name", "type")
DATES = ("created", "modified", "submitted")
"""Fields whose values on the command line stay text: `created>=2020` compares dates."""


class Fields(NamedTuple):
    """The fields of a document that a filter can name. `metadata` is the JSON text of each origin, the most important
    one first."""

    id: str
    collection: str
    name: str
    source: str
    media_type: str | None
    size: int
    status: str
    pages: int | None
    submitted_at: float
    metadata: Sequence[str | None]


Predicate = Callable[[Fields], bool]
Value = Callable[[Any], bool]
"""Whether a value, or `MISSING`, matches."""
MISSING: Any = object()

RESERVED: dict[str, Callable[[Fields], Any]] = {
    "id": lambda one: one.id,
    "collection": lambda one: one.collection,
    "name": lambda one: one.name,
    "path": lambda one: one.source,
    "source": lambda one: one.source,
    "type": lambda one: MISSING if one.media_type is None else one.media_type,
    "size": lambda one: one.size,
    "status": lambda one: one.status,
    "pages": lambda one: MISSING if one.pages is None else one.pages,
    "submitted": lambda one: _moment(one.submitted_at),
}


def compiled(given: Mapping[str, Any]) -> Predicate:
    """Check a filter and return its predicate. Raises UsageError that names the place of the mistake."""
    return _Compiler().mapping(given, "filter", 0)


PARTS_MOST = 50


def parts(given: Mapping[str, Any]) -> list[str]:
    """Texts of which the JSON of every matching document contains at least one. Empty if the filter does not tell.
    Values are preferred to names, because fewer documents contain them."""
    found = [one for key, value in given.items() for one in _parts(key, value)]
    values = [texts for is_value, texts in found if is_value and len(texts) <= PARTS_MOST]
    names = [texts for is_value, texts in found if not is_value]
    return min(values, key=len) if values else names[0] if names else []


def _parts(key: str, value: Any) -> Iterator[tuple[bool, list[str]]]:
    if key == "$and":
        for one in value:
            for inner, test in one.items():
                yield from _parts(inner, test)
        return
    if key.startswith("$") or key in RESERVED:
        return
    is_test = isinstance(value, Mapping) and any(isinstance(word, str) and word[:1] == "$" for word in value)
    tests = value if is_test else {"$eq": value}
    if not {"$eq", "$in", "$gt", "$gte", "$lt", "$lte"}.isdisjoint(tests) or tests.get("$exists") is True:
        yield False, _written(key.removeprefix("meta."))
    for word, test in tests.items():
        among = test if word == "$in" else [test] if word == "$eq" else []
        if among and all(_is_plain(one) for one in among):
            yield True, [text for one in among for text in _written(one)]


def _is_plain(value: Any) -> bool:
    """Whether the value is always written in one of the forms of `_written`. A number may equal 2020 and be 2020.0."""
    return isinstance(value, str) or (type(value) is int and abs(value) < 10**15)


def _written(value: str | int) -> list[str]:
    """The forms of a value in JSON, with and without escapes."""
    readable = value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
    raw = (json.dumps(readable, ensure_ascii=False), msgspec.json.encode(readable).decode())
    return list(dict.fromkeys((json.dumps(value), *raw)))


class _Compiler:
    def __init__(self) -> None:
        self._count = 0

    def mapping(self, given: object, place: str, depth: int) -> Predicate:
        if not isinstance(given, Mapping):
            raise UsageError(f"{place}: expected a mapping such as {{'author': 'ann'}}, got {_shown(given)}")
        if depth > DEEPEST:
            raise UsageError(f"{place}: a filter can be nested at most {DEEPEST} deep")
        return _all([self._part(key, value, f"{place}.{key}", depth) for key, value in given.items()])

    def _part(self, key: object, value: object, place: str, depth: int) -> Predicate:
        if not isinstance(key, str) or not key:
            raise UsageError(f"{place}: the name of a field is text, got {_shown(key)}")
        if key in ("$and", "$or"):
            if not isinstance(value, list | tuple) or not value:
                raise UsageError(f"{place}: expected a list of filters")
            parts = [self.mapping(one, f"{place}[{i}]", depth + 1) for i, one in enumerate(value)]
            return _all(parts) if key == "$and" else lambda fields: any(part(fields) for part in parts)
        if key == "$not":
            inner = self.mapping(value, place, depth + 1)
            return lambda fields: not inner(fields)
        if key.startswith("$"):
            raise UsageError(f"{place}: {key} cannot stand here; use $and, $or, $not or the name of a field")
        test = self._tests(key, value, place, depth)
        read = _reader(key)
        return lambda fields: test(read(fields))

    def _tests(self, field: str, given: object, place: str, depth: int) -> Value:
        if depth > DEEPEST:
            raise UsageError(f"{place}: a filter can be nested at most {DEEPEST} deep")
        if not isinstance(given, Mapping) or not any(isinstance(word, str) and word[:1] == "$" for word in given):
            return self._test(field, "$eq", given, f"{place}", depth)
        tests = [self._test(field, word, value, f"{place}.{word}", depth) for word, value in given.items()]
        return lambda value: all(test(value) for test in tests)

    def _test(self, field: str, word: object, given: Any, place: str, depth: int) -> Value:
        self._count += len(given) if isinstance(given, list | tuple) else 1
        if self._count > MOST:
            raise UsageError(f"{place}: a filter can have at most {MOST:,} values")
        match word:
            case "$not":
                inner = self._tests(field, given, place, depth + 1)
                return lambda value: not inner(value)
            case "$exists":
                if not isinstance(given, bool):
                    raise UsageError(f"{place}: expected true or false, got {_shown(given)}")
                return lambda value: (value is not MISSING) is given
            case "$in" | "$nin":
                if not isinstance(given, list | tuple):
                    raise UsageError(f"{place}: expected a list of values, got {_shown(given)}")
                among = [_equals(field, _checked(one, f"{place}[{i}]")) for i, one in enumerate(given)]
                if word == "$in":
                    return lambda value: any(test(value) for test in among)
                return lambda value: not any(test(value) for test in among)
            case "$eq" | "$ne":
                equal = _equals(field, _checked(given, place))
                return equal if word == "$eq" else lambda value: not equal(value)
            case "$gt" | "$gte" | "$lt" | "$lte":
                return _ordered(word, _checked(given, place), place)
        words = "$eq $ne $in $nin $gt $gte $lt $lte $exists $not"
        raise UsageError(f"{place}: {_shown(word)} is unknown; use one of {words}")


def _all(parts: Sequence[Predicate]) -> Predicate:
    if len(parts) == 1:
        return parts[0]
    return lambda fields: all(part(fields) for part in parts)


def _reader(field: str) -> Callable[[Fields], Any]:
    if field in RESERVED:
        return RESERVED[field]
    key = field.removeprefix("meta.")

    def read(fields: Fields) -> Any:
        for text in fields.metadata:
            if (
                text is not None
                and text != "{}"
                and (found := msgspec.json.decode(text).get(key, MISSING)) is not MISSING
            ):
                return found
        return MISSING

    return read


def _equals(field: str, wanted: Any) -> Value:
    if field in GLOBS and isinstance(wanted, str) and any(letter in wanted for letter in "*?["):
        return _glob(field, wanted)

    def equal(value: Any) -> bool:
        if _same(value, wanted):
            return True
        return isinstance(value, list) and any(_same(one, wanted) for one in value)

    return equal


def _glob(field: str, pattern: str) -> Value:
    """A relative pattern for a path matches below any folder."""
    inner = translate(pattern)
    relative = field in ("path", "source") and not pattern.startswith(("/", "*"))
    match = re.compile(f"(?s:.*/)?{inner}" if relative else inner).match
    return lambda value: isinstance(value, str) and match(value) is not None


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, list) and isinstance(wanted, list | tuple):
        return len(value) == len(wanted) and all(_same(one, other) for one, other in zip(value, wanted, strict=True))
    if isinstance(value, dict) and isinstance(wanted, Mapping):
        return value.keys() == wanted.keys() and all(_same(value[key], wanted[key]) for key in value)
    return value is not MISSING and _type(value) == _type(wanted) and bool(value == wanted)


def _ordered(word: str, limit: Any, place: str) -> Value:
    wanted = _type(limit)
    if wanted not in ("number", "text"):
        raise UsageError(f"{place}: expected a number or text, got {_shown(limit)}")

    def holds(value: Any) -> bool:
        if _type(value) != wanted:
            return False
        if word == "$gt":
            return bool(value > limit)
        if word == "$gte":
            return bool(value >= limit)
        return bool(value < limit) if word == "$lt" else bool(value <= limit)

    return lambda value: any(holds(one) for one in value) if isinstance(value, list) else holds(value)


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else type(value).__name__


def _checked(value: Any, place: str) -> Any:
    """A value that JSON can represent."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{place}: {value} is not a number that can be compared")
    if isinstance(value, str | int | float | None):
        return value
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise UsageError(f"{place}: expected a value of JSON, got {_shown(value)}") from None
    return value


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 100 else f"{shown[:80]}…"


_FIELD = re.compile(r"\s*([^\s=!<>()'\",]+)\s*")
_OPERATOR = re.compile(r"(==|!=|>=|<=|=|>|<|not\s+in\b|in\b|exists\b|missing\b)\s*", re.IGNORECASE)
_VALUE = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^,()]*[^,()\s])""")
_WORDS = {"=": "$eq", "==": "$eq", "!=": "$ne", ">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte"}
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
HELP = "write FIELD=VALUE, FIELD>=VALUE, FIELD in (A, B), FIELD exists, or a JSON filter"


def parsed(texts: Sequence[str]) -> dict[str, Any]:
    """Return the filter that the options of a command line make; all of them must hold."""
    found = [_parsed(text) for text in texts]
    return found[0] if len(found) == 1 else {"$and": found} if found else {}


def typed(text: str) -> Any:
    """The value of a text: a number, true, false or null as in JSON, or else the text itself."""
    if _NUMBER.fullmatch(text) and len(text) <= 300:
        value = json.loads(text)
        return value if math.isfinite(value) else text
    return {"true": True, "false": False, "null": None}.get(text, text)


def _parsed(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"filter {_shown(text)}: it is not JSON: {error}") from None
        return dict(found)
    field = _FIELD.match(text)
    if field is None:
        raise _wrong(text, 0, "expected the name of a field")
    operator = _OPERATOR.match(text, field.end())
    if operator is None:
        raise _wrong(text, field.end(), "expected =, !=, <, <=, >, >=, in, not in, exists or missing")
    name, word, at = field[1], " ".join(operator[1].lower().split()), operator.end()
    if word in ("exists", "missing"):
        if text[at:].strip():
            raise _wrong(text, at, f"nothing may follow {word}")
        return {name: {"$exists": word == "exists"}}
    if word in ("in", "not in"):
        return {name: {"$in" if word == "in" else "$nin": _listed(name, text, at)}}
    value, end = _value(name, text, at, alone=True)
    if text[end:].strip():
        raise _wrong(text, end, "expected the end")
    return {name: {_WORDS[word]: value}}


def _listed(name: str, text: str, at: int) -> list[Any]:
    if text[at : at + 1] != "(":
        raise _wrong(text, at, "expected ( and a list such as (a, b)")
    values: list[Any] = []
    at += 1
    while True:
        value, at = _value(name, text, at)
        values.append(value)
        rest = text[at:].lstrip()
        at = len(text) - len(rest)
        if rest[:1] not in (",", ")"):
            raise _wrong(text, at, "expected , or )")
        at += 1
        if rest[0] == ")":
            if text[at:].strip():
                raise _wrong(text, at, "expected the end")
            return values


def _value(name: str, text: str, at: int, *, alone: bool = False) -> tuple[Any, int]:
    at = len(text) - len(text[at:].lstrip())
    match = _VALUE.match(text, at)
    if alone and text[at : at + 1] not in ("'", '"') and (rest := text[at:].rstrip()):
        # Commas and parentheses are part of a single value.
        return (rest if name in DATES else typed(rest)), len(text)
    if match is None:
        raise _wrong(text, at, "expected a value")
    bare = match["bare"]
    if bare is None:
        quoted = match["single"]
        return (match["double"] if quoted is None else quoted), match.end()
    return (bare if name in DATES else typed(bare)), match.end()


def _wrong(text: str, at: int, what: str) -> UsageError:
    return UsageError(f"filter {_shown(text)}: {what} at character {at + 1}; {HELP}")
