"""Texts, and looks at what became of them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.app import App
from penstock.model.items import Chunk, Vectors
from penstock.verbs.owner import OwnerScope
from penstock.verbs.views import DocumentView

PATIENCE_S = 180.0
"""What takes so long hangs, however busy the machine is."""


def text(paragraphs: int, word: str = "subject") -> str:
    """About a hundred letters a paragraph; the fake embedder takes a second for some ten thousand of them."""
    return "\n\n".join(
        f"Paragraph {i} tells of {word}{i % 97} and of matter{i} at some length, so that it fills a line or two."
        for i in range(paragraphs)
    )


def slow(app: App, seconds: float = 0.5) -> None:
    """From now on every batch of 256 chunks takes its time."""
    embedder = app.ports.embedder
    embed = type(embedder).embed_documents

    async def later(texts: Sequence[str]) -> Vectors:
        await asyncio.sleep(seconds)
        return await embed(embedder, texts)

    vars(embedder)["embed_documents"] = later


def fast(app: App) -> None:
    vars(app.ports.embedder).pop("embed_documents", None)


async def only(app: App, **filters: Any) -> DocumentView:
    """The one document there is."""
    [entry] = await app.list_documents(**filters)
    return entry


async def named(app: App, name: str) -> DocumentView:
    return await only(app, name=name)


async def chunks(app: App, document: str) -> list[Chunk]:
    return [chunk async for chunk in app.show(document, "chunks")]


async def metas(app: App, document: str) -> dict[str, Mapping[str, Any]]:
    return {step.name: step.meta for step in (await app.status(document)).steps}


async def found(app: OwnerScope, query: str, k: int = 20, **options: Any) -> set[str]:
    """Names of the documents that a search by text finds."""
    return {hit.name for hit in await app.search(query, k, mode="text", **options)}


async def until(true: Callable[[], Awaitable[bool]], seconds: float = PATIENCE_S) -> None:
    async with asyncio.timeout(seconds):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_status(app: App, status: str, **filters: Any) -> DocumentView:
    """Wait until the one document shows a status."""

    async def reached() -> bool:
        entries = await app.list_documents(**filters)
        return bool(entries) and entries[0].status == status

    await until(reached)
    return await only(app, **filters)


def penstock(
    home: Path, *arguments: str | bytes, embedder: str = "fake", **options: Any
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "penstock.cli.main", "--home", str(home), *arguments]
    environment = {**os.environ, "PENSTOCK_EMBEDDER": embedder}
    return subprocess.run(command, capture_output=True, env=environment, timeout=PATIENCE_S, **options)
