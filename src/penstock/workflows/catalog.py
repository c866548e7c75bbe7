"""The catalog of workflows and parameter sets: built-in ones, those of two folders, and files by path."""

import os
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, TypeVar

from penstock import yaml_file
from penstock.config import Config
from penstock.errors import NoDefinition
from penstock.model.nouns import ParameterSet, Workflow
from penstock.workflows import read
from penstock.workflows.inline import inline
from penstock.yaml_file import SUFFIXES, Problem, YamlFile

T = TypeVar("T", Workflow, ParameterSet)


class Entry(NamedTuple):
    """A workflow and its file."""

    workflow: Workflow
    file: str


class Catalog:
    def __init__(self, workflows: Path, params: Path) -> None:
        """The folders of definitions, which need not exist."""
        self._workflows = workflows
        self._params = params

    def workflow(self, name: str) -> Workflow:
        """A workflow by id or file path, including the steps of workflows that it continues with. A definition in the
        folder overrides a built-in one with the same id."""
        found, text = self._definition(name)
        whole = inline(found, text, self._definition)
        yaml_file.refuse(text.problems)
        return whole

    def parameter_set(self, name: str) -> ParameterSet:
        return self._find(name, self._params, read.parameter_set, "parameter set")[0]

    def workflows(self) -> list[Entry]:
        """All workflows, sorted by id. Raises ConfigError with file and line for an invalid one."""
        found: dict[str, Entry] = {}
        for text in (*_shipped("definitions"), *_sources(self._workflows)):
            workflow = read.workflow(text)
            yaml_file.refuse(text.problems)
            assert workflow is not None
            found[workflow.id] = Entry(workflow, text.file)
        return [found[name] for name in sorted(found)]

    def parameter_sets(self) -> list[ParameterSet]:
        """All parameter sets, sorted by id. Raises ConfigError with file and line for an invalid one."""
        found: dict[str, ParameterSet] = {}
        for text in (*_shipped("parameters"), *_sources(self._params)):
            one = read.parameter_set(text)
            yaml_file.refuse(text.problems)
            assert one is not None
            found[one.id] = one
        return [found[name] for name in sorted(found)]

    def state(self, *names: str | None) -> tuple[object, ...] | None:
        """What tells whether a definition may have changed: the files of both folders. None if one of the names is the
        path of a file."""
        if any(name is not None and _is_path(name) for name in names):
            return None
        return tuple(_state(folder) for folder in (self._workflows, self._params))

    def check(self, file: Path) -> tuple[Workflow | ParameterSet | None, list[Problem]]:
        """The workflow or parameter set in a file, and all its problems, including methods that cannot be imported."""
        text = yaml_file.read(file)
        if isinstance(text.values, dict) and "config" in text.values:
            return read.parameter_set(text), text.problems
        workflow = read.workflow(text)
        if workflow is not None:
            from penstock.workflows.methods import check_methods

            check_methods(workflow, text)
            workflow = inline(workflow, text, self._definition)
        return workflow, text.problems

    def _definition(self, name: str) -> tuple[Workflow, YamlFile]:
        return self._find(name, self._workflows, read.workflow, "workflow")

    def _find(self, name: str, folder: Path, convert: Callable[[YamlFile], T | None], what: str) -> tuple[T, YamlFile]:
        shipped: list[YamlFile] = list(_shipped("definitions" if what == "workflow" else "parameters"))
        if _is_path(name) and not Path(name).exists():
            raise NoDefinition(f"{name} does not exist")
        sources = [yaml_file.read(Path(name))] if _is_path(name) else [*_sources(folder), *shipped]
        known = []
        for text in sources:
            found = convert(text)
            if found is not None and (found.id == name or _is_path(name)):
                return found, text
            if found is None and (_is_path(name) or _claims(text, name)):
                yaml_file.refuse(text.problems)
            if found is not None:
                known.append(found.id)
        listed = ", ".join(sorted(set(known))) or "none"
        raise NoDefinition(
            f"there is no {what} {name!r} (known: {listed}): add it to {folder}, or use the path of its file"
        )


def open_catalog(config: Config) -> Catalog:
    return Catalog(config.folder(config.workflows, "workflows"), config.folder(config.parameter_sets, "params"))


def _is_path(name: str) -> bool:
    return name.endswith(SUFFIXES)


def _claims(text: YamlFile, name: str) -> bool:
    return isinstance(text.values, dict) and text.values.get("id") == name


def _sources(folder: Path) -> Iterator[YamlFile]:
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        if path.suffix in SUFFIXES:
            yield yaml_file.read(path)


def _state(folder: Path) -> tuple[object, ...]:
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(SUFFIXES)]
    except OSError:
        return ()
    return tuple(sorted((name, one.st_mtime_ns, one.st_size, one.st_ino) for name, one in found))


def _shipped(folder: str) -> Iterator[YamlFile]:
    for entry in sorted(files("penstock.workflows").joinpath(folder).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            yield YamlFile(entry.read_text(encoding="utf-8"), f"shipped: {entry.name}")
