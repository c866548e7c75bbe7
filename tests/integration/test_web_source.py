"""`ingest https://…`: documents of a web server that moves, cuts, limits, lies and is away."""

import asyncio
import gzip
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit import web
from tests.kit.apps import found, only, until
from tests.kit.cli import Cli
from tests.kit.web import Handler, Site, cut, status

from penstock.app import App
from penstock.errors import ConfigError, UsageError
from penstock.net import addresses

QUICK = {"allow_private": True, "requests_per_s": 10_000, "patience_s": 5}
LARGE = os.urandom(700_000).hex().encode()


@pytest.fixture
def site() -> Iterator[Site]:
    with web.serving() as site:
        yield site


async def start(start_app: StartApp, **http: Any) -> App:
    return await start_app(http={**QUICK, **http})


async def test_a_page_is_ingested_once_and_only_asked_for_after_that(start_app: StartApp, site: Site) -> None:
    app = await start(start_app)
    url = site.put("/a.txt", b"the turbine")
    assert (await app.ingest(url)).completed == 1
    assert await found(app, "turbine") == {"a.txt"}
    assert (await only(app)).source == url
    site.requests.clear()
    again = await app.ingest([url])
    assert (again.skipped, again.submitted) == (1, 0)
    assert site.asked("/a.txt") == ["HEAD"]
    assert site.requests[-1][2]["if-none-match"] == site.pages["/a.txt"].etag
    site.put("/a.txt", b"the penstock")
    changed = await app.ingest([url])
    assert changed.completed == 1
    assert await found(app, "turbine") == set()
    assert await found(app, "penstock") == {"a.txt"}


async def test_the_same_bytes_under_another_etag_are_fetched_once_and_leave_no_second_copy(
    start_app: StartApp, site: Site, tmp_path: Path
) -> None:
    app = await start(start_app)
    url = site.put("/a.txt", LARGE, etag='"1"')
    await app.ingest(url, wait=False)

    def raw() -> list[Path]:
        return [path for path in (tmp_path / "home/blobs/default/raw").rglob("*") if path.is_file()]

    assert len(raw()) == 1
    site.put("/a.txt", LARGE, etag='"2"')
    assert (await app.ingest(url, wait=False)).pending == 1
    assert len(raw()) == 1
    site.requests.clear()
    assert (await app.ingest(url, wait=False)).pending == 1
    assert site.asked("/a.txt") == ["HEAD"]


async def test_dates_are_revisions_where_there_are_no_etags(start_app: StartApp, site: Site) -> None:
    app = await start(start_app)
    url = site.put("/a.txt", b"the turbine", etag=None, modified=1e9, head=False)
    await app.ingest(url)
    site.requests.clear()
    assert (await app.ingest(url)).skipped == 1
    assert site.asked("/a.txt") == ["HEAD", "GET"], "GET decides where HEAD is refused"
    site.put("/a.txt", b"the penstock", etag=None, modified=1e9 + 1)
    assert (await app.ingest(url)).completed == 1


async def test_a_cut_download_continues_where_it_stopped(start_app: StartApp, site: Site) -> None:
    app = await start(start_app)
    url = site.put("/a.txt", LARGE)
    site.faults += [cut("/a.txt", 100_000), cut("/a.txt", 200_000), cut("/a.txt", 0)]
    summary = await app.ingest(url, wait=False)
    assert (summary.submitted, summary.problems) == (1, [])
    ranges = [headers.get("range") for method, path, headers in site.requests if (method, path) == ("GET", "/a.txt")]
    assert ranges == [None, "bytes=100000-", "bytes=300000-", "bytes=300000-"]
    assert (await app.ingest(data=LARGE, name="a.txt", source=url, wait=False)).submitted == 1, "resumed: same bytes"


@pytest.mark.parametrize("options", [{"etag": None}, {"etag": 'W/"1"'}, {"ranges": False}])
async def test_a_cut_download_starts_again_where_it_cannot_continue(
    start_app: StartApp, site: Site, options: dict[str, Any]
) -> None:
    app = await start(start_app)
    url = site.put("/a.txt", LARGE, **options)
    site.faults.append(cut("/a.txt", 100_000))
    receipts = [receipt async for receipt in app.submit(url)]
    assert [(receipt.outcome, receipt.size) for receipt in receipts] == [("submitted", len(LARGE))]
    again = [receipt async for receipt in app.submit(data=LARGE, name="a.txt", source=url)]
    assert [receipt.outcome for receipt in again] == ["resumed"]


async def test_a_page_that_changes_while_its_download_is_cut_is_never_a_mixture(
    start_app: StartApp, site: Site
) -> None:
    app = await start(start_app)
    url = site.put("/a.txt", LARGE)
    other = LARGE[::-1]

    def change(handler: Handler) -> bool:
        if handler.command == "GET":
            site.put("/a.txt", other)
            return False
        site.faults.insert(0, change)
        return False

    site.faults += [cut("/a.txt", 100_000), change]
    await app.ingest(url, wait=False)
    again = [receipt async for receipt in app.submit(data=other, name="a.txt", source=url)]
    assert [receipt.outcome for receipt in again] == ["resumed"]


async def test_what_is_gone_is_told_and_deleted_only_on_request(start_app: StartApp, site: Site) -> None:
    app = await start(start_app)
    urls = [site.put(f"/{name}.txt", f"page {name}".encode()) for name in "abc"]
    await app.ingest(urls)
    del site.pages["/b.txt"]
    told = await app.ingest(urls)
    assert (told.gone, told.skipped, told.deleted, told.problems) == (1, 2, 0, [])
    site.faults += [status(500)] * 1000
    away = await app.ingest(urls, prune=True)
    assert away.deleted == 0
    assert "--prune was left out" in away.problems[-1]
    site.faults.clear()
    assert (await app.ingest(urls, prune=True)).deleted == 1
    assert {document.name for document in await app.list_documents()} == {"a.txt", "c.txt"}
    unknown = await app.ingest(urls)
    assert unknown.problems == [f"{urls[1]}: the server answered 404: there is no such document"]


async def test_a_host_that_is_away_is_waited_for_and_then_said_to_be(start_app: StartApp, site: Site) -> None:
    app = await start(start_app, patience_s=10)
    urls = [site.put(f"/{i}.txt", b"%d" % i) for i in range(60)]
    site.faults += [status(503), status(429, Retry_After="1"), status(502)]
    began = time.monotonic()
    assert (await app.ingest(urls[0], wait=False)).submitted == 1
    assert time.monotonic() - began >= 1, "Retry-After counts"
    site.faults += [status(503, Retry_After="3600")] * 1000
    began = time.monotonic()
    summary = await app.ingest(urls, wait=False)
    assert len(summary.problems) == summary.refused == 60
    assert all("the server answered 503, and asks to wait 3600 s" in problem for problem in summary.problems)
    assert len(site.faults) > 900, "a host that is away is not asked for each of its documents"


async def test_requests_to_one_host_are_spaced(start_app: StartApp, site: Site) -> None:
    app = await start(start_app, requests_per_s=20)
    urls = [site.put(f"/{i}.txt", b"%d" % i) for i in range(10)]
    await app.ingest(urls, wait=False)
    assert len(site.times) == 21
    assert site.times[-1] - site.times[0] >= 20 / 20 - 0.1


async def test_robots_are_obeyed_unless_told_otherwise(start_app: StartApp, site: Site) -> None:
    site.put("/robots.txt", b"User-agent: *\nDisallow: /private")
    urls = [site.put("/private/a.txt", b"a"), site.put("/b.txt", b"b")]
    app = await start(start_app)
    summary = await app.ingest(urls, wait=False)
    assert summary.submitted == 1
    forbidden = f"{urls[0]}: {site.url('')}/robots.txt forbids it (the setting http.robots decides)"
    assert summary.problems == [forbidden]
    assert site.asked("/private/a.txt") == []
    site.put("/c", b"", headers={"Location": "/private/a.txt"})
    hidden = await app.ingest(site.url("/c"), wait=False)
    assert "forbids it" in hidden.problems[0], "a redirect leads nowhere either"
    bold = await start(lambda **s: start_app("other", **s), robots=False)  # type: ignore[arg-type]
    assert (await bold.ingest(urls, wait=False)).submitted == 2


async def test_redirects_are_followed_but_never_to_a_private_address(
    start_app: StartApp, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "is_public", lambda address: address == "127.0.0.1")
    app = await start(start_app, allow_private=False, patience_s=0)
    site.put("/real.txt", b"the turbine")
    for private in ("127.0.0.2", "localhost2", "[::1]", "0x7f.2", "169.254.169.254"):
        site.put("/a.txt", b"", headers={"Location": site.url("/real.txt", private)})
        summary = await app.ingest(site.url("/a.txt"), wait=False)
        assert summary.submitted == 0, private
        assert "private address" in summary.problems[0] or "no answer" in summary.problems[0]
    assert site.asked("/real.txt") == []
    site.put("/a", b"", headers={"Location": "/b"})
    site.put("/b", b"", headers={"Location": site.url("/real.txt")})
    assert (await app.ingest(site.url("/a"), wait=False)).submitted == 1
    assert (await only(app)).name == "real.txt"
    looped = await app.ingest(site.put("/loop", b"", headers={"Location": "/loop"}), wait=False)
    assert "redirects too many times" in looped.problems[0]


async def test_a_name_that_changes_its_address_after_the_check_is_refused(
    start_app: StartApp, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the address that is connected to is the one that was checked."""
    answers = iter([["192.0.2.1"], ["127.0.0.1"]] * 50)
    monkeypatch.setattr(addresses, "look_up", lambda host, port: next(answers))
    app = await start(start_app, allow_private=False, timeout_s=0.2, patience_s=0)
    url = site.url("/a.txt", "rebinding.example")
    site.put("/a.txt", b"secret")
    for _ in range(4):
        assert (await app.ingest(url, wait=False)).submitted == 0
    assert site.requests == []


async def test_limits_of_size_also_of_what_is_compressed(start_app: StartApp, site: Site) -> None:
    app = await start_app(http=QUICK, limits={"megabytes": 1})
    large = site.put("/large.txt", LARGE)
    bomb = site.put("/bomb.txt", gzip.compress(bytes(1 << 20) + b"x"), headers={"Content-Encoding": "gzip"})
    good = site.put("/good.txt", gzip.compress(b"the turbine"), headers={"Content-Encoding": "gzip"})
    odd = site.put("/odd.txt", b"?", headers={"Content-Encoding": "br"})
    summary = await app.ingest([large, bomb, good, odd])
    assert (summary.completed, summary.refused) == (1, 3)
    assert await found(app, "turbine") == {"good.txt"}
    said = "\n".join(summary.problems)
    assert f"{large}: the answer has more than 1,048,576 bytes (the setting limits.megabytes is 1)" in said
    assert f"{bomb}: the answer has more than 1,048,576 bytes" in said
    wide = await start_app("wide", http=QUICK)
    site.put("/bomb.txt", gzip.compress(bytes(64 << 20)), headers={"Content-Encoding": "gzip"})
    assert "expands without end" in (await wide.ingest(bomb)).problems[0]


async def test_a_stop_does_not_wait_for_a_slow_download(start_app: StartApp, site: Site) -> None:
    app = await start(start_app)
    url = site.put("/a.txt", LARGE)

    def slow(handler: Handler) -> bool:
        if handler.command == "HEAD":
            site.faults.insert(0, slow)
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.wfile.write(b"x" * 1000)
        handler.wfile.flush()
        time.sleep(5)
        return True

    site.faults.append(slow)
    work = asyncio.create_task(app.ingest(url))

    async def begun() -> bool:
        return "GET" in site.asked("/a.txt")

    await until(begun)
    began = time.monotonic()
    app.stop()
    summary = await work
    assert time.monotonic() - began < 2
    assert summary.submitted == 0
    assert "interrupted" in summary.problems[0]


async def test_a_download_that_would_take_for_ever_is_given_up(start_app: StartApp, site: Site) -> None:
    app = await start_app(http=QUICK | {"timeout_s": 0.2})
    url = site.put("/a.txt", LARGE)

    def drip(handler: Handler) -> bool:
        if handler.command == "HEAD":
            site.faults.insert(0, drip)
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        with suppress(OSError):
            for _ in range(500):
                handler.wfile.write(b"x")
                handler.wfile.flush()
                time.sleep(0.02)
        return True

    site.faults.append(drip)
    began = time.monotonic()
    summary = await app.ingest(url)
    assert summary.problems == [f"{url}: it sends fewer than 1,000 bytes a second"]
    assert time.monotonic() - began < 9


async def test_a_bad_url_is_the_caller_s_mistake(app: App) -> None:
    for url in ("https://", "http://[::1", "https://exa mple.com/a", "http://ex%61mple.com/"):
        with pytest.raises((UsageError, ConfigError)):
            await app.ingest(url)
    with pytest.raises(UsageError, match="include and exclude"):
        await app.ingest("https://example.com/a", include="*.pdf")


def test_no_secret_of_a_url_is_stored_or_said(tmp_path: Path, site: Site) -> None:
    cli = Cli(tmp_path / "home", tmp_path, {"PENSTOCK_HTTP__ALLOW_PRIVATE": "true", "PENSTOCK_HTTP__PATIENCE_S": "0"})
    site.put("/a.txt?api_key=mustard4711", b"the turbine")
    url = f"http://anna:sesame4711@127.0.0.1:{site.port}/a.txt?api_key=mustard4711"
    said = [cli("ingest", url, url.replace("a.txt", "none.txt"), "--json", "--verbose"), cli("list", "--json")]
    assert said[0].json["completed"] == said[0].json["refused"] == 1
    authorized = [headers.get("authorization", "") for _, path, headers in site.requests if path.startswith("/a.txt")]
    assert authorized
    assert all(one.startswith("Basic ") for one in authorized)
    said.append(cli("ingest", "http://anna:sesame4711@127.0.0.1:1/a.txt?api_key=mustard4711"))
    said.append(cli("ingest", "http://anna:sesame4711@[::1/a.txt"))
    for secret in ("sesame4711", "mustard4711"):
        assert secret not in str(said)
        assert [path for path in cli.home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("place", ["before", "after"])
def test_i6_a_kill_around_the_write_of_a_revision_costs_at_most_another_download(
    tmp_path: Path, site: Site, place: str
) -> None:
    settings = {"PENSTOCK_HTTP__ALLOW_PRIVATE": "true"}
    url = site.put("/a.txt", b"the turbine")
    killed = Cli(tmp_path / "home", tmp_path, {**settings, "PENSTOCK_FAILPOINTS": f"ledger.revise.{place}=kill@1"})
    assert killed.process("ingest", url, "--no-wait").code == -signal.SIGKILL
    cli = Cli(tmp_path / "home", tmp_path, settings)
    site.requests.clear()
    assert cli("ingest", url, "--json").json["completed"] == 1
    assert site.asked("/a.txt") == (["HEAD", "GET"] if place == "before" else ["HEAD"])
    assert len(cli.documents()) == 1
    assert cli("check", "--json").json["ok"]
