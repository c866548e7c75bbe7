"""The pages of the dashboard, as a browser without JavaScript uses them."""

import html
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import httpx2
import pytest

from penstock.app import App, open_app
from penstock.web.app import make_site


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with open_app(home=tmp_path / "home") as opened:
        yield opened


@pytest.fixture
async def browser(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=make_site(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8440") as client:
        yield client


async def ingest(app: App, **documents: str) -> None:
    for name, text in documents.items():
        await app.ingest(data=text.encode(), name=f"{name}.txt", metadata={"year": 2020})


async def send(browser: httpx2.AsyncClient, path: str, fields: list[tuple[str, str]]) -> httpx2.Response:
    body = urlencode(fields)
    return await browser.post(path, content=body, headers={"Content-Type": "application/x-www-form-urlencoded"})


def hidden(page: str) -> list[tuple[str, str]]:
    """The hidden fields of the form in the content of the page."""
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page)
    return [(html.unescape(name), html.unescape(value)) for name, value in found]


def told(answer: httpx2.Response) -> str:
    """What the page says to which a form leads."""
    return dict(parse_qsl(answer.headers["location"].partition("?")[2])).get("told", "")


async def confirmed(browser: httpx2.AsyncClient, asked: httpx2.Response, *more: tuple[str, str]) -> httpx2.Response:
    """Send the form of a page that asks."""
    path = re.search(r'<form method="post" action="([^"]*)" class="stack">', asked.text)
    assert path is not None, asked.text
    return await send(browser, html.unescape(path[1]), [*hidden(asked.text.partition('class="stack"')[2]), *more])
