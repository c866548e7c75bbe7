"""`ingest` and `plan_ingest` of the client: their arguments, and what is done with them."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, BinaryIO

from penstock.client.connection import Connection
from penstock.client.files import Files, Given, Hashed
from penstock.client.ingest import OFFERED, FolderUpload, OnReceipt, Report, offer
from penstock.client.uploads import Order
from penstock.errors import SourceError, UsageError
from penstock.extractors import formats, media
from penstock.verbs import arguments
from penstock.verbs.ingest_plan import HEAD, IngestPlan, TypePlan
from penstock.verbs.manifests import Manifest
from penstock.verbs.summary import Summary

FIRST_S = 15.0
"""How long the first request goes on if the server does not answer: its address may be wrong."""
READ = {media.EMPTY, *(one.media_type for one in formats.FORMATS if one.adapter is not None)}
WEB = ("http://", "https://")


async def ingest(
    connection: Connection,
    paths: str | Path | Sequence[str | Path],
    *,
    data: BinaryIO | None,
    name: str | None,
    source: str | None,
    metadata: dict[str, Any] | None,
    manifest: str | Path | None,
    collection: str | None,
    workflow: str | None,
    params: str | None,
    priority: int,
    batch: str | None,
    include: str | Sequence[str],
    exclude: str | Sequence[str],
    retry: bool,
    again: bool,
    hold: bool,
    wait: bool,
    report: Report | None,
    on_receipt: OnReceipt | None,
    stopped: asyncio.Event,
) -> Summary:
    if data is not None and not name:
        raise UsageError('data needs a name, as in name="notes.txt"')
    given = _given(paths, include, exclude, manifest, metadata, data=data, name=name, source=source, again=again)
    order = Order("", "", {}, collection, workflow, params, priority, batch, retry, hold)
    await _greet(connection)
    work = FolderUpload(connection, given, order, wait=wait, report=report, on_receipt=on_receipt, stopped=stopped)
    return await work.run()


def _given(
    paths: str | Path | Sequence[str | Path],
    include: str | Sequence[str],
    exclude: str | Sequence[str],
    manifest: str | Path | None,
    metadata: dict[str, Any] | None = None,
    **more: Any,
) -> Given:
    listed = None if manifest is None else Manifest(arguments.folder("manifest", manifest))
    chosen = [*arguments.paths(paths), *(listed.paths if listed is not None else ())]
    for one in chosen:
        if isinstance(one, str) and not one.lower().startswith(WEB):
            raise UsageError(f"{one}: a server fetches only http:// and https://; ingest it where the server runs")
    info = arguments.metadata(metadata)
    return Given(chosen, arguments.globs(include), arguments.globs(exclude), info, listed, **more)


async def _greet(connection: Connection) -> None:
    """Learn soon if the address or the key is wrong."""
    await connection.request("GET", "session", patience=connection.patience(FIRST_S))


async def plan_ingest(
    connection: Connection,
    paths: str | Path | Sequence[str | Path],
    *,
    manifest: str | Path | None,
    collection: str | None,
    include: str | Sequence[str],
    exclude: str | Sequence[str],
) -> IngestPlan:
    given = _given(paths, include, exclude, manifest)
    if urls := [one for one in given.paths if isinstance(one, str)]:
        raise UsageError(f"{urls[0]}: what a server would fetch is not known before")
    await _greet(connection)
    plan = _Plan(connection, Files(given, Order("", "", {}, collection), connection.runtime))
    return await plan.made()


class _Plan:
    def __init__(self, connection: Connection, files: Files) -> None:
        self._connection = connection
        self._files = files
        self._types: dict[str, TypePlan] = {}
        self._forgotten = 0

    async def made(self) -> IngestPlan:
        batch: list[tuple[Hashed, str]] = []
        async with aclosing(self._files.found()) as found:
            async for one in found:
                try:
                    hashed = await self._files.hashed(one)
                    with self._files.open(one) as file:
                        kind = media.detect(file.read(HEAD), one.name)
                except (SourceError, OSError) as error:
                    self._files.problems.append(f"{one.uri}: {error}")
                    continue
                batch.append((hashed, kind))
                if len(batch) == OFFERED:
                    await self._look(batch)
        await self._look(batch)
        types = list(self._types.values())
        return IngestPlan(
            sum(one.new for one in types),
            sum(one.changed for one in types),
            sum(one.unchanged for one in types),
            sum(one.new + one.changed for one in types if not one.supported),
            sum(one.bytes for one in types),
            dict(sorted(self._types.items(), key=lambda one: -(one[1].new + one[1].changed))),
            self._forgotten,
            self._files.problems,
        )

    async def _look(self, batch: list[tuple[Hashed, str]]) -> None:
        if not batch:
            return
        order = batch[0][0].order
        receipts = await offer(self._connection, order, [one for one, _ in batch], dry_run=True)
        for (one, kind), receipt in zip(batch, receipts, strict=True):
            if receipt.outcome == "forgotten":
                self._forgotten += 1
                continue
            plan = self._types.setdefault(kind, TypePlan(supported=kind in READ))
            if receipt.outcome == "unchanged":
                plan.unchanged += 1
                continue
            plan.changed += receipt.id is not None
            plan.new += receipt.id is None
            plan.bytes += one.size
        batch.clear()
