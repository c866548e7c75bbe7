"""A YAML file with the line of each value, so that error messages can name file and line."""

from collections.abc import Sequence
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

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


class YamlFile:
    """A parsed YAML file, with the line of each value and the problems found."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._lines: dict[Place, int] = {(): 1}
        self.values = self._parse(text)

    def line(self, path: Place) -> int:
        """The line of the value at a path, or of the nearest enclosing value."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def step(self, name: str) -> Place:
        """The place of a step, in a list or a mapping of steps."""
        for key in ("steps", "item_steps"):
            steps = self.values.get(key) if isinstance(self.values, dict) else None
            for at, step in steps.items() if isinstance(steps, dict) else enumerate(steps or ()):
                if at == name or (isinstance(step, dict) and step.get("name") == name):
                    return (key, at, "method")
        return ()

    def complain(self, path: Place, message: str) -> None:
        self.problems.append(Problem(self.file, self.line(path), message))

    def _parse(self, text: str) -> Any:
        import yaml

        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            what = getattr(error, "problem", None) or "it cannot be parsed"
            self.problems.append(Problem(self.file, mark.line + 1 if mark else 1, f"not valid YAML: {what}"))
            return None
        return self._value(node, (), yaml.SafeLoader("")) if node is not None else None

    def _value(self, node: Any, path: Place, loader: Any) -> Any:
        import yaml

        self._lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            values: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = str(loader.construct_object(key_node, deep=True))
                if key in values:
                    self._lines[*path, key] = key_node.start_mark.line + 1
                    self.complain((*path, key), f"duplicate key {key!r}")
                values[key] = self._value(value_node, (*path, key), loader)
                self._lines[*path, key] = key_node.start_mark.line + 1
            return values
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, i), loader) for i, item in enumerate(node.value)]
        return loader.construct_object(node, deep=True)


def read(path: Path) -> YamlFile:
    try:
        return YamlFile(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path} could not be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def refuse(problems: Sequence[Problem]) -> None:
    if problems:
        raise ConfigError("\n".join(map(str, problems)))
