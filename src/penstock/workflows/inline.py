"""Workflows that continue with another workflow: its steps are appended, with its id as a prefix."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.errors import ConfigError
from penstock.model.nouns import StepDefinition, Workflow
from penstock.workflows.read import ELSEWHERE, ENDINGS
from penstock.workflows.routing import END
from penstock.yaml_file import SUFFIXES, Place, YamlFile

DEPTH = 4
"""Maximum number of workflows in a chain, including the first."""

Find = Callable[[str], tuple[Workflow, YamlFile]]


def inline(workflow: Workflow, text: YamlFile, find: Find, above: tuple[str, ...] = ()) -> Workflow:
    """The workflow with the steps of all workflows that it can continue with. Problems are reported at the place that
    names the other workflow."""
    first: dict[str, str] = {}
    behind: list[StepDefinition] = []
    for place, target in _targets(workflow, text):
        if target in first:
            continue
        first[target] = END
        found = _find(target, place, text, find, (*above, workflow.id))
        if found is not None:
            behind += found.steps
            first[target] = found.steps[0].name
    if not first:
        return workflow
    own = [_led(step, lambda way: first.get(way, way)) for step in workflow.steps]
    steps = (*_closed(own), *behind)
    names = [step.name for step in steps]
    for name in sorted({name for name in names if names.count(name) > 1}):
        text.complain((), f"two steps are named {name!r}; one is in a workflow that this one continues with")
    return msgspec.structs.replace(workflow, steps=steps)


def _targets(workflow: Workflow, text: YamlFile) -> Iterator[tuple[Place, str]]:
    for step in workflow.steps:
        place = text.step(step.name)[:2]
        for where, way in ((("next",), step.next), *((("choices", key), way) for key, way in step.choices.items())):
            if way is not None and way.startswith(ELSEWHERE):
                yield (*place, *where), way


def _find(target: str, place: Place, text: YamlFile, find: Find, chain: tuple[str, ...]) -> Workflow | None:
    """Another workflow with all its steps, whose names get its id as a prefix."""
    name = target.removeprefix(ELSEWHERE)
    if name.endswith(SUFFIXES):
        name = str(Path(text.file).parent / name)
    try:
        found, source = find(name)
    except ConfigError as error:
        text.complain(place, f"{target} cannot be used: {error}")
        return None
    way = " → ".join((*chain, found.id))
    if found.id in chain:
        text.complain(place, f"the workflows form a cycle: {way}")
        return None
    if len(chain) == DEPTH:
        text.complain(place, f"more than {DEPTH} workflows in a chain: {way}")
        return None
    whole = inline(found, source, find, chain)
    text.problems += [problem for problem in source.problems if problem not in text.problems]
    steps = [msgspec.structs.replace(step, name=_under(found.id, step.name)) for step in whole.steps]
    return msgspec.structs.replace(
        whole, steps=_closed([_led(step, lambda way: _under(found.id, way)) for step in steps])
    )


def _under(workflow: str, name: str) -> str:
    return f"{workflow}.{name}"


def _led(step: StepDefinition, to: Callable[[str], str]) -> StepDefinition:
    """The step with its next steps renamed. Names that end the run stay."""

    def lead(way: str) -> str:
        return way if way in ENDINGS else to(way)

    choices = {answer: lead(way) for answer, way in step.choices.items()}
    return msgspec.structs.replace(step, next=lead(step.next) if step.next is not None else None, choices=choices)


def _closed(steps: list[StepDefinition]) -> tuple[StepDefinition, ...]:
    """End the run after the last step, so that it does not continue with the steps appended from another workflow."""
    last = steps[-1]
    if last.kind != "route" and last.next is None:
        last = msgspec.structs.replace(last, next=END)
    return (*steps[:-1], last)
