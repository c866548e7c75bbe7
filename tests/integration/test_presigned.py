"""Uploads straight into a bucket of a real S3 server, on both databases: deaths at every seam, wrong parts, and what
prune removes."""

import asyncio
import hashlib
import random
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.acceptance import pages
from tests.conftest import StartApp
from tests.kit.s3 import BUCKET, Prefix, S3Server
from tests.kit.service import client_of, serving

from penstock.app import App
from penstock.blobs.base import Parts, parts_of
from penstock.errors import NotFound, NotSupported, StorageError, TooMuch, UsageError
from penstock.ledger.engine import uploads as rows
from penstock.net.s3_requests import place_of, signed
from penstock.verbs import presigned, uploads
from penstock.verbs.presigned import SignedUpload

DATA = b"".join(b"line %d of the log\n" % i for i in range(320_000))
PART = 5 << 20


@pytest.fixture
def shelf(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Prefix:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return Prefix(s3_server)


@pytest.fixture
async def app(start_app: StartApp, database_url: str, shelf: Prefix, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr(uploads, "LEASE_S", 1.0)
    return await start_app(database=database_url, blobs=shelf.url)


def put(url: str, data: bytes) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, data=data, method="PUT")) as answer:
        return str(answer.headers["ETag"])


async def sent(made: SignedUpload, data: bytes = DATA) -> dict[int, str]:
    """Send all parts. Return their ETags."""
    etags = {}
    for part in made.parts:
        first = (part.number - 1) * made.part_size
        etags[part.number] = await asyncio.to_thread(put, part.url, data[first : first + part.size])
    return etags


async def objects(app: App) -> list[str]:
    return [info.key async for info in app.blobs.list("") if "/raw/" in info.key]


def bucket(app: App) -> Parts:
    found = parts_of(app.blobs)
    assert found is not None
    return found


async def test_parts_that_a_client_sends_become_a_document(app: App) -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    made = await app.presign_upload(len(DATA), name="log.txt", part_size=PART, metadata={"year": 2020}, sha256=digest)
    assert [part.size for part in made.parts] == [PART, len(DATA) - PART]
    assert (await app.upload(made.upload.id)).state == "OPEN"
    assert await objects(app) == []
    done = await app.complete_upload(made.upload.id, await sent(made))
    assert (done.state, done.received) == ("ACCEPTED", len(DATA))
    assert done.document is not None
    assert await app.complete_upload(made.upload.id, {}) == done
    await app.run()
    status = await app.status(done.document)
    assert (status.status, status.size, status.metadata["year"]) == ("COMPLETED", len(DATA), 2020)
    # The object of the client is that of the document: no copy was made.
    [key] = await objects(app)
    assert key.startswith(f"{app.owner}/raw/")
    assert hashlib.sha256(await app.blobs.get(key)).hexdigest() == digest
    assert (await app.check()).problems == []
    await app.prune(older_than_s=0)
    assert await objects(app) == [key]
    with pytest.raises(UsageError, match="complete"):
        await app.presign_again(made.upload.id)


async def test_known_bytes_are_not_kept_twice_and_new_ones_replace_them(app: App) -> None:
    first = await app.presign_upload(len(DATA), name="log.txt")
    done = await app.complete_upload(first.upload.id, await sent(first))
    again = await app.presign_upload(len(DATA), name="log.txt")
    same = await app.complete_upload(again.upload.id, await sent(again))
    assert same.document == done.document
    assert same.receipt is not None
    assert same.receipt.outcome == "resumed"
    assert len(await objects(app)) == 1
    other = await app.presign_upload(3, name="log.txt")
    changed = await app.complete_upload(other.upload.id, await sent(other, b"new"))
    assert changed.document == done.document
    await app.run()
    [row] = await app.list_documents()
    assert (row.status, row.size) == ("COMPLETED", 3)


@pytest.mark.parametrize("seam", ["joined", "counted", "submitted", "ended"])
async def test_i1_i6_a_death_at_any_seam_loses_nothing_and_doubles_nothing(
    app: App, monkeypatch: pytest.MonkeyPatch, seam: str
) -> None:
    made = await app.presign_upload(5, name="a.txt")
    etags = await sent(made, b"words")
    real = app.ledger.write
    verbs: dict[str, Any] = {"joined": rows.ADD_PARTS, "submitted": rows.END_UPLOAD, "ended": rows.REMOVE_UPLOAD}

    async def dies(*given: Any, **more: Any) -> Any:
        if seam == "counted" or given[0] is verbs[seam]:
            raise StorageError("the process died here")
        return await real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(*((uploads, "_submitted", dies) if seam == "counted" else (app.ledger, "write", dies)))
        with pytest.raises(StorageError):
            await app.complete_upload(made.upload.id, etags)
    assert len(await app.list_documents()) == (seam in ("submitted", "ended"))
    if seam in ("counted", "submitted"):
        # No client needs to ask again: any process accepts it.
        assert await uploads.finish_uploads(app) == 1
    done = await app.complete_upload(made.upload.id, etags)
    assert done.state == "ACCEPTED"
    [row] = await app.list_documents()
    assert row.id == done.document
    await app.run()
    assert (await app.status(row.id)).status == "COMPLETED"
    assert len(await objects(app)) == 1
    assert (await app.check()).problems == []


@pytest.mark.parametrize("end", ["delete", "expire"])
async def test_i1_an_upload_that_ends_after_a_death_leaves_the_document_its_bytes(
    app: App, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(uploads, "LIFE_S", 2.0 if end == "expire" else 60.0)
    made = await app.presign_upload(5, name="a.txt")
    real = app.ledger.write

    async def dies(verb: Any, item: Any) -> Any:
        if verb is rows.END_UPLOAD:
            raise StorageError("the process died here")
        return await real(verb, item)

    monkeypatch.setattr(presigned, "LIFE_S", uploads.LIFE_S)
    with monkeypatch.context() as patch:
        patch.setattr(app.ledger, "write", dies)
        with pytest.raises(StorageError):
            await app.complete_upload(made.upload.id, await sent(made, b"words"))
    if end == "delete":
        await app.delete_upload(made.upload.id)
    else:
        await asyncio.sleep(2.5)
        assert (await app.prune()).uploads == 1
    await app.run()
    [row] = await app.list_documents()
    assert (row.status, len(await objects(app))) == ("COMPLETED", 1)
    assert (await app.check()).problems == []


async def test_i1_nothing_is_accepted_whose_bytes_are_not_there(app: App) -> None:
    made = await app.presign_upload(len(DATA), name="a.txt", part_size=PART)
    with pytest.raises((UsageError, NotFound)):
        await app.complete_upload(made.upload.id, {1: '"x"', 2: '"y"'})
    etags = await sent(made)
    for wrong in ({1: etags[1]}, {1: etags[2], 2: etags[1]}, {**etags, 3: etags[1]}, {}):
        with pytest.raises(UsageError):
            await app.complete_upload(made.upload.id, wrong)
    assert await app.list_documents() == []
    # Nothing was lost by that.
    assert (await app.complete_upload(made.upload.id, etags)).state == "ACCEPTED"
    short = await app.presign_upload(10, name="b.txt")
    refused = await app.complete_upload(short.upload.id, await sent(short, b"nine byte"))
    assert refused.state == "REFUSED"
    assert refused.receipt is not None
    assert "9 bytes, and not the 10" in (refused.receipt.problem or "")
    assert (await app.complete_upload(short.upload.id, {})).state == "REFUSED"
    other = await app.presign_upload(5, name="c.txt", sha256="0" * 64)
    refused = await app.complete_upload(other.upload.id, await sent(other, b"words"))
    assert refused.receipt is not None
    assert "SHA-256" in (refused.receipt.problem or "")
    assert [row.name for row in await app.list_documents()] == ["a.txt"]
    assert len(await objects(app)) == 1


async def test_abandoned_uploads_are_aborted(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = await app.presign_upload(len(DATA), name="a.txt", part_size=PART)
    await asyncio.to_thread(put, ended.parts[0].url, DATA[:PART])
    await app.delete_upload(ended.upload.id)
    assert await bucket(app).left("") == []
    with pytest.raises(urllib.error.HTTPError):
        await sent(ended)
    # One whose process died before it had a row, one that is alive, and one that expires.
    await bucket(app).begin(f"{app.owner}/raw/01M7GZQ/01M7GZQJXCK1BXB2ZYP1YTP0G8sent")
    alive = await app.presign_upload(5, name="b.txt")
    monkeypatch.setattr(uploads, "LIFE_S", 0.1)
    await app.presign_upload(5, name="c.txt")
    monkeypatch.undo()
    # What the library of the bucket has begun is not ours.
    await bucket(app).begin(f"{app.owner}/raw/01M7GZQ/01M7GZQJXCK1BXB2ZYP1YTP0G9")
    await asyncio.sleep(1.1)
    assert len(await bucket(app).left("")) == 4
    assert (await app.prune()).uploads == 1
    assert len(await bucket(app).left("")) == 4, "they are too young"
    assert (await app.prune(older_than_s=0, dry_run=True)).uploads == 2
    assert (await app.prune(older_than_s=0)).uploads == 2
    left = {one.key[-5:] for one in await bucket(app).left("")}
    assert len(left) == 2
    assert "YP0G9" not in left
    assert (await app.complete_upload(alive.upload.id, await sent(alive, b"words"))).state == "ACCEPTED"


async def test_i10_an_upload_of_another_owner_is_not_there(app: App) -> None:
    anna, bert = app.for_owner("anna"), app.for_owner("bert")
    made = await anna.presign_upload(5, name="a.txt")
    assert all("/anna/raw/" in part.url for part in made.parts)
    etags = await sent(made, b"words")
    for attempt in (bert.presign_again(made.upload.id), bert.complete_upload(made.upload.id, etags)):
        with pytest.raises(NotFound):
            await attempt
    assert (await anna.complete_upload(made.upload.id, etags)).state == "ACCEPTED"
    assert await bert.list_documents() == []


async def test_limits_and_wrong_arguments(app: App) -> None:
    await app.presign_upload(60, name="a.txt", most_bytes=100)
    with pytest.raises(TooMuch):
        await app.presign_upload(60, name="b.txt", most_bytes=100)
    assert len(await bucket(app).left("")) == 1, "what was refused is aborted"
    for size, part_size in ((0, None), (-1, None), (10, 1), (1 << 40, 5 << 20), (10, 6 << 30)):
        with pytest.raises(UsageError):
            await app.presign_upload(size, name="a.txt", part_size=part_size)
    large = await app.presign_upload(1 << 39, name="large.bin", most_bytes=1 << 40)
    assert len(large.parts) <= 1_000
    sent_here = await app.create_upload(5, name="c.txt")
    with pytest.raises(UsageError, match="send them here"):
        await app.complete_upload(sent_here.id, {})


async def test_a_url_is_for_one_part_and_for_a_time(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presigned, "EXPIRES_S", 1)
    made = await app.presign_upload(len(DATA), name="a.txt", part_size=PART)
    for changed in (
        made.parts[0].url.replace("partNumber=1", "partNumber=2"),
        made.parts[0].url.replace("/raw/", "/row/"),
        made.parts[0].url.replace("X-Amz-Expires=1", "X-Amz-Expires=9"),
    ):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            await asyncio.to_thread(put, changed, b"x")
    await asyncio.sleep(2.1)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        await asyncio.to_thread(put, made.parts[0].url, b"x")
    monkeypatch.undo()
    monkeypatch.setattr(presigned, "EXPIRES_S", 60)
    again = await app.presign_again(made.upload.id)
    assert (await app.complete_upload(made.upload.id, await sent(again))).state == "ACCEPTED"


async def test_without_a_bucket_the_problem_says_what_is_needed(start_app: StartApp) -> None:
    app = await start_app()
    with pytest.raises(NotSupported, match="s3://"):
        await app.presign_upload(5, name="a.txt")
    async with client_of(app) as http:
        answer = await http.post("uploads/presign", json={"name": "a.txt", "size": 5})
        assert (answer.status_code, answer.headers["content-type"]) == (501, "application/problem+json")
        assert "s3://" in answer.json()["detail"]


def test_the_signature_is_that_of_the_documentation_of_aws() -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html"""
    environment = {
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "AWS_ENDPOINT_URL": "https://examplebucket.s3.amazonaws.com",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }
    place = place_of("examplebucket", environment)
    assert place is not None
    url = signed(place, "GET", "test.txt", {}, 1369353600.0, 86400)
    assert url.endswith("X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")
    assert environment["AWS_SECRET_ACCESS_KEY"] not in repr(place)
    assert place_of("b", {}) is None
    here = place_of("b", {**environment, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "", "AWS_ENDPOINT_URL": ""})
    assert here is not None
    assert here.url == "https://s3.us-east-1.amazonaws.com/b"


def test_the_page_runs_as_shown(
    tmp_path: Path, shelf: Prefix, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [code] = [one for one in pages.blocks("docs/how-to/uploads.md", "py") if "presign" in one]
    (tmp_path / "film.mp4").write_bytes(DATA)
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "home", **shelf.server.environment, PENSTOCK_BLOBS=shelf.url) as served:
        exec(code.replace("http://127.0.0.1:8440", served.url), {})
        document = capsys.readouterr().out.strip()
        assert httpx2.get(f"{served.api}documents/{document}/raw").content == DATA


def test_i1_a_server_that_is_killed_between_the_calls_loses_nothing(tmp_path: Path, shelf: Prefix) -> None:
    settings = {**shelf.server.environment, "PENSTOCK_BLOBS": shelf.url}
    home, data = tmp_path / "home", random.Random(3).randbytes(PART + 1_000)
    with serving(home, **settings) as served:
        asked = {"name": "a.txt", "size": len(data), "part_size": PART, "hold": True}
        answer = httpx2.post(f"{served.api}uploads/presign", json=asked)
        assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
        made = answer.json()
        served.kill()
    parts = [
        {"number": one["number"], "etag": put(one["url"], data[i * PART : i * PART + one["size"]])}
        for i, one in enumerate(made["parts"])
    ]
    with serving(home, **settings) as served:
        at = f"{served.api}uploads/{made['id']}"
        assert httpx2.post(f"{at}/complete", json={"parts": parts[:1]}).status_code == 422
        with pytest.raises(httpx2.TimeoutException):
            # The client does not wait for the answer, and the server dies somewhere on its way.
            httpx2.post(f"{at}/complete", json={"parts": parts}, timeout=0.02)
        served.kill()
    with serving(home, **settings) as served:
        at = f"{served.api}uploads/{made['id']}"
        until = time.monotonic() + 60
        while (answer := httpx2.post(f"{at}/complete", json={"parts": parts}, timeout=60)).status_code == 423:
            assert time.monotonic() < until
            time.sleep(0.5)
        done = answer.json()
        assert (answer.status_code, done["state"], done["receipt"]["status"]) == (200, "ACCEPTED", "HELD")
        served.kill()
    with serving(home, **settings) as served:
        again = httpx2.get(f"{served.api}uploads/{made['id']}").json()
        assert again["document"] == done["document"]
        listed = httpx2.get(f"{served.api}documents").json()["documents"]
        assert [one["id"] for one in listed] == [done["document"]]
        raw = httpx2.get(f"{served.api}documents/{done['document']}/raw").content
        assert raw == data
    assert BUCKET in made["parts"][0]["url"]
