"""The dashboard in Chromium: live, by keyboard, without JavaScript, accessible, and through a killed server."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect
from tests.browser.conftest import Server
from tests.kit.pdfs import page, pdf

PAGES = (
    "/", "/?window=week", "/documents", "/search?q=turbine", "/upload", "/dead-letters", "/actions", "/groups",
    "/steps", "/workers", "/webhooks", "/keys", "/audit",
)  # fmt: skip
MANY = 1_000 if os.environ.get("PENSTOCK_LONG") else 40
WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)


def notes(folder: Path, count: int) -> Path:
    folder.mkdir()
    for n in range(count):
        (folder / f"note{n:04}.txt").write_text(f"Note {n} is about the turbine of hall {n}.")
    return folder


async def opened(browser: Browser, **options: Any) -> tuple[Page, list[str]]:
    """A page, and what the browser reports about it."""
    context = await browser.new_context(**options)
    page = await context.new_page()
    page.set_default_timeout(WAIT_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return page, said


async def serious(page: Page) -> list[Any]:
    """What axe finds on the page that is not a trifle."""
    found = await Axe().run(page)
    return [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_MS / 1_000):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_page_is_accessible_and_without_errors(
    server: Server, browser: Browser, tmp_path: Path, theme: Any
) -> None:
    (notes(tmp_path / "notes", 3) / "broken.pdf").write_bytes(b"%PDF-1.7 broken")
    await asyncio.to_thread(server.penstock, "ingest", str(tmp_path / "notes"))
    page, said = await opened(browser, color_scheme=theme)
    await page.goto(f"{server.url}/documents?status=FAILED")
    document = await page.locator("tbody a").first.get_attribute("href")
    for path in (*PAGES, str(document)):
        await page.goto(server.url + path)
        assert await serious(page) == [], path
    await page.goto(f"{server.url}/documents?status=FAILED")
    await page.get_by_label("Act on").select_option("matching")
    await page.get_by_role("button", name="Retry …").click()
    await page.get_by_text("With other values").click()
    assert await serious(page) == [], "the question"
    await page.get_by_role("button", name="Retry all").click()
    await expect(page.locator(".lead")).to_contain_text("1 of 1")
    assert await serious(page) == [], "the action"
    assert said == []


async def test_no_page_is_wider_than_a_narrow_screen(server: Server, browser: Browser, tmp_path: Path) -> None:
    folder = notes(tmp_path / "notes", 2)
    (folder / f"{'long_name_without_a_space' * 8}.txt").write_text("The turbine of a long name.")
    await asyncio.to_thread(server.penstock, "ingest", str(folder))
    await asyncio.to_thread(server.penstock, "webhook", "create", "https://93.184.216.34/a/long/path/of/a/hook")
    page, _ = await opened(browser, viewport={"width": 360, "height": 740})
    await page.goto(f"{server.url}/webhooks")
    webhook = await page.locator("tbody a").first.get_attribute("href")
    await page.goto(f"{server.url}{webhook}")
    await page.get_by_role("button", name="Send a test").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.goto(f"{server.url}/documents?name=long*")
    document = await page.locator("tbody a").first.get_attribute("href")
    for path in (*PAGES, f"{document}?chunk=0", str(webhook)):
        await page.goto(server.url + path)
        beyond = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert beyond <= 0, path


async def test_a_page_follows_the_work_of_another_process(server: Server, browser: Browser, tmp_path: Path) -> None:
    page, said = await opened(browser)
    await page.goto(f"{server.url}/documents")
    await expect(page.locator("#live-mark")).to_contain_text("live")
    ingest = asyncio.to_thread(server.penstock, "ingest", str(notes(tmp_path / "notes", 2)))
    work = asyncio.create_task(ingest)
    await expect(page.locator("tbody tr")).to_have_count(2)
    await expect(page.locator("tbody .status-good")).to_have_count(2)
    await work
    assert said == []


async def test_a_chunk_is_marked_in_its_page_without_loading_the_page_again(
    server: Server, browser: Browser, tmp_path: Path
) -> None:
    folder = notes(tmp_path / "notes", 1)
    (folder / "hall.pdf").write_bytes(pdf(page(*(f"The turbine of hall {n} runs." for n in range(40)))))
    await asyncio.to_thread(server.penstock, "ingest", str(folder))
    tab, said = await opened(browser)
    await tab.goto(f"{server.url}/documents?name=hall.pdf")
    await tab.locator("tbody a").first.click()
    await tab.evaluate("window.kept = true")
    picture = tab.locator(".paper img")
    await expect(picture).to_have_js_property("complete", True)
    await tab.locator("a.chunk").first.click()
    await expect(picture).to_have_attribute("src", re.compile("chunk=0$"))
    await expect(tab.locator("a.chunk").first).to_be_focused()
    assert await tab.evaluate("window.kept") is True
    width = "document.querySelector('.paper img').naturalWidth"
    await until(lambda: tab.evaluate(f"{width} > 1000"))
    assert await serious(tab) == []
    assert said == []


async def test_the_list_is_used_by_keyboard(server: Server, browser: Browser, tmp_path: Path) -> None:
    await asyncio.to_thread(server.penstock, "ingest", str(notes(tmp_path / "notes", 3)))
    page, _ = await opened(browser)
    await page.goto(f"{server.url}/documents")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(3)
    for key in ("j", "j", "k", "j"):
        await page.keyboard.press(key)
    await expect(rows.nth(1)).to_have_attribute("data-selected", "true")
    await page.keyboard.press("x")
    await expect(rows.nth(1).locator("input")).to_be_checked()
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_contain_text("note")
    await page.goto(f"{server.url}/search")
    await page.keyboard.press("Tab")
    await page.keyboard.press("/")
    await page.keyboard.type("turbine")
    await page.keyboard.press("Enter")
    await expect(page.locator("mark").first).to_contain_text("turbine")


async def test_all_that_failed_are_retried_without_javascript(server: Server, browser: Browser, tmp_path: Path) -> None:
    folder = notes(tmp_path / "notes", 2)
    for n in range(3):
        (folder / f"broken{n}.pdf").write_bytes(b"%PDF-1.7 broken")
    await asyncio.to_thread(server.penstock, "ingest", str(folder))
    page, _ = await opened(browser, java_script_enabled=False)
    await page.goto(f"{server.url}/documents")
    await page.get_by_label("Reason of failure").select_option("damaged")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator("tbody tr")).to_have_count(3)
    await page.get_by_label("Act on").select_option("matching")
    await page.get_by_role("button", name="Retry …").click()
    await page.get_by_role("button", name="Retry all 3 documents that match").click()

    async def is_done() -> bool:
        await page.reload()
        return await page.locator(".lead .status-good").count() == 1

    await until(is_done)
    await expect(page.locator(".tiles li").first).to_contain_text("3changed")


async def test_a_key_is_created_and_used_by_keyboard_only(server: Server, browser: Browser) -> None:
    page, said = await opened(browser)
    await page.goto(f"{server.url}/keys")
    await page.keyboard.press("/")
    await page.keyboard.type("mine")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("The new key")
    key = await page.locator("code.secret").inner_text()
    for _ in range(20):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.textContent") == "Sign in":
            break
    await page.keyboard.press("Enter")
    await expect(page.locator("#key")).to_be_focused()
    await page.keyboard.type(key)
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_contain_text("mine")
    assert said == []


async def test_an_action_is_followed_without_loading_the_page_again(
    server: Server, browser: Browser, tmp_path: Path
) -> None:
    await asyncio.to_thread(server.penstock, "ingest", str(notes(tmp_path / "notes", 30)))
    page, said = await opened(browser)
    await page.goto(f"{server.url}/documents?name=note*")
    await page.get_by_label("Act on").select_option("matching")
    await page.get_by_role("button", name="Delete …").click()
    await page.get_by_role("button", name="Delete all 30 documents that match").click()
    await page.evaluate("window.kept = true")
    await expect(page.locator(".lead .status")).to_contain_text("DONE")
    await expect(page.locator(".tiles li").first).to_contain_text("30changed")
    assert await page.evaluate("window.kept") is True
    assert said == []


DROPPED = """(count) => {
  const dropped = new DataTransfer();
  for (let n = 0; n < count; n += 1) dropped.items.add(new File([`Note ${n} is about the turbine.`], `note${n}.txt`));
  return dropped;
}"""


async def test_files_that_were_dropped_go_on_after_the_server_was_killed(server: Server, browser: Browser) -> None:
    page, _ = await opened(browser)
    await page.goto(f"{server.url}/upload")
    await page.evaluate("window.kept = true")
    await page.dispatch_event("#drop", "drop", {"dataTransfer": await page.evaluate_handle(DROPPED, MANY)})
    told = page.locator("#told")

    async def some_are_there() -> bool:
        return int((await told.inner_text()).split(" of ")[0] or 0) >= MANY // 4

    await until(some_are_there)
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(server.start)
    await expect(told).to_have_text(f"{MANY} of {MANY} uploaded.", timeout=WAIT_MS * (5 if MANY > 100 else 1))
    assert await page.evaluate("window.kept") is True
    await page.goto(f"{server.url}/")
    await expect(page.locator(".tiles li").first).to_contain_text(f"{MANY:,}accepted")
