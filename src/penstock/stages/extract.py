"""extract: turns raw bytes into pages with structure."""

from contextlib import aclosing
from typing import Any, NamedTuple

from penstock.artifacts.segments import PAGES
from penstock.errors import Permanent, Unauthorized
from penstock.extractors import ocr as ocr_settings
from penstock.extractors.base import Extractor, Scanning, StoredRaw
from penstock.extractors.formats import PLAIN, of
from penstock.extractors.ranges import REDUCED
from penstock.model.nouns import Json
from penstock.model.states import DocumentStatus
from penstock.stages.bad_pages import BadPages
from penstock.stages.base import Ports, Stage, StepContext, StepResult
from penstock.stages.finding import Finding
from penstock.stages.ocr_pages import OcrPages, version_used

MEGABYTE = 1_000_000
UNSUPPORTED = "unsupported_type"
"""The reason with which an extractor says that it does not read this kind of file."""
PARSER_S = "parser_s"
"""The cursor key for the time that parser processes have worked, which later attempts add to."""


async def run(ctx: StepContext) -> StepResult:
    media_type = ctx.document.media_type or PLAIN
    extractor = ctx.ports.extractor(media_type, ctx.params) or ctx.ports.extractors[media_type]
    # One object for the whole step: it counts the time of parser processes.
    checkpoint, source, limits = ctx.checkpoint, ctx.source, ctx.ports.limits
    if source.size > limits.megabytes * MEGABYTE:
        raise _beyond(ctx, f"its file has {source.size / MEGABYTE:,.1f} megabytes", "megabytes", reason="too_large")
    if not checkpoint.cursor:
        await source.verify()
    source.parsed(float(checkpoint.cursor.get(PARSER_S, 0.0)))
    bad, ocr = BadPages(checkpoint.cursor, limits.bad_pages), OcrPages(checkpoint.cursor, ctx.params)
    found = Finding.resumed(checkpoint.cursor, media_type)
    try:
        refused = await _extract(ctx, extractor, source, Records(bad, ocr, found))
    except Permanent as error:
        if error.reason != UNSUPPORTED:
            raise
        return StepResult({"pages": checkpoint.total, "reason": UNSUPPORTED, "error": str(error)})
    records = [bad.meta(), ocr.meta()]
    metadata = found.metadata()
    for record in records:
        metadata |= record.pop("metadata", {})
    children = await _finish_children(ctx, refused) if _has_children(media_type) else {}
    meta = {"pages": checkpoint.total, **children, **records[0], **records[1], **_reduced(checkpoint.cursor)}
    return StepResult({**meta, "metadata": metadata} if metadata else meta)


async def _finish_children(ctx: StepContext, refused: list[str]) -> dict[str, Any]:
    """All children are accepted: delete those that the document no longer contains."""
    if refused:
        raise Permanent(f"not all documents in it were accepted: {'; '.join(refused[:3])}", reason="member_refused")
    if ctx.children is not None:
        await ctx.children.sweep()
    return {"children": ctx.checkpoint.cursor.get("children", 0)}


class Records(NamedTuple):
    """What is recorded about the pages. The cursor keeps it."""

    bad: BadPages
    ocr: OcrPages
    found: Finding

    def cursor(self) -> dict[str, Any]:
        return {**self.bad.cursor(), **self.ocr.cursor(), **self.found.cursor()}


async def _extract(ctx: StepContext, extractor: Extractor, source: StoredRaw, records: Records) -> list[str]:
    """Store the pages and submit the children. Returns why children were refused."""
    refused: list[str] = []
    checkpoint, limits = ctx.checkpoint, ctx.ports.limits
    media_type = ctx.document.media_type or PLAIN
    async with aclosing(extractor.extract(source, media_type, ctx.params, dict(checkpoint.cursor))) as batches:
        async for batch in batches:
            if (pages := max(checkpoint.total + len(batch.pages), batch.cursor.get("of", 0))) > limits.pages:
                raise _beyond(ctx, f"it has {pages:,} pages or more", "pages", reason="too_many_pages")
            if batch.children and ctx.children is not None:
                # Before the cursor: a crash in between submits them again, which has no effect.
                refused += await ctx.children.submit(batch.children)
            good, failure = records.bad.add(batch.pages, batch.cursor.get("of"))
            size = sum(len(page.text) for page in good)
            cursor = batch.cursor
            if failure is not None:
                # The page that was one too many is read again if the document is retried.
                cursor = {**cursor, "pages": checkpoint.total + len(good)}
            if source.parser_s:
                cursor = {**cursor, PARSER_S: round(source.parser_s, 3)}
            if good or failure is None:
                records.ocr.add(good, batch.cursor)
                records.found.add(good, batch.metadata)
                cursor = {**cursor, **records.cursor()}
                await checkpoint.append(good, cursor, size=size, keep=batch.keep or extractor.paid or bool(failure))
            if failure is not None:
                raise failure
    if (failure := records.bad.at_end(checkpoint.total)) is not None:
        raise failure
    return refused


def _reduced(cursor: Json) -> Json:
    """How many pages were sent to the provider as images, because they had too many bytes."""
    return {REDUCED: cursor[REDUCED]} if cursor.get(REDUCED) else {}


def _end(meta: Json) -> DocumentStatus | None:
    """Also for an artifact that is reused: its meta says that the format is not supported. A document without text that
    contains others is complete when they are accepted."""
    if meta.get("reason") == UNSUPPORTED:
        return DocumentStatus.UNSUPPORTED
    return DocumentStatus.COMPLETED if meta.get("children") and not meta["pages"] else None


def _has_children(media_type: str | None) -> bool:
    return of(media_type).members is not None


def _beyond(ctx: StepContext, what: str, setting: str, reason: str) -> Permanent:
    limit = getattr(ctx.ports.limits, setting)
    return Permanent(
        f"{what}, and the limit is {limit:,} (limits.{setting}): raise it, then `penstock retry {ctx.document.id}`",
        reason=reason,
    )


def _version(ports: Ports, params: Json, media_type: str | None) -> Any:
    name = media_type or PLAIN
    extractor = ports.extractor(name, params)
    return extractor.version(name, params) if extractor else None


def _target(ports: Ports, params: Json) -> str | None:
    try:
        cloud = ports.cloud_extractor(params)
    except Unauthorized:
        # Its key is not set here. The step says so.
        return None
    return cloud.target if cloud is not None else None


def _paid(ports: Ports, params: Json, media_type: str | None) -> bool:
    extractor = ports.extractor(media_type or PLAIN, params)
    return extractor is not None and extractor.paid


def _revised(ports: Ports, params: Json, media_type: str | None, meta: Json, cursor: Json) -> str | None:
    """The version of OCR, if the artifact has scanned pages that another one read, or that none has read."""
    used = version_used(meta, cursor)
    if used is None:
        return None
    extractor: object = ports.extractors.get(media_type or PLAIN)
    now: str | None = extractor.scan_version(media_type or PLAIN, params) if isinstance(extractor, Scanning) else None
    return now if now != used else None


EXTRACT = Stage(
    "extract",
    run,
    PAGES,
    _version,
    paid=_paid,
    ends=_end,
    target=_target,
    separate=frozenset(ocr_settings.PARAMETERS),
    revised=_revised,
    has_children=_has_children,
)
