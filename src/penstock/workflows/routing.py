"""The order of steps in a run."""

from collections.abc import Iterator

from penstock.errors import Permanent
from penstock.model.nouns import StepDefinition, Workflow
from penstock.model.states import TEXTLESS, DocumentStatus

DEFAULT = "default"
END = "END"


def following(workflow: Workflow, position: int, answer: str | None) -> int | DocumentStatus:
    """The position of the next step, or the status with which the run ends. `answer`: the choice of a route."""
    step = workflow.steps[position]
    target = step.next
    if step.kind == "route":
        target = step.choices.get(answer or DEFAULT, step.choices.get(DEFAULT))
        if target is None:
            raise Permanent(
                f"the route {step.name!r} returned {answer!r}, but its choices contain neither that nor `{DEFAULT}`",
                reason="bad_route",
            )
    if target is None:
        return position + 1 if position + 1 < len(workflow.steps) else DocumentStatus.COMPLETED
    if target == END:
        return DocumentStatus.COMPLETED
    if target in (DocumentStatus.COMPLETED, *TEXTLESS):
        return DocumentStatus(target)
    return workflow.position(target)


def ahead(workflow: Workflow, position: int) -> Iterator[StepDefinition]:
    """The steps after this one, up to a route without a default, whose result is not known yet."""
    while True:
        step = workflow.steps[position]
        if step.kind == "route" and DEFAULT not in step.choices:
            return
        after = following(workflow, position, None)
        if isinstance(after, DocumentStatus):
            return
        position = after
        yield workflow.steps[position]
