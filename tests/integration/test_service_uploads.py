"""Uploads over HTTP."""

import asyncio
import base64
import hashlib
import json
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import StartApp
from tests.kit.service import client_of

from penstock.api import limits, multipart_files
from penstock.api.bodies import arriving
from penstock.api.problems import Problem
from penstock.app import App
from penstock.blobs.local import LocalBlobs
from penstock.config_limits import LimitsConfig
from penstock.config_serve import ServeConfig
from penstock.errors import UsageError
from penstock.model.nouns import Workflow
from penstock.runtime import Runtime
from penstock.verbs import accepting
from penstock.workflows.catalog import Catalog

LARGE = b"All turbines turn. " * 200_000


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app) as made:
        yield made


def digest(data: bytes) -> dict[str, str]:
    return {"Content-Digest": f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"}


@pytest.mark.parametrize("data", [b"some words", b"", LARGE], ids=["small", "empty", "large"])
async def test_a_put_is_accepted_and_idempotent(app: App, client: httpx2.AsyncClient, data: bytes) -> None:
    first = await client.put("documents", params={"source": "a/b.txt"}, content=data, headers=digest(data))
    assert first.status_code == 201, first.text
    made = first.json()
    assert made["outcome"] == "created"
    assert made["name"] == "b.txt"
    assert made["size"] == len(data)
    assert first.headers["location"] == f"/api/v1/documents/{made['id']}"
    assert first.headers["ratelimit"].startswith('"requests";r=')
    again = await client.put("documents", params={"source": "a/b.txt"}, content=data)
    assert again.status_code == 200
    assert again.json()["id"] == made["id"]
    assert again.json()["outcome"] == "resumed"
    changed = await client.put("documents", params={"source": "a/b.txt"}, content=data + b".")
    assert (changed.status_code, changed.json()["outcome"]) == (200, "updated")
    await app.run()
    done = await client.put("documents", params={"source": "a/b.txt"}, content=data + b".")
    assert done.json()["outcome"] == "unchanged"
    with_metadata = await client.put(
        "documents", params={"source": "a/b.txt", "metadata": '{"year": 2020}'}, content=data + b"."
    )
    assert with_metadata.json()["outcome"] == "updated"


async def test_small_uploads_share_what_they_need(
    app: App, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    workflow = Catalog.workflow

    def counted(self: Catalog, name: str) -> Workflow:
        made.append(name)
        return workflow(self, name)

    monkeypatch.setattr(Catalog, "workflow", counted)
    threads = threading.active_count()
    answers = await asyncio.gather(
        *(client.put("documents", params={"source": f"{n}.txt"}, content=b"w" * 10_000) for n in range(60))
    )
    assert {one.status_code for one in answers} == {201}
    # The workflow is read once a second, and no request needs a thread of its own.
    assert len(made) <= 10
    assert threading.active_count() <= threads + 6
    groups = await app.list_groups()
    assert sum(group.total for group in groups) == 60
    assert len(groups) <= 12


async def test_bytes_with_another_digest_are_refused(app: App, client: httpx2.AsyncClient) -> None:
    for data in (b"small", LARGE):
        answer = await client.put("documents", params={"source": "a"}, content=data, headers=digest(b"other"))
        assert answer.status_code == 422, answer.text
        assert "digest" in answer.json()["detail"]
    bad = await client.put("documents", params={"source": "a"}, content=b"x", headers={"Content-Digest": "sha-256=x"})
    assert bad.status_code == 400
    assert await app.list_documents() == []


@pytest.mark.parametrize("source", ["\0", "x" * 3_000, ""])
async def test_a_hostile_source_is_refused(client: httpx2.AsyncClient, source: str) -> None:
    answer = await client.put("documents", params={"source": source}, content=b"x")
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "values", [{"workflow": "/etc/passwd"}, {"params": "x.yaml"}, {"collection": "../x"}, {"metadata": "[]"}]
)
async def test_a_hostile_parameter_is_refused(client: httpx2.AsyncClient, values: dict[str, str]) -> None:
    answer = await client.put("documents", params={"source": "a", **values}, content=b"x")
    assert answer.status_code == 422, answer.text


async def test_many_small_uploads_share_commits(app: App, client: httpx2.AsyncClient) -> None:
    await client.put("documents", params={"source": "first"}, content=b"x")
    before = app.ledger.commits
    answers = await asyncio.gather(
        *(client.put("documents", params={"source": f"{i}.txt"}, content=b"x" * 10_000) for i in range(100))
    )
    assert [answer.status_code for answer in answers] == [201] * 100
    assert len({answer.json()["id"] for answer in answers}) == 100
    assert app.ledger.commits - before <= 20


async def test_one_source_at_the_same_time_is_one_document(app: App, client: httpx2.AsyncClient) -> None:
    answers = await asyncio.gather(
        *(client.put("documents", params={"source": "a"}, content=f"text {i}".encode()) for i in range(10))
    )
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(await app.list_documents()) == 1


async def test_one_bad_upload_does_not_harm_those_it_is_gathered_with(
    app: App, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = accepting.accept

    async def touchy(scope: Any, order: Any, items: Any) -> Any:
        if any(item.uri == "bad" for item in items):
            raise UsageError("this one is bad")
        return await real(scope, order, items)

    monkeypatch.setattr(accepting, "accept", touchy)
    answers = await asyncio.gather(
        *(client.put("documents", params={"source": name}, content=b"x") for name in ("one", "bad", "two"))
    )
    assert [answer.status_code for answer in answers] == [201, 422, 201]


async def test_text_as_json(app: App, client: httpx2.AsyncClient) -> None:
    body = {"text": "The penstock feeds the turbine.", "name": "a.txt", "metadata": {"year": 2020}}
    answer = await client.post("documents", json=body)
    assert answer.status_code == 200, answer.text
    [receipt] = answer.json()["receipts"]
    assert receipt["outcome"] == "created"
    [found] = await app.list_documents()
    assert found.metadata == {"year": 2020}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{", 400),
        ("[]", 422),
        ("{}", 422),
        ('{"text": "a", "name": "n", "url": "http://x"}', 422),
        ('{"text": "a"}', 422),
        ('{"text": "a", "name": "n", "odd": 1}', 422),
        ('{"text": "\\ud800", "name": "n"}', (400, 422)),
        ('{"url": "file:///etc/passwd"}', 422),
        ('{"url": "/etc/passwd"}', 422),
        ('{"url": "s3://bucket/key"}', 422),
        ('{"url": "http://127.0.0.1:1/x"}', 422),
        ('{"text": "a", "name": "\\u0000"}', 422),
    ],
)
async def test_wrong_json_is_refused(app: App, client: httpx2.AsyncClient, body: str, status: int | Any) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await client.post("documents", content=body.encode(), headers=headers)
    if answer.status_code == 200:
        assert "127.0.0.1" in body
        assert [one["outcome"] for one in answer.json()["receipts"]] == ["refused"]
    else:
        assert answer.status_code in (status if isinstance(status, tuple) else (status,)), answer.text
    assert await app.list_documents() == []


async def test_a_form_with_files_small_and_large(app: App, client: httpx2.AsyncClient) -> None:
    described = json.dumps({"source": "https://e.com/a", "name": "a.txt", "metadata": {"n": 1}})
    files: list[Any] = [
        ("metadata", (None, described)),
        ("file", ("x.txt", b"first")),
        ("file", ("large.txt", LARGE)),
        ("file", ("x.txt", b"second")),
        ("file", ("x.txt", b"third")),
    ]
    answer = await client.post("documents", files=files)
    assert answer.status_code == 200, answer.text
    receipts = answer.json()["receipts"]
    assert [one["outcome"] for one in receipts[:2]] == ["created", "created"]
    assert [one["source"] for one in receipts] == ["https://e.com/a", "large.txt", "x.txt", "x.txt"]
    assert receipts[-1]["id"] == receipts[-2]["id"]
    listed = {one.source: one for one in await app.list_documents()}
    assert listed["https://e.com/a"].metadata == {"n": 1}
    assert listed["large.txt"].size == len(LARGE)
    assert listed["x.txt"].size == len(b"third")


async def test_a_broken_form_tells_what_was_accepted(app: App, client: httpx2.AsyncClient) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="f"; filename="%s"\r\n\r\nwords\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await client.post("documents", content=part % b"a.txt" + (part % b"b.txt")[:-3], headers=headers)
    assert answer.status_code == 400
    assert [one["source"] for one in answer.json()["receipts"]] == ["a.txt", "b.txt"]
    assert answer.json()["receipts"][0]["outcome"] == "created"
    assert [one.source for one in await app.list_documents()] == ["a.txt"]


async def test_too_many_files_are_refused(client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.api.routes import uploads

    monkeypatch.setattr(uploads, "MOST_FILES", 2)
    answer = await client.post("documents", files=[("file", (f"{i}.txt", b"x")) for i in range(3)])
    assert answer.status_code == 413
    assert len(answer.json()["receipts"]) == 2


async def read_form(pieces: list[bytes]) -> list[tuple[str, str | None, bytes]]:
    async def arriving() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    found = []
    async for part in multipart_files.parts(arriving(), "bound"):
        found.append((part.name, part.filename, b"".join([piece async for piece in part.body()])))
    return found


PLAIN = (
    b'--bound\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n{"a": 1}\r\n'
    b'--bound\r\nContent-Disposition: form-data; name="f"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\n'
    b"\r\n--boun\r\n-\r\n\r\n--bound--\r\n"
)
READ = [("metadata", None, b'{"a": 1}'), ("f", "a.txt", b"\r\n--boun\r\n-\r\n")]


async def test_a_form_split_at_every_byte_is_the_same() -> None:
    for place in range(len(PLAIN) + 1):
        pieces = [piece for piece in (PLAIN[:place], PLAIN[place:]) if piece]
        assert await read_form(pieces) == READ, place
    assert await read_form([bytes([one]) for one in PLAIN]) == READ


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, len(PLAIN)), max_size=8))
def test_a_form_split_anywhere_is_the_same(places: list[int]) -> None:
    cuts = [0, *sorted(places), len(PLAIN)]
    pieces = [PLAIN[a:b] for a, b in pairwise(cuts) if a < b]
    assert asyncio.run(read_form(pieces)) == READ


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, len(PLAIN) - 5), st.binary(max_size=20))
def test_a_damaged_form_is_a_problem_or_a_form(place: int, rubbish: bytes) -> None:
    damaged = PLAIN[:place] + rubbish
    try:
        asyncio.run(read_form([damaged]))
    except Problem as problem:
        assert problem.code in ("bad_request", "too_large")  # noqa: PT017


async def test_a_disk_that_is_nearly_full_refuses_before_the_body_is_read(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "free_bytes", lambda folder: 100)
    read = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read = True
        yield b"x"

    async with client_of(app) as client:
        answer = await client.put("documents", params={"source": "a"}, content=body())
    assert answer.status_code == 507
    assert answer.headers["content-type"] == "application/problem+json"
    assert not read


async def test_an_owner_has_a_limit_of_requests_and_of_bytes(start_app: StartApp) -> None:
    app = await start_app(serve={"requests_per_s": 0.3, "upload_megabytes": 1})
    async with client_of(app) as client:
        answers = [await client.get("documents") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    uploads = limits.UploadLimits(app, app.config.serve)
    with uploads.upload("a", 10 << 20), uploads.upload("b", 1):
        with pytest.raises(Problem, match="too many bytes"), uploads.upload("a", 1):
            pass
    with uploads.upload("a", 1):
        pass


class Stream:
    """A request whose body comes slowly."""

    def __init__(self, pieces: int, every: float) -> None:
        self._pieces, self._every = pieces, every

    async def stream(self) -> AsyncIterator[bytes]:
        for _ in range(self._pieces):
            await asyncio.sleep(self._every)
            yield b"x"


@pytest.mark.parametrize(("pieces", "every", "why"), [(1, 5.0, "no byte"), (1000, 0.02, "a second")])
async def test_a_stalled_or_slow_client_is_cut_off(runtime: Runtime, pieces: int, every: float, why: str) -> None:
    chosen = msgspec.structs.replace(ServeConfig(), idle_s=0.2, bytes_per_s=1_000)
    request: Any = Stream(pieces, every)
    with pytest.raises(Problem, match=why) as refused:
        async for _ in arriving(request, chosen, runtime, LimitsConfig()):
            pass
    assert refused.value.code == "too_slow"


async def test_a_body_above_the_limit_is_refused(start_app: StartApp) -> None:
    app = await start_app(limits={"megabytes": 1})
    async with client_of(app) as client:
        announced = await client.put("documents", params={"source": "a"}, content=LARGE)

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b"x" * 100_000

        chunked = await client.put("documents", params={"source": "a"}, content=pieces())
    assert announced.status_code == 413
    assert chunked.status_code == 413
    assert await app.list_documents() == []


async def test_i1_an_upload_is_answered_only_when_it_is_stored(
    app: App, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes, then rows, then the answer."""
    order: list[str] = []
    put, write = LocalBlobs.put_many, app.ledger.write

    async def put_many(self: Any, *args: Any, **options: Any) -> None:
        await put(self, *args, **options)
        order.append("bytes" if options["durable"] else "not durable")

    async def noted(verb: Any, *args: Any) -> Any:
        done = await write(verb, *args)
        order.append(verb.name)
        return done

    monkeypatch.setattr(LocalBlobs, "put_many", put_many)
    monkeypatch.setattr(app.ledger, "write", noted)
    answer = await client.put("documents", params={"source": "a"}, content=b"words")
    order.append("answer")
    assert answer.status_code == 201
    assert order[:2] == ["bytes", "submit"]
    assert order[-1] == "answer"


async def test_a_caller_of_one_collection_cannot_upload_into_another(app: App) -> None:
    from tests.integration.test_service import Somebody

    async with client_of(app, Somebody(collections=("mine",))) as client:
        assert (await client.put("documents?source=a&collection=default", content=b"x")).status_code == 404
        assert (await client.put("documents?source=a&collection=mine", content=b"x")).status_code == 201
