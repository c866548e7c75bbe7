"""The user's own steps: functions by their dotted path, with artifact, checkpoint and context like the shipped ones."""

from functools import partial
from typing import Any

from penstock.artifacts.segments import CODECS
from penstock.errors import ConfigError, Permanent
from penstock.model.nouns import Json, StepDefinition
from penstock.stages.base import Ports, Stage, StepContext, StepResult, never_ends
from penstock.stages.registry import STAGES
from penstock.workflows import methods


def custom(definition: StepDefinition) -> Stage:
    assert definition.method is not None
    method = definition.method
    shipped = STAGES.get(definition.kind)
    return Stage(
        definition.kind,
        partial(_run, method),
        CODECS.get(definition.kind),
        partial(_version, method),
        ends=shipped.ends if shipped is not None else never_ends,
        durable=not definition.repeatable,
    )


async def _run(method: str, ctx: StepContext) -> StepResult:
    try:
        function = methods.load(method)
    except ConfigError as error:
        raise Permanent(f"{error}: mend it, then `penstock retry {ctx.document.id}`", reason="bad_method") from error
    result = await function(ctx)
    if result is None:
        return StepResult()
    if not isinstance(result, StepResult):
        raise Permanent(
            f"{method} answered {type(result).__name__}: a step answers with a StepResult", reason="bad_method"
        )
    return result


def _version(method: str, ports: Ports, params: Json, media_type: str | None) -> Any:
    try:
        return methods.version(method)
    except ConfigError:
        # Its run says so, to whom it concerns.
        return None
