"""The way of a run through its workflow."""

from penstock.errors import Permanent
from penstock.model.nouns import Workflow
from penstock.model.states import DocumentStatus

DEFAULT = "default"
END = "END"


def following(workflow: Workflow, position: int, answer: str | None) -> int | DocumentStatus:
    """The position of the step after this one, or the status with which the run ends. `answer`: what a route said."""
    step = workflow.steps[position]
    target = step.next
    if step.kind == "route":
        target = step.choices.get(answer or DEFAULT, step.choices.get(DEFAULT))
        if target is None:
            raise Permanent(
                f"the route {step.name!r} answered {answer!r}, and its choices have neither that nor `{DEFAULT}`",
                reason="bad_route",
            )
    if target is None:
        return position + 1 if position + 1 < len(workflow.steps) else DocumentStatus.COMPLETED
    if target == END:
        return DocumentStatus.COMPLETED
    if target in (DocumentStatus.COMPLETED, DocumentStatus.NOT_INDEXABLE):
        return DocumentStatus(target)
    return workflow.position(target)
