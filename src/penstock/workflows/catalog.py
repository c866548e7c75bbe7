"""The workflows and parameter sets that can be named: shipped ones, those of two folders, and files by their path."""

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, TypeVar

from penstock.config import Config
from penstock.errors import NoDefinition
from penstock.model.nouns import ParameterSet, Workflow
from penstock.workflows import read, source
from penstock.workflows.inline import inline
from penstock.workflows.source import SUFFIXES, Problem, Source

T = TypeVar("T", Workflow, ParameterSet)


class Entry(NamedTuple):
    """A workflow, with the file that it stands in."""

    workflow: Workflow
    file: str


class Catalog:
    def __init__(self, workflows: Path, params: Path) -> None:
        """Folders that need not be there."""
        self._workflows = workflows
        self._params = params

    def workflow(self, name: str) -> Workflow:
        """By id, or by the path of a file, with the steps of those that it goes on with. One in the folder wins over a
        shipped one of the same id."""
        found, text = self._definition(name)
        whole = inline(found, text, self._definition)
        source.refuse(text.problems)
        return whole

    def parameter_set(self, name: str) -> ParameterSet:
        return self._find(name, self._params, read.parameter_set, "parameter set")[0]

    def workflows(self) -> list[Entry]:
        """All of them, by id; one that is wrong is refused with file and line."""
        found: dict[str, Entry] = {}
        for text in (*_shipped(), *_sources(self._workflows)):
            workflow = read.workflow(text)
            source.refuse(text.problems)
            assert workflow is not None
            found[workflow.id] = Entry(workflow, text.file)
        return [found[name] for name in sorted(found)]

    def check(self, file: Path) -> tuple[Workflow | ParameterSet | None, list[Problem]]:
        """A file of either sort, with everything that is wrong in it, methods that cannot be imported included."""
        text = source.read(file)
        if isinstance(text.values, dict) and "config" in text.values:
            return read.parameter_set(text), text.problems
        workflow = read.workflow(text)
        if workflow is not None:
            from penstock.workflows.methods import check_methods

            check_methods(workflow, text)
            workflow = inline(workflow, text, self._definition)
        return workflow, text.problems

    def _definition(self, name: str) -> tuple[Workflow, Source]:
        return self._find(name, self._workflows, read.workflow, "workflow")

    def _find(self, name: str, folder: Path, convert: Callable[[Source], T | None], what: str) -> tuple[T, Source]:
        shipped: list[Source] = list(_shipped()) if what == "workflow" else []
        if _is_path(name) and not Path(name).exists():
            raise NoDefinition(f"{name} could not be read: there is no such file")
        sources = [source.read(Path(name))] if _is_path(name) else [*_sources(folder), *shipped]
        known = []
        for text in sources:
            found = convert(text)
            if found is not None and (found.id == name or _is_path(name)):
                return found, text
            if found is None and (_is_path(name) or _claims(text, name)):
                source.refuse(text.problems)
            if found is not None:
                known.append(found.id)
        listed = ", ".join(sorted(set(known))) or "none"
        raise NoDefinition(f"there is no {what} {name!r} (known: {listed}): put it into {folder}, or name its file")


def open_catalog(config: Config) -> Catalog:
    return Catalog(config.folder(config.workflows, "workflows"), config.folder(config.parameter_sets, "params"))


def _is_path(name: str) -> bool:
    return name.endswith(SUFFIXES)


def _claims(text: Source, name: str) -> bool:
    return isinstance(text.values, dict) and text.values.get("id") == name


def _sources(folder: Path) -> Iterator[Source]:
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        if path.suffix in SUFFIXES:
            yield source.read(path)


def _shipped() -> Iterator[Source]:
    for entry in files("penstock.workflows").iterdir():
        if entry.name.endswith(".yaml"):
            yield Source(entry.read_text(encoding="utf-8"), f"shipped: {entry.name}")
