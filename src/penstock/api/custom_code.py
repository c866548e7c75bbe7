"""Workflows with custom code, named in requests."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from penstock.api.problems import Problem
from penstock.model.nouns import Workflow

if TYPE_CHECKING:
    from penstock.api.callers import Access


def refuse_methods(access: "Access", workflow: str | None) -> None:
    """Raise Problem 403 if a caller names a workflow with custom code that the operator does not allow for requests
    (`serve.methods`). A workflow that the settings name needs no permission."""
    if workflow is None:
        return
    allowed = access.service.settings.methods
    for method in methods_of(access.scope.catalog.workflow(workflow)):
        if not any(fnmatchcase(method, pattern) for pattern in allowed):
            raise Problem(
                "forbidden",
                f"the workflow {workflow!r} runs {method}, which serve.methods does not allow for requests",
            )


def methods_of(workflow: Workflow) -> set[str]:
    """The dotted paths of all functions that a workflow runs, in steps and for events."""
    handlers = (handler.method for some in workflow.lifecycle_events.values() for handler in some)
    return {method for method in (*(step.method for step in workflow.steps), *handlers) if method is not None}
