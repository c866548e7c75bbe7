"""validate: detects the media type, and fails if no extractor reads it."""

from penstock.errors import BlobMissing, Permanent
from penstock.extractors import formats
from penstock.extractors.media import BINARY, EMPTY, detect
from penstock.model.states import DocumentStatus
from penstock.stages.base import Stage, StepContext, StepResult

HEAD = 8192


async def run(ctx: StepContext) -> StepResult:
    try:
        head = await ctx.source.read_range(0, HEAD)
    except BlobMissing as error:
        raise Permanent(
            f"the stored bytes of {ctx.document.name!r} are missing from the blob store: submit the file again",
            reason="raw_missing",
        ) from error
    media_type = detect(head, ctx.document.name)
    if media_type == EMPTY:
        return StepResult({"media_type": media_type}, end=DocumentStatus.NOT_INDEXABLE, media_type=media_type)
    if media_type not in ctx.ports.extractors:
        supported = ", ".join(sorted((formats.of(name).label for name in ctx.ports.extractors), key=str.lower))
        what = "neither text nor any format that is known" if media_type == BINARY else f"{media_type}, by its content"
        raise Permanent(
            f"{ctx.document.name!r} is {what}; Penstock reads {supported}: convert the file, or delete the document",
            reason="unsupported_type",
        )
    return StepResult({"media_type": media_type}, media_type=media_type)


VALIDATE = Stage("validate", run)
