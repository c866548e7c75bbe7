"""A YAML file with the place of each value, so that error messages can name file, line and column."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import ConfigError

Place = tuple[str | int, ...]
SUFFIXES = (".yaml", ".yml")
"""A name with one of these suffixes is the path of a file."""


class Problem(NamedTuple):
    file: str
    line: int
    message: str
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class YamlFile:
    """A parsed YAML file, with the line and column of each value and the problems found."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._marks: dict[Place, tuple[int, int]] = {(): (1, 1)}
        self._above: set[int] = set()
        """The ids of the nodes around the present one: an alias may name one of them."""
        self._own: dict[int, int] = {}
        """How many keys a mapping has itself, without those that it merges."""
        self.values = self._parse(text)

    def has(self, path: Place) -> bool:
        return path in self._marks

    def step(self, name: str) -> Place:
        """The place of a step, in a list or a mapping of steps."""
        for key in ("steps", "item_steps"):
            steps = self.values.get(key) if isinstance(self.values, dict) else None
            for at, step in steps.items() if isinstance(steps, dict) else enumerate(steps or ()):
                if at == name or (isinstance(step, dict) and step.get("name") == name):
                    return (key, at, "method")
        return ()

    def problem(self, path: Place, message: str) -> Problem:
        """A problem of the value at a path, or of the nearest enclosing value."""
        while path not in self._marks:
            path = path[:-1]
        line, column = self._marks[path]
        return Problem(self.file, line, message, column)

    def complain(self, path: Place, message: str) -> None:
        self.problems.append(self.problem(path, message))

    def _parse(self, text: str) -> Any:
        import yaml

        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            return self._value(node, (), yaml.SafeLoader("")) if node is not None else None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            what = getattr(error, "problem", None) or "it cannot be parsed"
            line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            self.problems.append(Problem(self.file, line, f"not valid YAML: {what}", column))
        except RecursionError:
            self.complain((), "not valid YAML: it is nested too deeply")
        return None

    def _value(self, node: Any, path: Place, loader: Any) -> Any:
        import yaml

        self._mark(path, node)
        if id(node) in self._above:
            self.complain(path, "this alias names a value that contains it")
            return None
        self._above.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path, loader)
            if isinstance(node, yaml.SequenceNode):
                return [self._value(item, (*path, i), loader) for i, item in enumerate(node.value)]
            try:
                return loader.construct_object(node, deep=True)
            except ValueError as error:
                # A date that does not exist, for example.
                self.complain(path, f"not a valid value: {error}")
                return None
        finally:
            self._above.discard(id(node))

    def _mapping(self, node: Any, path: Place, loader: Any) -> dict[str, Any]:
        if id(node) not in self._own:
            self._own[id(node)] = sum(key.tag != "tag:yaml.org,2002:merge" for key, _ in node.value)
            loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        own: set[str] = set()
        # The values that `<<` merges come first; those of the mapping itself override them.
        for number, (key_node, value_node) in enumerate(node.value, self._own[id(node)] - len(node.value)):
            key = str(loader.construct_object(key_node, deep=True))
            if key in own:
                self._mark((*path, key), key_node)
                self.complain((*path, key), f"duplicate key {key!r}")
            if number >= 0:
                own.add(key)
            values[key] = self._value(value_node, (*path, key), loader)
            self._mark((*path, key), key_node)
        return values

    def _mark(self, path: Place, node: Any) -> None:
        self._marks[path] = node.start_mark.line + 1, node.start_mark.column + 1


def read(path: Path) -> YamlFile:
    try:
        return YamlFile(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path} could not be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def refuse(problems: Sequence[Problem]) -> None:
    if problems:
        raise ConfigError(*map(str, problems))


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    import difflib

    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), lower, 1, 0.7)
    return lower[found[0]] if found else None
