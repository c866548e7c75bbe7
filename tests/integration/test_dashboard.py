"""The pages of the dashboard, as a browser without JavaScript uses them."""

import html
import re

import httpx2
import pytest
from tests.kit.dashboard import app as app
from tests.kit.dashboard import browser as browser
from tests.kit.dashboard import confirmed, hidden, ingest, send, told
from tests.kit.pdfs import Lock, page, pdf

from penstock.app import App
from penstock.errors import ParserBreach
from penstock.model.nouns import StepView
from penstock.model.states import StepStatus
from penstock.web.originals import KEPT, Drawing, Originals
from penstock.web.routes.static import TYPES
from penstock.web.steps import timeline

PAGES = (
    "/", "/documents", "/search", "/upload", "/dead-letters", "/groups", "/actions", "/steps", "/workers", "/webhooks",
    "/keys", "/audit",
)  # fmt: skip
HOSTILE = "<script>alert(1)</script>\u202egpj\n.txt"


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_loads_nothing_from_elsewhere_and_has_no_inline_code(
    app: App, browser: httpx2.AsyncClient, path: str
) -> None:
    await ingest(app, one="The turbine runs.")
    answer = await browser.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(
        r"<script(?![^>]*\ssrc=\"/static/)|<style|\sstyle=|\son\w+=|javascript:|https?://", answer.text
    )


async def test_names_metadata_and_text_of_documents_are_only_text(app: App, browser: httpx2.AsyncClient) -> None:
    evil = "</mark><img src=x onerror=alert(2)> turbine"
    await app.ingest(data=evil.encode(), name=HOSTILE, metadata={"title": "<b>bold</b>"}, source="x:<i>source</i>")
    [listed] = await app.list_documents()
    for path in ("/documents", f"/documents/{listed.id}", f"/documents/{listed.id}?chunk=0", "/search?q=turbine"):
        answer = await browser.get(path)
        assert answer.status_code == 200
        for raw in ("<script>alert", "<img src=x", "<b>bold", "<i>source", "\u202e"):
            assert raw not in answer.text, (path, raw)
    assert "\\u202e" in answer.text
    told = await browser.get("/documents", params={"told": "<script>alert(3)</script>", "name": '"><script>'})
    assert "<script>alert" not in told.text
    assert '"><script>' not in told.text


async def test_the_overview_counts_what_ended(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, one="first text", two="second text")
    page = (await browser.get("/")).text
    assert re.search(r"<strong>(<a [^>]*>)?2(</a>)?</strong><span>accepted", page)
    assert "done 2, at most" in page
    assert "No worker is running" in page


async def test_the_filter_of_the_list_is_its_address(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, one="first text", two="second text")
    page = (await browser.get("/documents", params={"name": "one*", "filter": "year>=2020"})).text
    assert "one.txt" in page
    assert "two.txt" not in page
    assert "all 1 that match" in page
    assert "No documents match" in (await browser.get("/documents?filter=year>2020")).text
    wrong = await browser.get("/documents?filter=%3D%3D")
    assert wrong.status_code == 422
    assert "text/html" in wrong.headers["content-type"]


async def test_an_action_on_all_that_match_asks_with_their_number_and_shows_its_progress(
    app: App, browser: httpx2.AsyncClient
) -> None:
    await ingest(app, a1="text", a2="text", b1="text")
    asked = await send(browser, "/documents/act", [("verb", "delete"), ("which", "matching"), ("name", "a*")])
    assert asked.status_code == 200
    assert "Delete all 2 documents that match?" in asked.text
    assert len(await app.list_documents()) == 3
    started = await confirmed(browser, asked)
    assert started.status_code == 303
    assert len(await app.list_documents()) == 3
    path = started.headers["location"]
    waiting = (await browser.get(path)).text
    assert "CHOOSING" in waiting
    assert "No worker is running: the action waits" in waiting
    await app.run_actions()
    done = (await browser.get(path)).text
    assert "2 of 2" in done
    assert "<strong>2</strong><span>changed" in done
    assert "data-poll" not in done
    assert "Delete 2 documents" in (await browser.get("/actions")).text
    assert [one.name for one in await app.list_documents()] == ["b1.txt"]


async def test_without_a_filter_an_action_is_about_all_documents(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, a="text", b="text")
    asked = await send(browser, "/documents/act", [("verb", "delete"), ("which", "matching")])
    assert "Delete all 2 documents that match?" in asked.text
    await confirmed(browser, asked)
    await app.run_actions()
    assert await app.list_documents() == []


async def test_an_action_is_stopped(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, a="text")
    started = await confirmed(
        browser, await send(browser, "/documents/act", [("verb", "delete"), ("which", "matching")])
    )
    path = started.headers["location"]
    assert (await send(browser, f"{path}/cancel", [])).status_code == 303
    await app.run_actions()
    assert "CANCELLED" in (await browser.get(path)).text
    assert len(await app.list_documents()) == 1


async def test_all_that_failed_for_a_reason_run_again_with_other_values(app: App, browser: httpx2.AsyncClient) -> None:
    for n in range(3):
        await app.ingest(data=b"%PDF-1.7 broken", name=f"broken{n}.pdf")
    await ingest(app, one="text")
    listed = (await browser.get("/documents?reason=damaged")).text
    assert "all 3 that match" in listed
    assert "one.txt" not in listed
    assert "damaged (3)" in listed
    asked = await send(browser, "/documents/act", [("verb", "retry"), ("which", "matching"), ("reason", "damaged")])
    assert "Retry all 3 documents that match?" in asked.text
    wrong = await confirmed(browser, asked, ("values", "chunk.size"))
    assert wrong.status_code == 422
    assert "chunk.size: write STEP.NAME=VALUE" in wrong.text
    unknown = await confirmed(browser, asked, ("values", "chunk.length=100"))
    await app.run_actions()
    refused = (await browser.get(unknown.headers["location"])).text
    assert "<strong>3</strong><span>failed" in refused
    assert "length" in refused.partition("Failures")[2]
    started = await confirmed(browser, asked, ("values", "chunk.size=300\r\n  chunk.overlap=30\r\n"))
    await app.run_actions()
    assert "<strong>3</strong><span>changed" in (await browser.get(started.headers["location"])).text
    again = [await app.status(one.id) for one in await app.list_documents(name="broken*")]
    assert [one.status for one in again] == ["PENDING"] * 3
    assert {one.given["verb"] for one in await app.list_audit(action="action")} == {"retry"}


async def test_a_locked_document_is_retried_with_its_password(app: App, browser: httpx2.AsyncClient) -> None:
    locked = pdf(page("The dam is locked."), lock=Lock(b"word-of-the-dam"))
    await app.ingest(data=locked, name="locked.pdf")
    [listed] = await app.list_documents()
    shown = (await browser.get(f"/documents/{listed.id}")).text
    assert "Retry with the password" in shown
    await send(browser, f"/documents/{listed.id}/retry", [("password", "word-of-the-dam")])
    await app.run()
    assert (await app.status(listed.id)).status == "COMPLETED"
    assert "word-of-the-dam" not in repr(await app.list_audit())


async def test_a_document_runs_again_with_other_values(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, one="First sentence here. " * 100)
    [listed] = await app.list_documents()
    asked = await send(browser, f"/documents/{listed.id}/start", [])
    assert "Run this document again?" in asked.text
    answer = await confirmed(browser, asked, ("values", "chunk.size=200\nchunk.overlap=0"))
    assert "started" in told(answer)
    await app.run()
    [again] = await app.list_documents()
    assert (again.status, listed.chunks is not None and again.chunks is not None) == ("COMPLETED", True)
    assert (again.chunks or 0) > 2 * (listed.chunks or 0)


async def test_an_action_on_selected_documents_changes_no_others(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, a="text", b="text", c="text")
    chosen = [(await app.list_documents(name=name))[0].id for name in ("a.txt", "b.txt")]
    fields = [("verb", "delete"), ("which", "selected"), ("sure", "yes"), *(("id", one) for one in chosen)]
    await send(browser, "/documents/act", fields)
    assert [one.name for one in await app.list_documents()] == ["c.txt"]
    nothing = await send(browser, "/documents/act", [("verb", "delete"), ("which", "selected")])
    assert "Select+documents" in nothing.headers["location"]


async def test_a_failed_document_says_why_and_is_retried(app: App, browser: httpx2.AsyncClient) -> None:
    await app.ingest(data=b"%PDF-1.7 broken", name="broken.pdf")
    [failed] = await app.list_documents(status="FAILED")
    page = (await browser.get(f"/documents/{failed.id}")).text
    assert failed.error is not None
    assert html.escape(failed.error, quote=False)[:40] in html.unescape(page)
    letters = (await browser.get("/dead-letters")).text
    assert "damaged" in letters
    assert (await send(browser, f"/documents/{failed.id}/retry", [])).status_code == 303
    [again] = await app.list_documents()
    assert again.status == "PENDING"


async def test_dead_letters_of_a_reason_are_discarded_after_a_question(app: App, browser: httpx2.AsyncClient) -> None:
    await app.ingest(data=b"%PDF-1.7 broken", name="broken.pdf")
    asked = await send(browser, "/dead-letters/act", [("reason", "damaged"), ("verb", "discard")])
    assert "Discard 1 dead letter (damaged)?" in asked.text
    assert (await app.list_dead_letters()).total == 1
    started = await confirmed(browser, asked)
    await app.run_actions()
    assert "DONE" in (await browser.get(started.headers["location"])).text
    assert (await app.list_dead_letters()).total == 0


async def test_a_search_marks_the_words_and_says_why(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, one="The turbine runs at 375 revolutions.")
    page = (await browser.get("/search?q=turbine")).text
    assert "<mark>turbine</mark>" in page
    assert "Why this hit" in page
    assert "words (BM25)" in page
    wrong = (await browser.get("/search?q=turbine&filter=%3D%3D")).text
    assert 'role="alert"' in wrong


async def test_a_chunk_is_marked_in_the_text_of_its_page(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, one="The first sentence is here. " * 30 + "The turbine runs.")
    [found] = await app.search("turbine", 1)
    page = (await browser.get(f"/documents/{found.document_id}?page=1&chunk={found.ordinal}")).text
    marked = re.search(r'<mark id="passage">(.*?)</mark>', page, re.DOTALL)
    assert marked is not None
    assert html.unescape(marked[1]) == found.text


async def test_a_page_of_a_pdf_is_shown_with_a_chunk_marked_where_it_stands(
    app: App, browser: httpx2.AsyncClient
) -> None:
    await app.ingest(data=pdf(page("The dam."), page("The turbine runs.", "It turns.")), name="hall.pdf")
    [found] = await app.search("turbine", 1)
    address = f"/documents/{found.document_id}"
    shown = (await browser.get(f"{address}?page=2&chunk={found.ordinal}")).text
    picture = re.search(r'<img src="([^"]+)"', shown)
    assert picture is not None
    marked = await browser.get(html.unescape(picture[1]))
    assert (marked.status_code, marked.headers["content-type"]) == (200, "image/svg+xml")
    assert "sandbox" in marked.headers["content-security-policy"]
    assert "data:image/jpeg;base64," in marked.text
    assert marked.text.count("<rect") == 2
    plain = await browser.get(f"{address}/pages/2.svg")
    assert plain.text.count("<rect") == 0
    for missing in ("3", "0", "99999999999"):
        assert (await browser.get(f"{address}/pages/{missing}.svg")).status_code in (404, 422)
    assert re.search(r"Page 2</strong>|Page 2 of 2", shown)
    assert 'rel="prev"' in shown


async def test_a_page_that_cannot_be_drawn_says_why(
    app: App, browser: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.ingest(data=pdf(page("The dam.")), name="dam.pdf")
    [listed] = await app.list_documents()

    async def crashed(*args: object, **kwargs: object) -> bytes:
        raise ParserBreach("the parser took longer than <60> s", reason="parser_timeout")

    monkeypatch.setattr("penstock.worker.parsers.pool.ParserPool.call", crashed)
    answer = await browser.get(f"/documents/{listed.id}/pages/1.svg")
    assert answer.status_code == 200
    assert "took longer than &lt;60&gt;" in answer.text


def test_pictures_are_kept_while_there_is_room() -> None:
    kept = Originals()
    for n in range(10):
        kept._keep((n,), Drawing(bytes(KEPT // 4), 1, 1, []))
    assert [key for (key,) in kept._kept] == [6, 7, 8, 9]
    assert kept._size == KEPT


async def test_a_document_shows_its_versions_and_its_steps_over_time(app: App, browser: httpx2.AsyncClient) -> None:
    for text in ("first text", "second text"):
        await app.ingest(data=text.encode(), name="one.txt", source="x:one")
    [listed] = await app.list_documents()
    page = (await browser.get(f"/documents/{listed.id}")).text
    assert "replaced" in page
    assert "searchable" in page
    assert page.count('class="work"') >= 5
    failing = StepView("embed", "embed", StepStatus.ERROR, 2, None, 10.0, None, {}, 14.0, 5.0, 20.0, 0, 2, "away")
    [row] = timeline([failing], 16.0)
    assert [(bar.kind, bar.x, bar.width) for bar in row.bars] == [
        ("wait", 0.0, 33.33),
        ("retried", 33.33, 26.67),
        ("wait", 60.0, 40.0),
    ]
    assert row.attempts == "2 (2 failed)"


async def test_a_long_file_shows_the_part_around_a_chunk(app: App, browser: httpx2.AsyncClient) -> None:
    words = (f"Sentence {n} is about turbine{n}." for n in range(20_000))
    await app.ingest(data=" ".join(words).encode(), name="long.txt")
    [found] = await app.search("turbine19000", 1, mode="text")
    answer = await browser.get(f"/documents/{found.document_id}?page={found.page}&chunk={found.ordinal}")
    marked = re.search(r'<mark id="passage">(.*?)</mark>', answer.text, re.DOTALL)
    assert marked is not None
    assert html.unescape(marked[1]) == found.text
    assert len(answer.content) < 600_000


async def test_i10_a_document_of_another_owner_is_not_found(app: App, browser: httpx2.AsyncClient) -> None:
    await app.for_owner("other").ingest(data=b"secret turbine", name="secret.txt")
    [theirs] = await app.for_owner("other").list_documents()
    for answer in (
        await browser.get(f"/documents/{theirs.id}"),
        await browser.get(f"/documents/{theirs.id}/pages/1.svg"),
        await send(browser, f"/documents/{theirs.id}/delete", [("sure", "yes")]),
        await send(browser, "/documents/act", [("verb", "delete"), ("sure", "yes"), ("id", theirs.id)]),
    ):
        assert answer.status_code == 404
        assert "text/html" in answer.headers["content-type"]
    assert len(await app.for_owner("other").list_documents()) == 1
    for path in ("/documents", "/search?q=turbine", "/"):
        assert "secret.txt" not in (await browser.get(path)).text


async def test_another_site_cannot_send_a_form(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, one="text")
    [listed] = await app.list_documents()
    answer = await browser.post(
        f"/documents/{listed.id}/delete",
        content="sure=yes",
        headers={"Content-Type": "application/x-www-form-urlencoded", "Origin": "https://evil.example"},
    )
    assert answer.status_code == 403
    assert len(await app.list_documents()) == 1


async def test_a_link_on_another_site_does_not_write_on_a_page(browser: httpx2.AsyncClient) -> None:
    assert "All is done." in (await browser.get("/documents?told=All+is+done.")).text
    answer = await browser.get("/documents?told=All+is+done.", headers={"Sec-Fetch-Site": "cross-site"})
    assert "All is done." not in answer.text


async def test_a_form_has_a_limit(browser: httpx2.AsyncClient) -> None:
    answer = await send(browser, "/documents/act", [("name", "x" * (2 << 20))])
    assert answer.status_code == 413


async def test_an_unexpected_error_is_a_page_that_tells_nothing(
    app: App, browser: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("secret-value")

    monkeypatch.setattr("penstock.verbs.owner.OwnerScope.list_documents", broken)
    answer = await browser.get("/documents")
    assert answer.status_code == 500
    assert "secret-value" not in answer.text


async def test_all_scripts_together_are_small(browser: httpx2.AsyncClient) -> None:
    sizes = [len((await browser.get(f"/static/{name}")).content) for name in TYPES if name.endswith(".js")]
    assert len(sizes) >= 2
    assert sum(sizes) < 60_000


async def test_an_unknown_static_file_is_not_found(browser: httpx2.AsyncClient) -> None:
    for name in ("nothing.css", "..%2f..%2fapp.py", "style.css%00"):
        assert (await browser.get(f"/static/{name}")).status_code == 404
    assert (await browser.get("/static/style.css")).headers["content-type"].startswith("text/css")


async def test_with_keys_a_person_signs_in_first(app: App, browser: httpx2.AsyncClient) -> None:
    await ingest(app, one="text")
    [listed] = await app.list_documents()
    key = (await app.create_key(scopes=("read", "write"))).secret
    sent_away = await browser.get("/documents?status=FAILED")
    assert (sent_away.status_code, sent_away.headers["location"]) == (303, "/login?next=/documents%3Fstatus%3DFAILED")
    refused = await send(browser, "/login", [("key", "pk_wrong"), ("next", "/documents")])
    assert refused.status_code == 401
    entered = await send(browser, "/login", [("key", key), ("next", "/documents")])
    assert entered.headers["location"] == "/documents"
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    page = await browser.get(f"/documents/{listed.id}")
    assert page.status_code == 200
    assert key not in page.text
    path = f"/documents/{listed.id}/delete"
    for wrong in ([], [("csrf", "x")], [("csrf", "\u1234")]):
        assert (await send(browser, path, [("sure", "yes"), *wrong])).status_code == 403
    assert len(await app.list_documents()) == 1
    assert (await send(browser, path, [*hidden(page.text), ("sure", "yes")])).status_code == 303
    assert await app.list_documents() == []
    assert (await browser.get("/search?q=text")).status_code == 403
    await send(browser, "/logout", hidden(page.text)[:1])
    assert (await browser.get("/documents")).status_code == 303


@pytest.mark.parametrize(
    "path", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "x"]
)
async def test_signing_in_leads_only_to_our_pages(app: App, browser: httpx2.AsyncClient, path: str) -> None:
    key = (await app.create_key()).secret
    entered = await send(browser, "/login", [("key", key), ("next", path)])
    assert entered.headers["location"] == "/"


async def test_a_key_for_some_collections_sees_only_these(app: App, browser: httpx2.AsyncClient) -> None:
    await app.ingest(data=b"open turbine", name="open.txt", collection="open")
    await app.ingest(data=b"secret turbine", name="secret.txt", collection="secret")
    [secret] = await app.list_documents(collection="secret")
    key = (await app.create_key(scopes=("read", "search"), collections=["open"])).secret
    await send(browser, "/login", [("key", key)])
    page = await browser.get("/documents?collection=open")
    assert "open.txt" in page.text
    assert "secret" not in page.text
    for path in ("/documents?collection=secret", f"/documents/{secret.id}", "/search?q=turbine&collection=secret"):
        assert (await browser.get(path)).status_code == 404
    for path in ("/", "/dead-letters", "/groups"):
        assert (await browser.get(path)).status_code == 403
