"""Structs from the JSON that `as_json` makes of them."""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from penstock.verbs.as_json import TIMES


def restored(data: Any, kind: Any) -> Any:
    """The value of this type: a struct, a list of structs, or a plain type. Fields that the type does not have are
    ignored. Raises ValueError if the data does not fit."""
    try:
        return _maker(kind)(data)
    except (TypeError, KeyError, AttributeError, msgspec.ValidationError) as error:
        raise ValueError(f"this is no {getattr(kind, '__name__', kind)}: {error}") from error


Maker = Callable[[Any], Any]


@cache
def _maker(kind: Any) -> Maker:
    return _made(inspect.type_info(kind))


def _made(info: inspect.Type) -> Maker:
    match info:
        case inspect.StructType():
            return _struct(info)
        case inspect.ListType():
            inner = _made(info.item_type)
            return lambda data: [inner(one) for one in data]
        case inspect.VarTupleType():
            inner = _made(info.item_type)
            return lambda data: tuple(inner(one) for one in data)
        case inspect.TupleType():
            parts = [_made(one) for one in info.item_types]
            return lambda data: tuple(part(one) for part, one in zip(parts, data, strict=True))
        case inspect.EnumType():
            return info.cls
        case inspect.UnionType():
            # None, or the one type that has a form of its own.
            others = [one for one in info.types if not isinstance(one, inspect.NoneType)]
            inner = _made(others[0]) if len(others) == 1 else lambda data: data
            return lambda data: None if data is None else inner(data)
    return lambda data: data


def _struct(info: inspect.StructType) -> Maker:
    makers = {field.name: seconds if field.name in TIMES else _made(field.type) for field in info.fields}

    def make(data: Any) -> Any:
        return info.cls(**{name: make_one(data[name]) for name, make_one in makers.items() if name in data})

    return make


def seconds(text: Any) -> Any:
    """The time of ISO 8601 as seconds since 1970. Anything else is left as it is."""
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else text
