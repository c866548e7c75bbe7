"""Drops the artifacts of small text files when they are searchable (`keep_artifacts: unless_small`). Their raw bytes
and index rows are kept, and free steps make the rest again in milliseconds.

The drop is one transaction, with the bytes of small segments. A kill between flip and drop, or a backup in progress,
leaves the artifacts, which are kept then."""

from collections.abc import Sequence

from penstock.blobs.small import is_small, small_limit
from penstock.errors import Away, StorageError
from penstock.ledger.upkeep import retention
from penstock.model.nouns import Document
from penstock.worker.context import Context
from penstock.worker.services import WorkerServices

BATCH = 100
"""Number of documents whose artifacts are dropped in one transaction."""


async def drop_small(services: WorkerServices, contexts: Sequence[Context]) -> None:
    """Drop the artifacts of those documents that are small and searchable now, if the settings say so."""
    dropped = [ctx.step.generation_id for ctx in contexts if ctx.completed and _is_cheap(services, ctx)]
    try:
        for start in range(0, len(dropped), BATCH):
            gone = await services.ledger.write(retention.DROP_ARTIFACTS, tuple(dropped[start : start + BATCH]))
            if files := [key for key, _ in gone.blobs if not is_small(key)]:
                await services.blobs.delete(files)
    except Away:
        # No row names the files any more: prune removes them.
        return
    except StorageError as error:
        # The documents are complete, but nothing more can be written.
        services.fail(error)


def is_text(document: Document) -> bool:
    """Text formats have no password, which is forgotten when a document is searchable."""
    return (document.media_type or "").startswith("text/")


def _is_cheap(services: WorkerServices, ctx: Context) -> bool:
    """Whether everything that was made of the document can be made again from its bytes, at no price: it is a small
    text file, and no step was paid, the user's own, or submitted other documents."""
    if not services.drops_small(ctx.document.collection):
        return False
    if ctx.generation.size > small_limit(services.blobs) or not is_text(ctx.document):
        return False
    for definition in ctx.state.workflow.steps:
        if definition.name not in ctx.state.artifacts or definition.kind in services.grouped:
            continue
        stage = services.stage(definition) if definition.method is None else None
        if stage is None or stage.durable:
            return False
        about = (ctx.ports, definition.parameters, ctx.document.media_type)
        if stage.paid(*about) or stage.has_children(ctx.document.media_type):
            return False
    return True
