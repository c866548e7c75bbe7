"""Execute one step, from its lease to its end: open the artifact, run the stage, complete the step and claim the
next."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from penstock import user_code
from penstock.errors import (
    BudgetSpent,
    Cancelled,
    CostSpent,
    LeaseLost,
    PenstockError,
    ProviderRejects,
    QuotaSpent,
    Refused,
    StorageError,
    TableFailed,
    TornSegment,
    Transient,
)
from penstock.ledger.engine import checkpoints, completions, failures, flips, releases
from penstock.ledger.engine.locks import group_key, own_key
from penstock.model.nouns import ArtifactId, Token
from penstock.model.states import DocumentStatus
from penstock.model.usage import Booking
from penstock.stages.base import Stage, StepResult
from penstock.worker.context import Context
from penstock.worker.opening import artifact_fingerprint, open_artifact
from penstock.worker.retry import retry_in
from penstock.worker.services import EXTRACT, WorkerServices, must
from penstock.workflows.routing import following

COUNTED = {EXTRACT: "pages", "chunk": "chunks"}
"""The name under which a step of each kind reports the number of its items."""
UNWRITABLE = "the step failed, and the ledger would not take what its error says"


async def execute(services: WorkerServices, ctx: Context, chain: Callable[[str], bool]) -> Context | None:
    """Execute the step. Return the context of the next step if it was claimed together with the completion, else None.
    `chain` says whether the pool of a queue has a free place."""
    stage = services.stage(ctx.definition)
    if stage is None:
        raise LeaseLost(f"no stage of kind {ctx.step.kind!r} here")
    result, output = await _work(services, ctx, stage)
    ctx.raise_if_cancelled()
    return await complete(services, ctx, result, result.end or stage.ends(result.meta), output, chain)


async def complete(
    services: WorkerServices,
    ctx: Context,
    result: StepResult,
    end: DocumentStatus | None,
    output: checkpoints.Output | None,
    chain: Callable[[str], bool],
) -> Context | None:
    """Write the end of a step that succeeded: `end` ends its run; otherwise the next step is inserted, and claimed if
    `chain` allows it. Return the context of the claimed step, else None."""
    after = following(ctx.state.workflow, ctx.step.position, result.choice) if end is None else end
    if result.choice is not None:
        result = msgspec.structs.replace(result, meta={**result.meta, "choice": result.choice})
    ctx.finishing = True
    meta = msgspec.json.encode(result.meta).decode()
    if isinstance(after, DocumentStatus):
        end = after
        ending = flip(ctx, end, meta, output, result.media_type, ctx.take_bookings())
        took = await services.ledger.write(flips.FLIP, ending)
        must(took, ctx, "complete")
        services.record.completed(ctx, result.meta, end)
        return None
    if result.media_type is not None:
        ctx.state.document = msgspec.structs.replace(ctx.document, media_type=result.media_type)
    upcoming = _upcoming(services, ctx, after, chain)
    completion = completions.Completion(
        ctx.step, services.worker, services.lease_s, meta, upcoming, output, result.media_type, ctx.take_bookings()
    )
    completed = await services.ledger.write(completions.COMPLETE, completion)
    must(completed.took, ctx, "complete")
    services.record.completed(ctx, result.meta)
    if completed.next is None:
        return None
    services.metrics.incr("step_chained", kind=completed.next.kind)
    context = services.context(completed.next, ctx.state)
    context.opened = completed.opened
    return context


def _upcoming(
    services: WorkerServices, ctx: Context, position: int, chain: Callable[[str], bool]
) -> completions.NextStep:
    """Return the next step of the run. It has a lease token and the fingerprint of its artifact only if this worker may
    claim it together with the completion."""
    definition = ctx.state.workflow.steps[position]
    owner, collection = ctx.step.owner, ctx.document.collection
    key = own_key(owner, collection, definition.resource_key)
    grouped = services.grouped.get(definition.kind)
    if grouped is not None and grouped.exclusive(services.ports, ctx.generation):
        key = group_key(owner, definition.kind, grouped.group_key(ctx.document, ctx.generation))
    upcoming = completions.NextStep(position, definition.name, definition.kind, key, None, pool=definition.pool)
    stage = services.stage(definition)
    if not chain(definition.queue) or key is not None or stage is None or not services.budget.fits(definition.kind):
        return upcoming
    if services.targets.holds(definition, ctx.step.owner) is not None:
        return upcoming
    made = artifact_fingerprint(services, ctx.state, position, stage) if stage.codec is not None else None
    return msgspec.structs.replace(upcoming, token=Token(services.runtime.token()), fingerprint=made)


async def _work(services: WorkerServices, ctx: Context, stage: Stage) -> tuple[StepResult, checkpoints.Output | None]:
    """Return the result of the stage. It is computed now, or taken from an existing artifact with the same
    fingerprint."""
    if stage.codec is None:
        async with services.slot(ctx):
            return await stage.run(ctx), None
    # Without a slot: a step that waits for an artifact must not block the step that makes it.
    key = artifact_fingerprint(services, ctx.state, ctx.step.position, stage)
    opened = await open_artifact(services, ctx, key, stage)
    artifact = opened.artifact
    if artifact.complete:
        stage.reused(ctx, artifact.meta)
        ctx.state.artifacts[ctx.definition.name] = artifact
        return StepResult({**artifact.meta, "reused": True}), None
    async with services.slot(ctx):
        durable = stage.durable or stage.paid(ctx.ports, ctx.params, ctx.document.media_type)
        await ctx.begin(artifact, stage.codec, durable)
        result = await stage.run(ctx)
        flush = await ctx.checkpoint.close()
    if ctx.definition.method is not None and ctx.step.kind in COUNTED:
        # The index step needs this count, and a user's function may not report it.
        result = msgspec.structs.replace(result, meta={**result.meta, COUNTED[ctx.step.kind]: flush.items})
    done = msgspec.structs.replace(
        artifact,
        complete=True,
        cursor=flush.cursor,
        items=flush.items,
        segments=ctx.checkpoint.segments,
        meta=result.meta,
    )
    ctx.state.artifacts[ctx.definition.name] = done
    if artifact.segments == 0 and len(flush.segments) == done.segments:
        ctx.state.segments[artifact.id] = list(flush.segments)
        if ctx.checkpoint.only is not None:
            ctx.state.items[artifact.id] = ctx.checkpoint.only
    output = checkpoints.Output(
        artifact.id,
        msgspec.json.encode(flush.cursor).decode(),
        flush.items,
        ctx.checkpoint.segments,
        msgspec.json.encode(result.meta).decode(),
        flush.segments,
    )
    return result, output


def flip(
    ctx: Context,
    status: DocumentStatus,
    meta: str,
    output: checkpoints.Output | None = None,
    media_type: str | None = None,
    usage: tuple[Booking, ...] = (),
) -> flips.Flip:
    """Build the write that ends the run. Pages and chunks are counted from the artifacts, because a step may report any
    numbers."""
    pages, chunks = (ctx.state.newest(kind, ctx.step.position + 1) for kind in COUNTED)
    counts = (pages.items if pages else None, chunks.items if chunks else 0)
    return flips.Flip(
        ctx.step, status, *counts, meta, output, _found(ctx), media_type, usage, bool(ctx.generation.staging)
    )


def _found(ctx: Context) -> str | None:
    """The metadata of the document that its steps found: `metadata` in the `meta` of extract and enrich steps. Extract
    steps take precedence; of two steps of one kind, the later one does."""
    found: dict[str, Any] = {}
    for kind in ("enrich", EXTRACT):
        for definition in ctx.state.workflow.steps[: ctx.step.position + 1]:
            artifact = ctx.state.artifacts.get(definition.name) if definition.kind == kind else None
            given = artifact.meta.get("metadata") if artifact is not None else None
            if isinstance(given, dict):
                found |= given
    return msgspec.json.encode(found).decode() if found else None


async def settle(services: WorkerServices, ctx: Context, error: BaseException) -> None:
    """End the attempt of a step that did not complete: release it, rewind it, schedule a retry or write a dead letter.
    This is the only function that classifies errors. Every error that is not handled before its end counts as a failure
    of the step, whatever its type: also a cancellation that the worker did not request."""
    step, ours = ctx.step, _is_ours(ctx, error)
    if ctx.lost or (ours and isinstance(error, LeaseLost | Cancelled)):
        ctx.mark_lost("work")
        return
    ctx.finishing = True
    if ctx.timed_out:
        error = Transient(
            f"step {step.name!r} made no progress for {ctx.definition.timeout:g} s, the timeout of its workflow",
            reason="timeout",
        )
    if ours and isinstance(error, TornSegment):
        rewind = checkpoints.Rewind(step, ArtifactId(error.artifact_id), error.ordinal)
        if await services.ledger.write(checkpoints.REWIND, rewind):
            services.metrics.incr("step_rewound", kind=step.kind)
            return
    if (away := services.targets.at_fault(ctx, error, ours)) is not None:
        if services.targets.is_quota(ctx, away, ours):
            error = QuotaSpent(user_code.sentence(away))
        elif services.targets.is_refused(ctx, away):
            error = ProviderRejects(user_code.sentence(away))
        else:
            if not await services.targets.wait(ctx, away, ours):
                ctx.mark_lost("release")
            return
    asked = ctx.told_to_stop if isinstance(error, asyncio.CancelledError) else isinstance(error, BudgetSpent)
    if _stores_failed(ctx, error):
        services.fail(error)
        asked = True
    if ours and (asked or isinstance(error, TableFailed)):
        moved = ctx.has_checkpoint and ctx.checkpoint.moved
        begun = ctx.has_checkpoint and ctx.checkpoint.begun and asked and not isinstance(error, CostSpent)
        why = None if asked else user_code.sentence(error)
        if await services.ledger.write(
            releases.RELEASE, releases.Release(step, give_back=moved or not begun, error=why)
        ):
            services.metrics.incr("step_released", kind=step.kind)
        else:
            ctx.mark_lost("release")
        return
    errors = 0 if ctx.made_progress else step.errors
    delay = retry_in(services.policy, error, errors, ctx.definition.retries, services.runtime.random())
    reason, sentence = user_code.reason(error, "error"), user_code.sentence(error)
    failure = failures.StepFailure(step, reason, sentence, user_code.trace(error), user_code.page(error), delay)
    if await _write_down(services, failure):
        services.record.failed(ctx, failure)
        services.backed_off.set()
    else:
        ctx.mark_lost("error")


async def _write_down(services: WorkerServices, failure: failures.StepFailure) -> bool:
    try:
        return await services.ledger.write(failures.ERROR, failure)
    except Refused:
        # The ledger rejects the text of the error. Write a fixed one: a step whose error cannot be written would never
        # end.
        plain = failures.StepFailure(failure.step, "error", UNWRITABLE, retry_in=failure.retry_in)
        return await services.ledger.write(failures.ERROR, plain)


def _stores_failed(ctx: Context, error: BaseException) -> bool:
    """Whether the ledger or the blob store failed, so that the step did not cause the error. `Refused` means that the
    ledger rejected the content of a write: that is an error of the step."""
    return isinstance(error, StorageError) and not isinstance(error, Refused) and _is_ours(ctx, error)


def _is_ours(ctx: Context, error: BaseException) -> bool:
    """Whether an error may control the worker. An error that Penstock raised may, even if it passed through a user's
    step. A Penstock error that the user's step raised itself may not."""
    if ctx.definition.method is None or not isinstance(error, PenstockError):
        return True
    return user_code.raised_by(error, "penstock")
