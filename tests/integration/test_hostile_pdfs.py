"""PDFs made to break readers: each ends as expected, no parser process hangs, and nothing is left."""

from collections.abc import Callable
from pathlib import Path

from tests.conftest import StartApp
from tests.kit.hostile_pdfs import hostile

Files = Callable[..., Path]


async def test_i9_every_hostile_pdf_has_its_end(start_app: StartApp, files: Files) -> None:
    made = hostile()
    app = await start_app(parsers={"memory_mb": 256, "timeout_s": 300})
    summary = await app.ingest(files(**{f"{name}.pdf": data for name, (data, _) in made.items()}))
    assert summary.pending == 0
    reasons = {letter.name: letter.reason for letter in (await app.list_dead_letters(limit=1000)).letters}
    ends: dict[str, int | str | None] = {}
    for document in await app.list_documents(limit=1000):
        other = "no_text" if document.status == "NOT_INDEXABLE" else document.chunks
        ends[document.name.removesuffix(".pdf")] = reasons.get(document.name, other)
    assert ends == {name: end for name, (_, end) in made.items()}
    assert (await app.check()).ok
