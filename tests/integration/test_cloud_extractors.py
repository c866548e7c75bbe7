"""Azure Document Intelligence and Docling Serve, against local servers that speak their wire and misbehave."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.document_servers import KEY, AzureHandler, Desk, DoclingHandler, serving, throttling
from tests.kit.pdfs import numbered, pdf
from tests.kit.workflows import OWN

from penstock.app import App
from penstock.errors import ConfigError, StorageError
from penstock.extractors import azure, docling, pdf_part, ranges

HANDLERS: dict[str, Any] = {"azure": AzureHandler, "docling": DoclingHandler}


@pytest.fixture(params=list(HANDLERS))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def desk(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with serving(HANDLERS[kind], Desk(retry_after="0.2")) as desk:
        monkeypatch.setenv("AZURE_DOCUMENT_INTELLIGENCE_ENDPOINT", desk.url)
        monkeypatch.setenv("AZURE_DOCUMENT_INTELLIGENCE_KEY", KEY)
        monkeypatch.setenv("DOCLING_SERVE_URL", desk.url)
        monkeypatch.setenv("DOCLING_SERVE_API_KEY", KEY)
        monkeypatch.setattr(ranges, "WAIT_S", 0.05)
        yield desk


async def ingest(app: App, tmp_path: Path, pages: int = 25, name: str = "a.pdf") -> Any:
    path = tmp_path / name
    path.write_bytes(pdf(*numbered(pages)))
    return await app.ingest([path])


async def test_pages_keep_their_numbers_and_their_structure(
    start_app: StartApp, tmp_path: Path, kind: str, desk: Desk
) -> None:
    app = await start_app(collections={"cloud": {"extractor": kind}}, collection="cloud")
    assert (await ingest(app, tmp_path)).completed == 1
    assert (desk.paid_pages, len(desk.operations)) == (25, 3)
    [document] = await app.list_documents()
    pages = [page async for page in app.show(document.id, "pages")]
    assert [page.number for page in pages] == list(range(1, 26))
    assert pages[16].text.splitlines() == [
        "## Part 7", "", "Page 17 tells of subject17 and of matter17 at some length.", "",
        "| cell 00 | cell 01 |", "| --- | --- |", "| cell 10 | cell 11 |",
    ]  # fmt: skip
    assert [(block.kind, block.level) for block in pages[16].blocks] == [("heading", 2), ("paragraph", 0), ("table", 0)]
    [hit] = await app.search("subject17", 1)
    assert hit.page <= 17 <= hit.page_end
    # Other formats, and other collections, are read here.
    (tmp_path / "b.txt").write_text("plain text")
    await app.ingest([tmp_path / "b.txt"])
    await app.ingest([tmp_path / "a.pdf"], collection="other")
    assert desk.paid_pages == 25


def _sometimes(fault: int | str, seed: int) -> Callable[[str, str], int | str | None]:
    chance = random.Random(seed)
    return lambda method, path: fault if chance.random() < 0.3 else None


@pytest.mark.parametrize("fault", [429, 500, 503, "gateway", "drop", "garbage"])
async def test_a_provider_that_misbehaves_is_paid_once(
    start_app: StartApp, tmp_path: Path, kind: str, desk: Desk, fault: int | str
) -> None:
    """Faults come before the server has done anything. What it was paid for is asked for until it is there."""
    desk.fault = _sometimes(fault, 5)
    app = await start_app(extractor=kind)
    # A call ends by itself if the target fails several times in a row; the next one continues.
    with suppress(StorageError):
        await ingest(app, tmp_path)
    for _ in range(20):
        [document] = await app.list_documents()
        if document.status == "COMPLETED":
            break
        assert document.status != "FAILED" or fault == "garbage", [
            one.error for one in (await app.list_dead_letters()).letters
        ]
        with suppress(StorageError):
            await app.retry([document.id])
            await app.run()
    assert document.status == "COMPLETED"
    assert desk.paid_pages == 25


async def test_a_wrong_key_holds_the_target_and_names_the_setting(
    start_app: StartApp, tmp_path: Path, kind: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_DOCUMENT_INTELLIGENCE_KEY", "wrong")
    monkeypatch.setenv("DOCLING_SERVE_API_KEY", "wrong")
    app = await start_app(extractor=kind)
    with pytest.raises(Exception, match=r"AZURE_DOCUMENT_INTELLIGENCE_KEY|DOCLING_SERVE_API_KEY"):
        await ingest(app, tmp_path, 5)
    [document] = await app.list_documents()
    assert document.status != "FAILED"
    assert desk.paid_pages == 0


async def test_a_missing_key_is_told_before_anything_is_accepted(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_DOCUMENT_INTELLIGENCE_ENDPOINT", raising=False)
    app = await start_app(extractor="azure")
    with pytest.raises(ConfigError, match="AZURE_DOCUMENT_INTELLIGENCE_ENDPOINT"):
        await ingest(app, tmp_path, 5)
    assert await app.list_documents() == []


async def test_a_worker_without_the_key_lets_the_documents_wait(
    start_app: StartApp, tmp_path: Path, desk: Desk, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app(extractor=kind)
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*numbered(5)))
    await app.ingest([path], wait=False)
    with monkeypatch.context() as without:
        without.delenv("AZURE_DOCUMENT_INTELLIGENCE_KEY")
        without.delenv("DOCLING_SERVE_URL")
        other = await start_app()
        with pytest.raises(StorageError, match=r"Set (AZURE_DOCUMENT_INTELLIGENCE_KEY|DOCLING_SERVE_URL)"):
            await other.run()
    [document] = await app.list_documents()
    assert document.status != "FAILED"
    assert (await app.run()).completed == 1


async def test_pages_with_too_many_bytes_are_sent_as_images(
    start_app: StartApp, tmp_path: Path, kind: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "MOST_BYTES", 1_000)
    app = await start_app(extractor=kind)
    assert (await ingest(app, tmp_path, 12)).completed in (0, 1)
    [document] = await app.list_documents()
    status = await app.status(document.id)
    [step] = [step for step in status.steps if step.kind == "extract"]
    assert step.meta["reduced_pages"] == 12
    assert desk.paid_pages == 12


def test_images_are_smaller_than_what_they_replace(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "scan.pdf"
    noise = random.Random(1).randbytes(3000 * 2000)
    Image.frombytes("L", (3000, 2000), noise).save(path, "PDF", resolution=300, quality=100)
    before = path.stat().st_size
    with path.open("rb") as file:
        part = pdf_part.read(file, None, 0, 1, 1_500_000)
    assert part["reduced"] is not None
    assert part["reduced"] > before / 2
    assert len(part["data"]) < 1_500_000
    assert part["data"].startswith(b"%PDF")


async def test_half_of_all_calls_are_refused_and_no_page_is_paid_twice(
    start_app: StartApp, tmp_path: Path, kind: str, desk: Desk
) -> None:
    desk.fault = throttling(0.5)
    app = await start_app(extractor=kind)
    assert (await ingest(app, tmp_path, 40)).completed == 1
    assert desk.throttled > 0
    assert desk.paid_pages == 40
    assert desk.most_running <= (3 if kind == "azure" else 8)


async def test_a_provider_that_accepts_and_never_answers_is_given_up(
    start_app: StartApp, tmp_path: Path, kind: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call and the first poll are not answered."""
    silent = ["POST", "GET"]

    def fault(method: str, path: str) -> str | None:
        if method not in silent:
            return None
        silent.remove(method)
        return "silence"

    monkeypatch.setattr(azure, "WAIT_S", 0.5)
    monkeypatch.setattr(docling, "WAIT_S", 0.5)
    desk.fault = fault
    app = await start_app(extractor=kind)
    with suppress(StorageError):
        await ingest(app, tmp_path, 5)
    for _ in range(10):
        if (await app.list_documents())[0].status == "COMPLETED":
            break
        with suppress(StorageError):
            await app.run()
    [document] = await app.list_documents()
    assert (document.status, document.pages) == ("COMPLETED", 5)
    assert silent == []
    assert desk.paid_pages == 5


async def test_a_route_chooses_who_reads_a_document(start_app: StartApp, tmp_path: Path, kind: str, desk: Desk) -> None:
    path = tmp_path / "chosen.yaml"
    path.write_text(
        "id: chosen\nsteps:\n  validate:\n"
        f"  triage: {{kind: route, method: {OWN}.by_name, choices: {{cloud: cloud, default: local}}}}\n"
        f"  cloud: {{kind: extract, parameters: {{extractor: {kind}}}, next: clean}}\n"
        "  local: {kind: extract, parameters: {extractor: local}}\n  clean:\n  chunk:\n  embed:\n  index:\n"
    )
    app = await start_app(workflow=str(path))
    for name in ("cloud.pdf", "here.pdf"):
        summary = await ingest(app, tmp_path, 5, name)
        assert summary.completed == 1, [one.error for one in (await app.list_dead_letters()).letters]
    assert desk.paid_pages == 5
    ways = {d.name: [step.name for step in (await app.status(d.id)).steps][2] for d in await app.list_documents()}
    assert ways == {"cloud.pdf": "cloud", "here.pdf": "local"}


def _far_page(content: Any) -> Any:
    if "analyzeResult" in content or "paragraphs" in content:
        content["paragraphs"][0]["boundingRegions"][0]["pageNumber"] = 2_000_000_000
    else:
        content["texts"][0]["prov"][0]["page_no"] = 2_000_000_000
    return content


def _large_table(content: Any) -> Any:
    """Of Azure; an item of Docling that contains itself and its siblings again and again."""
    if "paragraphs" in content:
        content["tables"][0].update(rowCount=2_000_000, columnCount=2_000_000)
    else:
        again = [{"$ref": f"#/groups/{number + 1}"} for number in range(20)]
        content["groups"] = [{"children": again} for _ in range(20)] + [{"children": []}] * 2
        content["body"]["children"] = [{"$ref": "#/groups/0"}]
    return content


def _deep(content: Any) -> Any:
    for _ in range(900):
        content = [content]
    return content


@pytest.mark.parametrize("change", [_far_page, _large_table, _deep])
async def test_i9_an_answer_that_would_fill_the_memory_is_refused(
    start_app: StartApp, tmp_path: Path, kind: str, desk: Desk, change: Callable[[Any], Any]
) -> None:
    desk.result = change
    app = await start_app(extractor=kind)
    assert (await ingest(app, tmp_path, 5)).failed == 1
    assert (await app.list_dead_letters()).by_reason == {"bad_answer": 1}
    desk.result = lambda content: content
    await app.replay()
    assert (await app.run()).completed == 1
    assert desk.paid_pages == 5, "the operation is asked for its result again"


async def test_a_redirect_is_not_followed_with_the_key(
    start_app: StartApp, tmp_path: Path, kind: str, desk: Desk
) -> None:
    with serving(HANDLERS[kind], Desk()) as elsewhere:
        desk.redirect = f"{elsewhere.url}/documentintelligence/documentModels/m:analyze?api-version=1"
        for method in ("POST", "GET"):
            desk.fault = lambda asked, path, method=method: "redirect" if asked == method else None  # type: ignore[misc]
            app = await start_app(method, extractor=kind)
            with pytest.raises(StorageError, match=r"Correct AZURE_DOCUMENT_INTELLIGENCE_ENDPOINT|DOCLING_SERVE_URL"):
                await ingest(app, tmp_path, 5)
            assert (await app.list_documents())[0].status != "FAILED"
            assert (elsewhere.seen, elsewhere.paid_pages) == (0, 0)


async def test_a_date_in_retry_after_of_an_accepted_part_loses_nothing(
    start_app: StartApp, tmp_path: Path, kind: str, desk: Desk
) -> None:
    desk.accepted = {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}
    app = await start_app(extractor=kind)
    assert (await ingest(app, tmp_path, 5)).completed == 1
    assert desk.paid_pages == 5


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_an_answer_that_never_ends_is_given_up(
    start_app: StartApp, tmp_path: Path, kind: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(ranges, "CALL_S", 0.5)
    monkeypatch.setattr("penstock.ledger.engine.targets.FIRST_S", 0.05)
    faults = ["drip"]
    desk.fault = lambda asked, path: faults.pop() if faults and asked == method else None
    app = await start_app(extractor=kind)
    with suppress(StorageError):
        await ingest(app, tmp_path, 5)
    with suppress(StorageError):
        await app.run()
    assert [document.status for document in await app.list_documents()] == ["COMPLETED"]
    assert desk.paid_pages == 5


async def test_an_operation_that_never_ends_is_given_up_and_its_pages_are_sent_again(
    start_app: StartApp, tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(ranges, "OPERATION_S", 0.3)
    desk.polls = 1_000_000
    app = await start_app(extractor=kind)
    assert (await ingest(app, tmp_path, 5)).failed == 1
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, "no result after" in letter.error) == ("bad_answer", True)
    desk.polls = 0
    await app.replay()
    assert (await app.run()).completed == 1
    assert desk.paid_pages == 4 * 5, "once for each attempt"
