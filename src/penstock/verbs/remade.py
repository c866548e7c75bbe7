"""Pages and chunks of a small text file whose artifacts were dropped (`keep_artifacts: unless_small`): chunks are read
from the index, pages are extracted again from the raw bytes. Nothing is stored."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from penstock.blobs.small import is_small
from penstock.errors import UsageError
from penstock.indexes.base import RowSpan, TableId
from penstock.ledger.database.connection import Connection
from penstock.ledger.engine import documents
from penstock.model.items import Chunk
from penstock.model.nouns import Document, Generation, GenerationId, Json, Owner
from penstock.verbs.scope import Scope
from penstock.verbs.stored_raw import StoredRaw
from penstock.verbs.views import resolve
from penstock.worker.small_artifacts import is_text

ROWS = 500
"""Rows that are read from the index at once."""


class Dropped(NamedTuple):
    document: Document
    generation: Generation
    extraction: Json | None
    """The values of its last `extract` step; None if it has none, or a function of the user's."""


async def find_dropped(scope: Scope, name: str) -> Dropped | None:
    """The searchable version of a small text file whose artifacts were dropped, else None. The present settings do not
    matter: the file may have been dropped under others."""
    found = await scope.ledger.read(partial(_dropped, scope.owner), name)
    if found is None or not is_small(found.generation.raw_key):
        return None
    return found if is_text(found.document) else None


def _dropped(owner: Owner, connection: Connection, name: str) -> Dropped | None:
    from penstock.workflows.load import decode

    found = resolve(owner, connection, name)
    entry, active = documents.get(owner, connection, found), documents.active_generation(owner, connection, found)
    run = documents.last_run(owner, connection, found)
    if entry is None or entry.artifacts_dropped_at is None or active is None or run is None or run.generation != active:
        return None
    live = documents.live(connection, [(found, GenerationId(active))]).get(GenerationId(active))
    steps = [step for step in decode(run.body).steps if step.kind == "extract"]
    values = steps[-1].parameters if steps and steps[-1].method is None else None
    return Dropped(entry.document, live[1], values) if live is not None else None


async def chunks(scope: Scope, dropped: Dropped) -> AsyncIterator[list[Any]]:
    generation = dropped.generation
    place = TableId(scope.owner, dropped.document.collection, generation.index_version)
    table = await scope.ports.index.open(place)
    if table is None:
        return
    for first in range(0, dropped.document.chunks or 0, ROWS):
        rows = await table.rows([RowSpan(generation.id, first, first + ROWS - 1)])
        yield [
            Chunk(row.ordinal, row.text, row.page, row.page_end, row.start, row.end, row.headings)
            for row in sorted(rows, key=lambda row: row.ordinal)
        ]


async def pages(scope: Scope, dropped: Dropped) -> AsyncIterator[list[Any]]:
    media_type = dropped.document.media_type or ""
    extractor = None if dropped.extraction is None else scope.ports.extractor(media_type, dropped.extraction)
    if extractor is None or extractor.paid:
        raise UsageError(
            f"the artifacts of {dropped.document.name!r} were dropped (keep_artifacts): `penstock retry --dropped "
            f"{dropped.document.id}` makes it again from the raw bytes"
        )
    document, generation = dropped.document, dropped.generation
    raw = StoredRaw(scope, document.id, document.name, generation.raw_key, generation.size)
    async with aclosing(extractor.extract(raw, media_type, dict(dropped.extraction or {}), {})) as batches:
        async for batch in batches:
            yield list(batch.pages)
