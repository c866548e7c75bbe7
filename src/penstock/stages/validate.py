"""validate: detects the media type. A document that no extractor reads ends here as UNSUPPORTED."""

from penstock.errors import BlobMissing, Permanent
from penstock.extractors.media import EMPTY, detect
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
        meta = {"media_type": media_type, "reason": "unsupported_type"}
        return StepResult(meta, end=DocumentStatus.UNSUPPORTED, media_type=media_type)
    return StepResult({"media_type": media_type}, media_type=media_type)


VALIDATE = Stage("validate", run)
