"""A page that cannot be read costs its page: what stands before it is kept, and is not read again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import StartApp
from tests.integration.test_pdf import Calls, File, pages_of
from tests.kit.apps import only
from tests.kit.parsers import PATHS
from tests.kit.pdfs import numbered, pdf

from penstock.errors import Transient
from penstock.extractors.base import Raw
from penstock.extractors.pdf import PAGES, PdfExtractor
from penstock.model.items import Page
from penstock.worker.parsers import process

Files = Callable[..., Path]
REASONS = {
    "crash": "parser_crash",
    "hang": "parser_timeout",
    "memory": "parser_memory",
    "stumble": "parser_error",
}


@pytest.fixture
def curse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.setenv("PYTHONPATH", PATHS)
    monkeypatch.setattr(process, "CHILD", "tests.integration.cursed_child")
    return lambda kind: monkeypatch.setenv("PYTHON_CURSE", kind)


@pytest.mark.parametrize("page", [1, PAGES + 1, 21])
@pytest.mark.parametrize("kind", ["crash", "memory", "stumble"])
async def test_i4_pages_before_a_bad_one_are_kept_and_a_retry_goes_on_there(
    start_app: StartApp, files: Files, curse: Callable[[str], None], kind: str, page: int
) -> None:
    await _read_to(page, kind, start_app, files, curse)


async def test_i4_pages_before_one_that_hangs_are_kept_and_a_retry_goes_on_there(
    start_app: StartApp, files: Files, curse: Callable[[str], None]
) -> None:
    await _read_to(21, "hang", start_app, files, curse)


async def _read_to(page: int, kind: str, start_app: StartApp, files: Files, curse: Callable[[str], None]) -> None:
    curse(f"{kind}:{page}")
    folder = files(**{"a.pdf": pdf(*numbered(30))})
    app = await start_app(parsers={"children": 2, "timeout_s": 1.0})
    calls = Calls(app.resources.parsers)
    summary = await app.ingest([folder])
    while summary.pending:
        summary = await app.run()
    assert summary.failed == 1
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, letter.page) == (REASONS[kind], page)
    document = await only(app)
    before = await pages_of(app, document.id)
    assert [p.number for p in before] == list(range(1, page))
    good = [(first, count) for first, count in calls.batches if first + count < page]
    assert len(good) == len(set(good)), "none was read twice"
    curse("none:0")
    generous = await start_app(parsers={"children": 2})
    again = Calls(generous.resources.parsers)
    await generous.retry([document.id])
    assert (await generous.run()).completed == 1
    assert min(first for first, _ in again.batches) == page - 1
    after = await pages_of(generous, document.id)
    assert [p.number for p in after] == list(range(1, 31))
    assert after[: page - 1] == before


class Ahead:
    """Parsers of which the second batch is lost before the first is read."""

    width = 1

    async def call(self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path | None = None) -> bytes:
        first = arguments["first"]
        if first == 2 * PAGES:
            raise Transient("no process could be started", reason="parser_start")
        await asyncio.sleep(0.05 if first == PAGES else 0)
        pages = [Page(i + 1, "text") for i in range(first, first + arguments["count"])]
        return msgspec.msgpack.encode((5 * PAGES, pages))


async def test_i4_a_batch_that_is_lost_takes_none_with_it_that_was_read(tmp_path: Path) -> None:
    kept: list[int] = []
    with pytest.raises(Transient, match="no process"):  # noqa: PT012
        async for batch in PdfExtractor(Ahead()).extract(File(tmp_path), "", {}, {}):
            kept += [page.number for page in batch.pages]
    assert kept == list(range(1, 2 * PAGES + 1))
