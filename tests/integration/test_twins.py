"""Many documents with the same bytes: one makes each artifact, the others wait for it, and nobody waits for ever."""

import asyncio
from pathlib import Path

from penstock.app import open_app


async def test_more_twins_than_slots_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    folder = tmp_path / "twins"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i}.txt").write_text("the same words in every file, again and again\n" * 2000)
    async with open_app(home=str(tmp_path / "home"), embedder="fake", worker={"slots": 2}) as app:
        summary = await asyncio.wait_for(app.ingest([folder]), 60)
        assert summary.completed == 60
        reused = 0
        for document in await app.list_documents():
            steps = {step.name: step.meta for step in (await app.status(document.id)).steps}
            reused += bool(steps["extract"].get("reused"))
        assert reused == 59
