"""Settings as they were given, with the place of each: a line of the settings file, a variable, or a keyword."""

import os
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from penstock import yaml_file
from penstock.errors import ConfigError
from penstock.redaction import masked
from penstock.yaml_file import Place, YamlFile, suggestion

PREFIX = "PENSTOCK_"
NO_SETTINGS = ("PENSTOCK_CONFIG", "PENSTOCK_KEY", "PENSTOCK_PASSWORD", "PENSTOCK_SERVER")
"""Variables that are not settings: the settings file, the password of documents, and the server of a client with its
key."""
_SHOW = "`penstock config show` lists all settings"
_LONGEST = 60


class GivenValues:
    """The merged values of all sources. Later sources override earlier ones, setting by setting."""

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        self.values: dict[str, Any] = {}
        self._struct = struct
        self._problems: list[str] = []
        self._file: YamlFile | None = None
        self._variables: dict[Place, str] = {}
        self._keywords: set[Place] = set()

    def add_file(self, path: Path) -> None:
        self._file = text = yaml_file.read(path)
        self._problems += map(str, text.problems)
        if isinstance(text.values, dict):
            self.values.update(text.values)
        elif text.values is not None:
            self._problems.append(str(text.problem((), "the file must be a mapping of settings")))

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """Add variables. Two underscores stand for a dot: PENSTOCK_WORKER__SLOTS=4."""
        for variable, value in sorted(environment.items()):
            if not variable.startswith(PREFIX) or variable in NO_SETTINGS:
                continue
            path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
            if not _exists(self._struct, path):
                self._problems.append(f"{variable} is not a setting: {_meant_variable(variable, self._struct)}")
                continue
            self._variables[path] = variable
            inner: Any = _listed(value) if _is_list(self._struct, path) else value
            for name in reversed(path):
                inner = {name: inner}
            merge(self.values, inner)

    def add_keywords(self, given: Mapping[str, Any]) -> None:
        """Add keyword arguments or flags. None means that one is not given."""
        chosen = {name: plain(value) for name, value in given.items() if value is not None}
        self._keywords |= set(_places(chosen, ()))
        merge(self.values, chosen)

    def complain(self, path: Place, message: str) -> None:
        self._problems.append(self._at(path, message))

    def convert(self) -> Any:
        """Return the struct with these values. Raise ConfigError with all problems."""
        self.refuse()
        try:
            return msgspec.convert(self.values, self._struct, strict=False)
        except msgspec.ValidationError as error:
            for path, message in wrong(self.values, self._struct):
                self.complain(path, message)
            self.refuse()
            raise ConfigError(f"the configuration is wrong: {error}") from error

    def refuse(self) -> None:
        if self._problems:
            raise ConfigError(*self._problems)

    def _at(self, path: Place, message: str) -> str:
        for end in range(len(path), 0, -1):
            if path[:end] in self._keywords:
                return message
            if path[:end] in self._variables:
                return f"{self._variables[path[:end]]}: {message}"
        if self._file is not None and self._file.has(path[:1]):
            return str(self._file.problem(path, message))
        return message


def merge(values: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Merge nested settings: a value for one setting of a section keeps the others."""
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            merge(values[key], value)
        else:
            values[key] = value


def _places(values: Mapping[str, Any], path: Place) -> Iterator[Place]:
    for name, value in values.items():
        yield (*path, name)
        if isinstance(value, Mapping):
            yield from _places(value, (*path, name))


def plain(value: Any) -> Any:
    """A typed value as a file would contain it."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, msgspec.Struct):
        return {name: plain(inner) for name, inner in msgspec.structs.asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    return value


def wrong(values: Any, struct: type[msgspec.Struct], path: Place = ()) -> Iterator[tuple[Place, str]]:
    """Yield each wrong value: its place, and what is wrong."""
    if not isinstance(values, Mapping):
        yield path, f"{_dotted(path)}: expected a mapping of settings, not {_type(values)}"
        return
    hints = get_type_hints(struct, include_extras=True)
    for name, value in values.items():
        place = (*path, name)
        if name not in hints:
            yield place, f"unknown setting `{_dotted(place)}`: {_meant(path, str(name), struct)}"
            continue
        inner = section(hints[name])
        if inner is None:
            yield from _wrong_value(place, value, hints[name])
        elif value is None and type(None) in get_args(hints[name]):
            continue
        elif get_origin(hints[name]) is not dict:
            yield from wrong(value, inner, place)
        elif not isinstance(value, Mapping):
            yield place, f"{_dotted(place)}: expected a mapping by name, not {_type(value)}"
        else:
            for key, one in value.items():
                yield from wrong(one, inner, (*place, key))


def _wrong_value(path: Place, value: Any, hint: Any) -> Iterator[tuple[Place, str]]:
    try:
        msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError:
        # A text may be a secret, as an address with a password is. It is not repeated.
        shown = "" if str in get_args(hint) or hint is str else f" {masked(repr(value))[:_LONGEST]}"
        but = "" if shown else f", not {_type(value)}"
        yield path, f"{_dotted(path)}{shown}: use {expected(hint)}{but}"


def section(hint: Any) -> type[msgspec.Struct] | None:
    """The struct in a type: the type itself, an optional struct, or the values of a dictionary."""
    for part in (hint, *get_args(hint)):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return part
    return None


def expected(hint: Any) -> str:
    """What a setting of this type accepts, in words."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(expected(part) for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Annotated:
        kind, meta = get_args(hint)
        return f"{expected(kind)} {bounds(meta)}"
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return words.get(hint, "a list of names")


def bounds(meta: msgspec.Meta) -> str:
    if meta.gt is not None:
        return f"above {meta.gt:,}, at most {meta.le:,}"
    return f"from {meta.ge:,} to {meta.le:,}"


def names(struct: type[msgspec.Struct], prefix: Place = ()) -> Iterator[Place]:
    """The places of all settings. NAME stands for any name."""
    for name, hint in get_type_hints(struct, include_extras=True).items():
        inner = section(hint)
        place = (*prefix, name, "NAME") if get_origin(hint) is dict else (*prefix, name)
        if inner is None:
            yield place
        else:
            yield from names(inner, place)


def _exists(struct: type[msgspec.Struct], path: Place) -> bool:
    hint = get_type_hints(struct, include_extras=True).get(str(path[0]))
    rest = path[2:] if get_origin(hint) is dict else path[1:]
    inner = section(hint)
    return hint is not None and (not rest if inner is None else not rest or _exists(inner, rest))


def _is_list(struct: type[msgspec.Struct], path: Place) -> bool:
    hint = get_type_hints(struct, include_extras=True).get(str(path[0]))
    inner = section(hint)
    rest = path[2:] if get_origin(hint) is dict else path[1:]
    return get_origin(hint) is tuple if inner is None or not rest else _is_list(inner, rest)


def _listed(value: str) -> list[str]:
    """The names in `eng, deu`, or in `[eng, deu]`."""
    return [name for part in value.strip("[]() ").split(",") if (name := part.strip(" '\""))]


def _meant(path: Place, name: str, struct: type[msgspec.Struct]) -> str:
    """A hint for an unknown setting: one of the same section with a similar name, or one of another section."""
    if near := suggestion(name, struct.__struct_fields__):
        return f"did you mean `{_dotted((*path, near))}`?"
    elsewhere = [_dotted(place) for place in names(struct) if place[-1] == name] if not path else []
    return f"did you mean `{elsewhere[0]}`?" if elsewhere else _SHOW


def _meant_variable(variable: str, struct: type[msgspec.Struct]) -> str:
    known = ["__".join(map(str, place)).upper() for place in names(struct)]
    near = suggestion(variable.removeprefix(PREFIX), known)
    return f"did you mean {PREFIX}{near}?" if near else _SHOW


def _dotted(path: Place) -> str:
    return ".".join(map(str, path)) or "the settings"


def _type(value: Any) -> str:
    words = {str: "text", int: "a number", float: "a number", bool: "true or false", list: "a list", type(None): "null"}
    return words.get(type(value), "a mapping" if isinstance(value, Mapping) else f"a {type(value).__name__}")
