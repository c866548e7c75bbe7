"""Index steps as a group: one bad document harms no other, and a refused batch is halved."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kit.apps import found

from penstock.app import App
from penstock.stages.base import Member
from penstock.stages.index import INDEX
from penstock.stages.registry import GROUPED

Files = Callable[..., Path]


async def test_of_a_refused_batch_only_the_document_that_is_the_cause_fails(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is found in a few writes, not in one for each document."""
    sizes: list[int] = []

    async def picky(target: Any, members: Sequence[Member[Any]], rows: Sequence[Any]) -> None:
        sizes.append(len(members))
        if any(member.ctx.document.name == "bad.txt" for member in members):
            raise ValueError("a row that the table does not take")
        await INDEX.run_group(target, members, rows)

    monkeypatch.setitem(GROUPED, "index", replace(INDEX, run_group=picky))
    folder = files(**{f"{i}.txt": f"Document {i} tells of subject{i}x." for i in range(32)})
    (folder / "bad.txt").write_text("Document of subject99x.")
    await app.ingest([folder], wait=False)
    summary = await app.ingest([folder])
    assert (summary.completed, summary.failed) == (32, 1)
    assert len(await found(app, "document", 50)) == 32
    assert await found(app, "subject99x") == set()
    assert sum(size == 1 for size in sizes) < 32
    assert (await app.check()).ok


async def test_a_document_that_cannot_be_loaded_fails_alone(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load(ctx: Any) -> Any:
        if ctx.document.name == "3.txt":
            raise ValueError("no")
        return await INDEX.load(ctx)

    monkeypatch.setitem(GROUPED, "index", replace(INDEX, load=load))
    summary = await app.ingest([files(**{f"{i}.txt": f"Document {i}." for i in range(8)})])
    assert (summary.completed, summary.failed) == (7, 1)
