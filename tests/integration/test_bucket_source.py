"""`ingest s3://…`: objects of a real S3 server that is killed, refuses and holds odd keys."""

import asyncio
import os
import sys
from contextlib import aclosing
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit import s3
from tests.kit.apps import found, only
from tests.kit.s3 import S3Address

from penstock.app import App
from penstock.config_http import HttpConfig
from penstock.errors import ConfigError, SourceChanged, SourceError, UsageError
from penstock.runtime import Runtime
from penstock.sources.base import NOTHING, Found
from penstock.sources.bucket import BucketSource

LARGE = os.urandom(24_000_000)
SECRET = "a-wrong-secret-0123"
VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without credentials."""
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def shelf(s3_server: S3Address, clean: pytest.MonkeyPatch) -> s3.Prefix:
    for name, value in s3_server.environment.items():
        clean.setenv(name, value)
    return s3.Prefix(s3_server)


async def start(start_app: StartApp, **http: Any) -> App:
    return await start_app(http={"patience_s": 60, **http})


def source(url: str, runtime: Runtime, **http: Any) -> BucketSource:
    scheme, _, rest = url.partition("://")
    return BucketSource(scheme, rest, runtime, HttpConfig(**http), os.environ, megabytes=100)


async def discover(source: BucketSource) -> list[Found]:
    async with aclosing(source.discover(NOTHING)) as discovered:
        return [one async for one in discovered]


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    reads: list[str] = []
    read = BucketSource.read

    def noting(self: BucketSource, found: Found) -> Any:
        reads.append(found.name)
        return read(self, found)

    monkeypatch.setattr(BucketSource, "read", noting)
    return reads


async def test_a_bucket_is_synced_again_and_again(
    start_app: StartApp, shelf: s3.Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start(start_app)
    for name, text in {"a.txt": b"the turbine", "deep/b.txt": b"the weir", "c.txt": b"the sluice"}.items():
        shelf.put(name, text)
    reads = count_reads(monkeypatch)
    assert (await app.ingest(shelf.url)).completed == 3
    assert await found(app, "turbine") == {"a.txt"}
    reads.clear()
    again = await app.ingest(shelf.url + "/")
    assert (again.skipped, again.submitted, reads) == (3, 0, [])
    shelf.put("a.txt", b"the penstock")
    shelf.remove("c.txt")
    changed = await app.ingest(shelf.url)
    assert (changed.completed, changed.skipped, changed.deleted) == (1, 1, 0)
    assert reads == ["a.txt"]
    assert await found(app, "turbine") == set()
    assert await found(app, "sluice") == {"c.txt"}
    assert (await app.ingest(shelf.url, prune=True)).deleted == 1
    assert await found(app, "sluice") == set()


async def test_patterns_choose_keys_and_what_they_leave_out_is_not_gone(start_app: StartApp, shelf: s3.Prefix) -> None:
    app = await start(start_app)
    for name in ("a.txt", "drafts/b.txt", "c.md"):
        shelf.put(name, name.encode())
    assert (await app.ingest(shelf.url)).completed == 3
    shelf.put("drafts/new.txt", b"new")
    chosen = await app.ingest(shelf.url, include=["*.txt"], exclude=["drafts"], prune=True)
    assert (chosen.skipped, chosen.submitted, chosen.deleted) == (1, 0, 0)


async def test_odd_keys_are_documents_and_markers_of_folders_are_not(start_app: StartApp, shelf: s3.Prefix) -> None:
    app = await start(start_app)
    odd = ["c d+é%20#?&.txt", "q'\"<>.txt", "[x]*~.txt", "a:b@c.txt", "%2F.txt"]
    for number, key in enumerate(odd):
        shelf.put(key, f"text {number}".encode())
    shelf.put("empty.txt", b"")
    shelf.put_odd("folder/", b"")
    shelf.put("folder/in.txt", b"inside")
    shelf.put_odd("folder/bare/", b"")
    summary = await app.ingest(shelf.url)
    assert (summary.submitted, summary.problems) == (len(odd) + 2, [])
    sources = {one.source for one in await app.list_documents()}
    assert sources == {f"{shelf.url}/{key}" for key in (*odd, "empty.txt", "folder/in.txt")}
    assert (await app.ingest(f"{shelf.url}/{odd[0]}")).skipped == 1


async def test_one_object_is_named_and_gone_when_it_is_deleted(start_app: StartApp, shelf: s3.Prefix) -> None:
    app = await start(start_app)
    url = shelf.put("a.txt", b"the turbine")
    shelf.put("a.txt.md", b"another")
    assert (await app.ingest(url)).completed == 1
    assert (await only(app)).source == url
    shelf.remove("a.txt")
    assert (await app.ingest(url, prune=True)).deleted == 1


async def test_nothing_is_gone_where_the_list_did_not_come_to_its_end(start_app: StartApp, shelf: s3.Prefix) -> None:
    app = await start(start_app)
    shelf.put("a.txt", b"the turbine")
    shelf.put("b.txt", b"the weir")
    await app.ingest(shelf.url)
    shelf.remove("a.txt")
    shelf.put_odd("line\nbreak.txt", b"cannot be listed")
    summary = await app.ingest(shelf.url, prune=True)
    assert (summary.deleted, summary.gone) == (0, 0)
    assert "a key in it cannot be used" in summary.problems[0]
    assert await found(app, "turbine") == {"a.txt"}


async def test_a_read_goes_on_where_the_server_was_killed(clean: pytest.MonkeyPatch, runtime: Runtime) -> None:
    with s3.serving() as server:
        for name, value in server.environment.items():
            clean.setenv(name, value)
        shelf = s3.Prefix(server)
        shelf.put("large.bin", LARGE)
        shelf.put("other.bin", LARGE)
        reader = source(shelf.url, runtime, patience_s=300)
        large, other = await discover(reader)
        asked: list[Any] = []
        get = reader._store.get_async

        class Noting:
            def get_async(self, key: str, *, options: Any = None) -> Any:
                asked.append(options)
                return get(key, options=options)

        reader._store = Noting()  # type: ignore[assignment]
        async with aclosing(reader.read(large)) as pieces, aclosing(reader.read(other)) as others:
            got, begun = [await anext(pieces)], await anext(others)
            server.kill()
            restart = asyncio.create_task(asyncio.to_thread(server.start))
            got += [piece async for piece in pieces]
            await restart
            assert b"".join(got) == LARGE
            assert reader.learned(large).revision == large.revision
            assert 0 < asked[-1]["range"]["offset"] < len(LARGE), "not from the beginning"
            # The other object is overwritten while its reader is cut off.
            assert begun == LARGE[: len(begun)]
            shelf.put("other.bin", LARGE[::-1])
            with pytest.raises(SourceChanged):
                [piece async for piece in others]


async def test_an_outage_is_a_sentence(start_app: StartApp, shelf: s3.Prefix, clean: pytest.MonkeyPatch) -> None:
    app = await start(start_app, patience_s=0.3)
    shelf.put("a.txt", b"the turbine")
    await app.ingest(shelf.url)
    clean.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    summary = await app.ingest(shelf.url, prune=True)
    assert (summary.refused, summary.deleted) == (1, 0)
    assert summary.problems[0] == f"{shelf.url}: the server cannot be reached"


async def test_wrong_credentials_name_their_variables_and_no_secret(
    start_app: StartApp, shelf: s3.Prefix, clean: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    app = await start(start_app)
    url = shelf.put("a.txt", b"the turbine")
    (one,) = await discover(source(url, runtime))
    clean.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    summary = await app.ingest([shelf.url, f"{shelf.url}/"])
    assert summary.refused == 2
    assert all("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in problem for problem in summary.problems)
    assert SECRET not in str(summary)
    with pytest.raises(SourceError, match="AWS_SECRET_ACCESS_KEY"):
        async with aclosing(source(url, runtime).read(one)) as pieces:
            await anext(pieces)
    clean.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY"):
        await app.ingest(shelf.url)


async def test_a_bucket_that_does_not_exist_and_an_object_that_is_too_large(
    start_app: StartApp, shelf: s3.Prefix
) -> None:
    app = await start_app(limits={"megabytes": 1})
    shelf.put("large.bin", LARGE[: 2 << 20])
    summary = await app.ingest([shelf.url, "s3://there-is-none/x"])
    assert summary.refused == 2
    assert any("limits.megabytes" in problem for problem in summary.problems)
    assert any("there is no such bucket" in problem for problem in summary.problems)


@pytest.mark.parametrize("url", ["s3://", "s3:///a", "s3://id:secret@bucket/a", "s3://bucket/a//b", "gs://b/../a"])
async def test_a_wrong_url_is_refused_and_not_repeated(start_app: StartApp, url: str) -> None:
    app = await start_app()
    with pytest.raises(UsageError) as refused:
        await app.ingest(url)
    assert "secret" not in str(refused.value)


def test_plain_http_needs_an_endpoint_of_the_environment(clean: pytest.MonkeyPatch, runtime: Runtime) -> None:
    for name, url in (("AWS_ENDPOINT", "http://127.0.0.1:1"), ("AWS_ENDPOINT_URL", "https://127.0.0.1:1"), ("X", "")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, url)
            allowed = source("s3://bucket", runtime)._store.client_options
            assert allowed is not None
            assert allowed["allow_http"] in ((True, "true") if url.startswith("http:") else (False, "false"))


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:1", "ftp://127.0.0.1", "http://"])
def test_an_endpoint_that_is_not_a_url_is_named(clean: pytest.MonkeyPatch, runtime: Runtime, endpoint: str) -> None:
    clean.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL"):
        source("s3://bucket", runtime)


def test_google_and_azure_are_made_from_the_environment(clean: pytest.MonkeyPatch, runtime: Runtime) -> None:
    """They are not tested against a server."""
    clean.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(ConfigError, match=r"/nowhere/key\.json.*GOOGLE_APPLICATION_CREDENTIALS"):
        source("gs://bucket/a", runtime)
    clean.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    assert source("gs://bucket/a", runtime).repeatable
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        source("az://container/a", runtime)
    clean.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    clean.setenv("AZURE_STORAGE_ACCOUNT_KEY", "not base64: secret")
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_KEY") as refused:
        source("az://container/a", runtime)
    assert "secret" not in str(refused.value)
    clean.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    assert source("az://container/a", runtime).repeatable


def test_without_the_package_the_error_says_what_to_install(clean: pytest.MonkeyPatch, runtime: Runtime) -> None:
    clean.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock-rag\[objects\]'"):
        source("s3://bucket", runtime)
