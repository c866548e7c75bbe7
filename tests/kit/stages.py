"""A stage on real segments, stopped and started again at will."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.artifacts.checkpoint import Checkpoint, Flush
from penstock.artifacts.reader import ArtifactReader
from penstock.artifacts.segments import CODECS, digest
from penstock.blobs.local import LocalBlobs
from penstock.errors import BudgetSpent
from penstock.model.nouns import Artifact, ArtifactId, Json, Segment
from penstock.runtime import Runtime
from penstock.stages.base import Stage, StepResult

READS = {"clean": "extract", "chunk": "clean"}
"""By kind of stage: the kind whose artifact it reads."""


def run_stage(
    stage: Stage,
    items: Sequence[Any],
    *,
    media_type: str,
    sizes: Sequence[int] = (1000,),
    stops: Iterable[int] = (),
    params: Json | None = None,
) -> tuple[list[Any], list[Json], StepResult]:
    """What it makes of the items, the cursors on the way, and what it reports. `sizes`: of the segments that it reads,
    in turn. After each of the batches in `stops` it is stopped, and goes on from its last checkpoint."""
    runtime = Runtime()
    with tempfile.TemporaryDirectory() as folder:
        try:
            blobs = LocalBlobs(Path(folder), runtime)
            return asyncio.run(_run(stage, items, media_type, sizes, set(stops), params or {}, blobs, runtime))
        finally:
            runtime.close()


async def _run(
    stage: Stage,
    items: Sequence[Any],
    media_type: str,
    sizes: Sequence[int],
    stops: set[int],
    params: Json,
    blobs: LocalBlobs,
    runtime: Runtime,
) -> tuple[list[Any], list[Json], StepResult]:
    assert stage.codec is not None
    segments = [segment async for segment in _store(READS[stage.kind], items, sizes, blobs)]
    before = Artifact(ArtifactId(1), "", True, {}, len(items), len(segments), {})
    reader = ArtifactReader(blobs, _unasked)
    made: list[Segment] = []
    cursors: list[Json] = []
    batches = 0

    async def commit(flush: Flush) -> None:
        made.extend(flush.segments)
        cursors.append(flush.cursor)

    async def before_batch() -> None:
        pass

    async def after_batch() -> None:
        nonlocal batches
        batches += 1
        if batches in stops:
            raise BudgetSpent("stopped by the test")

    while True:
        cursor = cursors[-1] if cursors else {}
        checkpoint = Checkpoint(
            artifact=Artifact(ArtifactId(2), "", False, cursor, sum(s.items for s in made), len(made), {}),
            codec=stage.codec,
            prefix="made",
            blobs=blobs,
            runtime=runtime,
            commit=commit,
            before_batch=before_batch,
            after_batch=after_batch,
            eager=True,
        )
        ctx: Any = SimpleNamespace(
            document=SimpleNamespace(media_type=media_type),
            step=SimpleNamespace(crashes=0),
            params=params,
            checkpoint=checkpoint,
            runtime=runtime,
            inputs=lambda kind, start: reader.items(before, kind, start, segments),
            raise_if_cancelled=lambda: None,
        )
        try:
            result = await stage.run(ctx)
        except BudgetSpent:
            continue
        after = Artifact(ArtifactId(2), "", True, {}, sum(s.items for s in made), len(made), {})
        return [item async for part in reader.items(after, stage.kind, 0, made) for item in part], cursors, result


async def _store(kind: str, items: Sequence[Any], sizes: Sequence[int], blobs: LocalBlobs) -> AsyncIterator[Segment]:
    first = ordinal = 0
    widths = cycle(sizes)
    while first < len(items):
        part = items[first : first + next(widths)]
        data = CODECS[kind].encode(part)
        await blobs.put(f"{kind}-{ordinal}", data, durable=False)
        yield Segment(ordinal, f"{kind}-{ordinal}", digest(data), len(data), len(part), first, {})
        first, ordinal = first + len(part), ordinal + 1


async def _unasked(artifact: ArtifactId, start: int, count: int) -> list[Segment]:
    raise AssertionError("the segments are known")
