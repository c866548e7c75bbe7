"""Embedders that call a server, against a server that speaks their words and misbehaves."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import StartApp
from tests.kit.embedding_server import KEY, LONGEST, Answer, EmbeddingServer, make, serving, settings

from penstock.embedders import providers
from penstock.embedders.remote import RemoteEmbedder
from penstock.errors import Away, ConfigError, OutOfQuota, Permanent, RateLimited, StorageError, Transient, Unauthorized
from penstock.runtime import Runtime

PROVIDERS = ("openai", "azure", "ollama", "cohere")


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with serving() as server:
        yield server


@pytest.fixture(params=PROVIDERS)
async def embedder(request: pytest.FixtureRequest, server: EmbeddingServer, runtime: Runtime) -> AsyncIterator[Any]:
    made = make(request.param, server, runtime)
    yield made
    await made.close()


async def test_dimensions_of_an_unknown_model_are_asked_for_once(
    embedder: RemoteEmbedder, server: EmbeddingServer
) -> None:
    assert embedder.model.dimensions == 64
    assert embedder.model.dimensions == 64
    assert server.calls == 1


async def test_a_text_that_is_too_long_is_cut_until_it_fits(embedder: RemoteEmbedder, server: EmbeddingServer) -> None:
    long = "water " * LONGEST
    vectors = await embedder.embed_documents(["short", long, "other"])
    assert vectors.shape == (3, 64)
    assert vectors[1].any()
    assert max(map(len, server.texts)) <= LONGEST
    again = await embedder.embed_documents([long])
    assert np.allclose(again[0], vectors[1], atol=1e-6), "the same text has the same vector in any call"


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (Answer(429, {"error": "slow down"}, {"Retry-After": "7"}), RateLimited, "rate_limited"),
        (Answer(429, {"error": {"code": "insufficient_quota"}}), OutOfQuota, "provider_quota"),
        (Answer(401, {"error": "key"}), Unauthorized, "unauthorized"),
        (Answer(403, {"error": "key"}), Unauthorized, "unauthorized"),
        (Answer(404, {"error": "no such model"}), Unauthorized, "unauthorized"),
        (Answer(500, {}), Away, "away"),
        (Answer(503, {}, {"Retry-After": "3"}), Away, "away"),
        (Answer(200, {"data": 1, "embeddings": 2}), Transient, "bad_answer"),
        (Answer(200, b"<html>"), Transient, "bad_answer"),
        (Answer(200, {"data": [], "embeddings": []}), Transient, "bad_answer"),
        (Answer(200, {"data": "x" * 100}, cut=True), Away, "away"),
        (Answer(400, {"error": "this text offends us"}), Permanent, "text_rejected"),
        (Answer(302, {}, {"Location": "http://169.254.169.254/"}), Unauthorized, "unauthorized"),
        (Answer(402, {"error": "pay first"}), OutOfQuota, "provider_quota"),
        (Answer(405, {"error": "not here"}), Unauthorized, "unauthorized"),
        (Answer(409, {"error": "not now"}), Away, "away"),
        (Answer(200, b"[" * 100_000), Transient, "bad_answer"),
    ],
    ids=lambda value: f"{value.status}{'cut' if value.cut else ''}" if isinstance(value, Answer) else None,
)
async def test_every_bad_answer_has_its_error(
    embedder: RemoteEmbedder, server: EmbeddingServer, answer: Answer, error: type[Exception], reason: str
) -> None:
    await embedder.embed_documents(["river"])
    server.odd = lambda body: answer
    with pytest.raises(error) as caught:
        await embedder.embed_documents(["water"])
    assert type(caught.value) is error
    assert getattr(caught.value, "reason", None) == reason
    assert KEY not in str(caught.value)
    if wait := answer.headers.get("Retry-After"):
        assert getattr(caught.value, "retry_after", None) == float(wait)


async def test_vectors_that_are_no_numbers_are_refused(embedder: RemoteEmbedder, server: EmbeddingServer) -> None:
    assert embedder.model.dimensions == 64
    row = [math.nan] * 64
    server.odd = lambda body: Answer(
        200, {"data": [{"index": 0, "embedding": row}], "embeddings": {"float": [row]} if "texts" in body else [row]}
    )
    with pytest.raises(Transient):
        await embedder.embed_documents(["water"])


async def test_a_server_that_refuses_every_text_holds_the_work_and_is_asked_twice(
    embedder: RemoteEmbedder, server: EmbeddingServer
) -> None:
    """It does not refuse a text: it refuses a setting, such as the dimensions or a model that makes no vectors."""
    assert embedder.model.dimensions == 64
    before = server.calls
    server.odd = lambda body: Answer(400, {"error": "this model does not support `dimensions`"})
    with pytest.raises(Unauthorized, match=r"does not support `dimensions`.*every text. Correct `embedder`") as caught:
        await embedder.embed_documents([f"text {number}" for number in range(64)])
    assert caught.value.setting == "embedder"
    assert server.calls - before == 2


@pytest.mark.parametrize("dimensions", [1536, 3072])
async def test_a_full_call_of_large_vectors_is_answered_once(
    runtime: Runtime, server: EmbeddingServer, dimensions: int
) -> None:
    """OpenAI writes each number on a line of its own. A call has no more texts than an answer may have bytes."""
    embedder = make("openai", server, runtime, f"m?dimensions={dimensions}")
    assert 256 <= embedder.model.max_texts < 2048
    row = b"[" + b",".join([b"\n        -0.0069292834"] * dimensions) + b"\n      ]"
    head, rows = (
        b'{"data": [',
        [b'{"index": %d, "embedding": %b}' % (at, row) for at in range(embedder.model.max_texts)],
    )
    server.odd = lambda body: Answer(200, head + b",".join(rows) + b"]}")
    vectors = await embedder.embed_documents(["water"] * embedder.model.max_texts)
    assert vectors.shape == (embedder.model.max_texts, dimensions)
    assert server.calls == 1
    await embedder.close()


async def test_vectors_of_very_large_numbers_are_unit_vectors(runtime: Runtime, server: EmbeddingServer) -> None:
    embedder = make("openai", server, runtime, "m?dimensions=4")
    server.odd = lambda body: Answer(200, {"data": [{"index": 0, "embedding": [3e30, 0, 4e30, 0]}]})
    assert np.allclose(await embedder.embed_documents(["water"]), [[0.6, 0, 0.8, 0]])
    await embedder.close()


async def test_a_probe_that_never_ends_is_given_up(
    runtime: Runtime, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.embedders.remote.TOTAL_S", 0.3)
    for answer, limit in ((Answer(200, b" " * 40, drip_s=0.05), 8 << 20), (Answer(200, b" " * 4000), 1000)):
        monkeypatch.setattr("penstock.embedders.remote.MOST_PROBE_BYTES", limit)
        server.odd = lambda body, answer=answer: answer  # type: ignore[misc]
        with pytest.raises(Away, match="ends within"):
            make("openai", server, runtime).model  # noqa: B018


async def test_other_dimensions_than_expected_hold_the_work(runtime: Runtime, server: EmbeddingServer) -> None:
    embedder = make("openai", server, runtime, "text-embedding-3-small")
    assert embedder.model.dimensions == 1536
    assert embedder.model.price == 0, "a server on this machine costs nothing"
    with pytest.raises(Unauthorized, match=r"\?dimensions=64") as caught:
        await embedder.embed_documents(["water"])
    assert caught.value.setting == "embedder"
    await embedder.close()


async def test_fewer_dimensions_are_asked_for(runtime: Runtime, server: EmbeddingServer) -> None:
    embedder = make("openai", server, runtime, "text-embedding-3-large?dimensions=256")
    assert (await embedder.embed_documents(["water"])).shape == (1, 256)
    assert server.requests[-1]["dimensions"] == 256
    await embedder.close()


async def test_queries_and_documents_have_their_prefixes(runtime: Runtime, server: EmbeddingServer) -> None:
    server.dimensions = 768
    nomic = make("ollama", server, runtime, "nomic-embed-text:latest")
    await nomic.embed_documents(["water"])
    await nomic.embed_query("water")
    assert server.texts == ["search_document: water", "search_query: water"]
    cohere = make("cohere", server, runtime)
    await cohere.embed_documents(["water"])
    await cohere.embed_query("water")
    assert [one["input_type"] for one in server.requests[-2:]] == ["search_document", "search_query"]
    for one in (nomic, cohere):
        await one.close()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("openai:text-embedding-3-small", "OPENAI_API_KEY"),
        ("azure:ours", "AZURE_OPENAI_ENDPOINT"),
        ("cohere:embed-v4.0", "COHERE_API_KEY"),
        ("openai", "needs the name of a model"),
        ("openai:m?dimensions=many", "not a number"),
        ("openai:m?size=3", "unknown option size"),
        ("openai:text-embedding-ada-002?dimensions=3", "always has 1536"),
    ],
)
def test_what_is_missing_is_said(setting: str, said: str, runtime: Runtime) -> None:
    provider, _, argument = setting.partition(":")
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        providers.make(provider, argument, {}, runtime, {})


def test_a_paid_provider_has_its_published_price_or_that_of_the_settings(runtime: Runtime) -> None:
    def price(model: str, prices: dict[str, float]) -> float | None:
        return providers.make("openai", f"{model}?dimensions=8", {"OPENAI_API_KEY": "x"}, runtime, prices).model.price

    assert price("text-embedding-3-small", {}) == 0.02
    assert price("text-embedding-3-small", {"openai:text-embedding-3-small": 5.0}) == 5.0
    assert price("own-model", {}) is None


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_the_variables_that_users_have_are_enough(
    provider: str, server: EmbeddingServer, start_app: StartApp, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings(server).items():
        monkeypatch.setenv(name, value)
    app = await start_app(embedder=f"{provider}:some-model")
    folder: Path = files(**{f"{n}.txt": f"The turbine number {n} turns." for n in range(20)})
    assert (await app.ingest(folder)).completed == 20
    assert server.calls <= 4, "texts of many documents share a call"
    (hit,) = await app.search("turbine number 7", k=1)
    assert "turbine" in hit.text


async def test_the_dimensions_of_an_unknown_model_are_asked_for_once_in_all_processes(
    server: EmbeddingServer, start_app: StartApp, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings(server).items():
        monkeypatch.setenv(name, value)
    prices = {"openai:m": 2.0}
    app = await start_app(embedder="openai:m", prices=prices)
    folder: Path = files(**{f"{n}.txt": f"The turbine number {n} turns." for n in range(3)})
    assert (await app.ingest(folder)).completed == 3
    assert sorted(server.texts)[-1] == "dimensions"
    bought = len(server.texts)
    again = await start_app(embedder="openai:m", prices=prices)
    assert (await again.ingest(folder)).skipped == 3
    assert len(server.texts) == bought == 4
    # A server with other vectors is asked again, after the work was held.
    server.dimensions = 32
    (folder / "new.txt").write_text("Another turbine.")
    with pytest.raises(StorageError, match=r"\?dimensions=32"):
        await again.ingest(folder)
    other = await start_app("other", embedder="openai:m", prices=prices)
    assert other.ports.embedder.model.dimensions == 32
    assert not list((again.config.home_path).glob("dimensions.json.*"))


async def test_a_spent_quota_holds_the_work_with_its_own_sentence_and_fails_it_only_after_a_day(
    server: EmbeddingServer, start_app: StartApp, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings(server).items():
        monkeypatch.setenv(name, value)
    app = await start_app(embedder="openai:m?dimensions=64")
    server.odd = lambda body: Answer(429, {"error": {"code": "insufficient_quota"}}, {"Retry-After": "200000"})
    with pytest.raises(StorageError, match=r"quota is used up\. Buy more"):
        await app.ingest(files(**{"a.txt": "The turbine turns."}))
    assert (await app.list_dead_letters()).total == 0
    [away] = (await app.status()).away
    assert (away.state, "quota is used up" in away.error) == ("limited", True)
    # A day later.
    server.odd = lambda body: Answer(429, {"error": {"code": "insufficient_quota"}})
    now = "(julianday('now') - 2440587.5) * 86400.0"
    await app.ledger.read(lambda c: c.script(f"UPDATE targets SET since = {now} - 90000, held_until = {now} - 1"))
    assert (await app.run()).failed == 1
    assert (await app.list_dead_letters()).by_reason == {"provider_quota": 1}
    # Bought more.
    server.odd = lambda body: None
    await app.replay()
    assert (await app.run()).completed == 1


async def test_a_wrong_key_and_a_short_outage_cost_no_document(
    server: EmbeddingServer, start_app: StartApp, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings(server).items():
        monkeypatch.setenv(name, value)
    folder: Path = files(**{f"{n}.txt": f"The turbine number {n} turns." for n in range(5)})
    states = iter([Answer(401, {}), Answer(503, {}), Answer(429, {}, {"Retry-After": "0"})])
    app = await start_app(embedder="openai:m?dimensions=64", worker={"slots": 2})
    server.odd = lambda body: next(states, None)
    async with asyncio.timeout(120):
        summary = await app.ingest(folder)
    assert (summary.completed, summary.failed) == (5, 0)
    assert (await app.list_dead_letters()).total == 0
