"""Changed settings concern a document only if they can change its outcome."""

import msgspec
import pytest
from tests.kit.ledger import ANNA, Desk

from penstock.ledger.engine import dead_letters, documents, groups, restarts
from penstock.ledger.engine.dead_letters import Alike
from penstock.model.nouns import DocumentId, Step
from penstock.model.settings import join
from penstock.model.states import DocumentStatus

HTML, PDF = "text/html", "application/pdf"
OLD = join("whole-1", "base", {HTML: "1", PDF: "1"})
NEW_HTML = join("whole-2", "base", {HTML: "2", PDF: "1"})


async def detected(desk: Desk, source: str, media_type: str, settings: str = OLD) -> Step:
    """A document whose media type is known, and its next step, claimed."""
    done = await desk.complete(await desk.started(source, settings=settings), media_type=media_type)
    assert done.took
    [step] = await desk.claim(1, "chunk")
    return step


async def ended(desk: Desk, source: str, media_type: str, status: str, settings: str = OLD) -> DocumentId:
    step = await detected(desk, source, media_type, settings)
    assert await (desk.fail(step) if status == "FAILED" else desk.flip(step, DocumentStatus(status)))
    assert await desk.status(step.document_id) == status
    return step.document_id


@pytest.mark.parametrize("status", ["FAILED", "NOT_INDEXABLE"])
async def test_a_submit_restarts_documents_of_the_changed_format_only(desk: Desk, status: str) -> None:
    await ended(desk, "/html", HTML, status)
    await ended(desk, "/pdf", PDF, status)
    html, pdf = await desk.submit("/html", "/pdf", settings=NEW_HTML)
    assert (html.outcome, pdf.outcome) == ("submitted", "skipped")


async def test_completed_documents_of_the_changed_format_only_are_stale(desk: Desk) -> None:
    await ended(desk, "/html", HTML, "COMPLETED")
    await ended(desk, "/pdf", PDF, "COMPLETED")
    html, pdf = await desk.submit("/html", "/pdf", settings=NEW_HTML)
    assert (html.outcome, html.stale_settings) == ("skipped", True)
    assert (pdf.outcome, pdf.stale_settings) == ("skipped", False)


async def test_without_a_media_type_all_formats_count(desk: Desk) -> None:
    step = await desk.started("/a", settings=OLD)
    await desk.fail(step)
    assert (await desk.submit("/a", settings=OLD)).outcome == "skipped"
    assert (await desk.submit("/a", settings=NEW_HTML)).outcome == "submitted"


async def test_a_value_of_an_earlier_release_is_compared_as_a_whole(desk: Desk) -> None:
    await ended(desk, "/pdf", PDF, "FAILED", settings="whole-1")
    assert (await desk.submit("/pdf", settings=OLD)).outcome == "skipped"
    assert (await desk.submit("/pdf", settings=NEW_HTML)).outcome == "submitted"
    assert await desk.rows("SELECT settings FROM runs ORDER BY generation_id") == [("whole-1",), ("whole-2",)]
    assert (NEW_HTML,) in await desk.rows("SELECT body FROM run_settings")


async def test_a_retry_resumes_the_runs_of_other_formats(desk: Desk) -> None:
    html = await ended(desk, "/html", HTML, "FAILED")
    pdf = await ended(desk, "/pdf", PDF, "FAILED")
    assert await desk.retry(html, pdf, settings=NEW_HTML) == {html, pdf}
    runs = await desk.rows(
        "SELECT d.source, x.status FROM runs x JOIN documents d ON d.id = x.document_id ORDER BY 1, 2"
    )
    assert runs == [("/html", "FAILED"), ("/html", "OPEN"), ("/pdf", "OPEN")]
    names = await desk.rows("SELECT source, name, size FROM documents ORDER BY source")
    assert names == [("/html", "html", 2), ("/pdf", "pdf", 2)]


async def test_a_start_leaves_completed_and_running_documents_of_other_formats(desk: Desk) -> None:
    ids = [await ended(desk, f"/done-{kind}", kind, "COMPLETED") for kind in (HTML, PDF)]
    ids += [(await detected(desk, f"/open-{kind}", kind)).document_id for kind in (HTML, PDF)]
    news = [msgspec.structs.replace(desk.document("/unused", stored=False), id=document) for document in ids]
    order = desk.submission(*news, settings=NEW_HTML, group=groups.GroupStart("01START", "flow"))
    started = await desk.ledger.write(restarts.START, restarts.Start(order))
    assert (started.started, started.done, started.working) == ((ids[0], ids[2]), 1, 1)


async def test_origins_name_the_media_type(desk: Desk) -> None:
    pdf = await ended(desk, "/pdf", PDF, "FAILED")
    origin = documents.Origin("default", "snapshot", OLD, 0, "FAILED", PDF)
    assert await desk.ledger.read(lambda c: documents.origins(ANNA, c, [pdf])) == {pdf: origin}
    assert await desk.ledger.read(lambda c: dead_letters.waiting(ANNA, c, "")) == [Alike("bad", origin, False, 1)]
