"""Custom steps: functions of the user by their dotted path. They have artifact, checkpoint and context like the
built-in stages."""

from functools import partial
from typing import Any

import msgspec

from penstock import user_code
from penstock.artifacts.segments import CODECS
from penstock.errors import ConfigError, Permanent
from penstock.model.nouns import Json, StepDefinition
from penstock.model.states import TEXTLESS, DocumentStatus
from penstock.stages.base import Ports, Stage, StepContext, StepResult, never_ends
from penstock.stages.registry import STAGES
from penstock.workflows import methods

META_BYTES = 1 << 20
ENDS = (None, DocumentStatus.COMPLETED, *TEXTLESS)


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
        raise Permanent(f"{error}: fix it, then `penstock retry {ctx.document.id}`", reason="bad_method") from error
    result = await user_code.call(function, ctx)
    if result is None:
        return StepResult()
    if wrong := _wrong(result):
        raise Permanent(f"{method} answered {wrong}", reason="bad_method")
    answer: StepResult = result
    return answer


def _wrong(result: Any) -> str | None:
    """Return what is wrong with a result, or None. A valid result cannot break what is done with it later."""
    if not isinstance(result, StepResult):
        return f"{type(result).__name__}: a step answers with a StepResult"
    meta: object = result.meta
    if not isinstance(meta, dict):
        return f"with meta that is {type(meta).__name__}: it must be a dictionary"
    for name in ("media_type", "choice"):
        if not isinstance(getattr(result, name), str | None):
            return f"with a {name} that is {type(getattr(result, name)).__name__}: it must be text or None"
    if result.end not in ENDS or not isinstance(result.end, DocumentStatus | None):
        return "with an end that is none: it must be DocumentStatus.COMPLETED, NOT_INDEXABLE, UNSUPPORTED or None"
    try:
        size = len(msgspec.json.encode(meta))
    except Exception as error:
        return f"with meta that is not JSON ({user_code.sentence(error)})"
    if size > META_BYTES:
        return f"with {size:,} bytes of meta, at most {META_BYTES:,} are kept: append large results to ctx.checkpoint"
    return None


def _version(method: str, ports: Ports, params: Json, media_type: str | None) -> Any:
    try:
        return methods.version(method)
    except Exception:
        # The run of the step reports the error.
        return None
