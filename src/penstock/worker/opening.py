"""Opens the artifact of a step: it exists already, this run makes it, or another run is making it."""

from penstock.artifacts.fingerprints import fingerprint
from penstock.errors import BudgetSpent
from penstock.ledger.engine import checkpoints
from penstock.stages.base import Stage
from penstock.worker.context import Context, RunState
from penstock.worker.services import WorkerServices

ARTIFACT_POLL_S = 0.05


OWN = "@"
"""Separates a fingerprint from the generation that alone uses the artifact."""


def artifact_fingerprint(services: WorkerServices, state: RunState, position: int, stage: Stage) -> str:
    """Return the fingerprint of the artifact of a step: a hash of content, media type, kind, version, method,
    parameters and the fingerprint of its input. A step that may find documents inside its document is executed for
    each generation, because that also submits them: its artifact is not shared."""
    ports = services.ports
    definition = state.workflow.steps[position]
    media_type = state.document.media_type
    before = [
        state.artifacts[earlier.name].fingerprint.partition(OWN)[0]
        for earlier in state.workflow.steps[:position]
        if earlier.name in state.artifacts
    ]
    made = fingerprint(
        state.generation.sha256,
        media_type,
        stage.kind,
        stage.version(ports, definition.parameters, media_type),
        definition.method,
        {name: value for name, value in definition.parameters.items() if name not in stage.separate},
        before[-1] if before else None,
    )
    shared = services.submit_children is None or state.generation.staging == 1
    if not shared and definition.method is None and stage.has_children(media_type):
        return f"{made}{OWN}{state.generation.id}"
    return made


async def open_artifact(
    services: WorkerServices, ctx: Context, key: str, stage: Stage | None = None
) -> checkpoints.Opened:
    """Return the artifact, complete or for this step to make. While another run makes it, wait; if that run dies, make
    it here. Raises `BudgetSpent` if the worker stops during the wait."""
    opened = await _open(services, ctx, key, ctx.opened)
    if stage is None:
        return opened
    found = opened.artifact
    now = stage.revised(services.ports, ctx.params, ctx.document.media_type, found.meta, found.cursor)
    return opened if now is None else await _open(services, ctx, fingerprint(key, now), None)


async def _open(
    services: WorkerServices, ctx: Context, key: str, opened: checkpoints.Opened | None
) -> checkpoints.Opened:
    request = checkpoints.Open(ctx.step, key)
    if opened is None:
        opened = await services.ledger.write(checkpoints.OPEN, request)
    while not (opened.mine or opened.artifact.complete):
        ctx.waiting("artifact")
        if ctx.stopping or services.budget.spent:
            raise BudgetSpent("stopped while another run makes the same artifact")
        await services.runtime.sleep(ARTIFACT_POLL_S)
        ctx.raise_if_cancelled()
        if not await services.ledger.read(checkpoints.being_built, opened.artifact.id):
            opened = await services.ledger.write(checkpoints.OPEN, request)
    ctx.waiting(None)
    return opened
