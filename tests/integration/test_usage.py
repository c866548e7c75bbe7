"""Money: what was bought and saved is recorded with what it counts, estimated before, and limited."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripts.reference import SHAPES
from tests.acceptance.test_json import fits
from tests.conftest import StartApp
from tests.kit.apps import penstock
from tests.kit.embedding_server import EmbeddingServer, serving, settings

from penstock.errors import UsageError

Files = Callable[..., Path]
PAID: dict[str, Any] = {"embedder": "openai:m?dimensions=64", "prices": {"openai:m": 2.0}}
"""Two millionths of a dollar for each token."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingServer]:
    with serving() as server:
        for name, value in settings(server).items():
            monkeypatch.setenv(name, value)
        yield server


def paragraphs(count: int, prefix: str = "") -> str:
    words = "tells at some length of a river, a dam, a gate and the men who open it when the water is high. "
    return "\n\n".join(f"Paragraph {prefix}{i} {words * 8} It ends with topic{prefix}{i}x." for i in range(count))


async def test_what_was_bought_is_recorded_by_run_group_owner_model_and_day(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    app = await start_app(**PAID)
    folder = files(**{"a.txt": paragraphs(12), "b.txt": paragraphs(12) + "\n\nOne line more."})
    summary = await app.ingest(folder)
    assert summary.completed == 2
    assert summary.cost == pytest.approx(server.tokens * 2e-6)
    found = await app.usage()
    [day] = found.days
    assert (day.owner, day.model.split(":")[0]) == ("default", "openai")
    assert (day.bought.texts, day.bought.tokens) == (len(server.texts), server.tokens)
    assert day.bought.cost == pytest.approx(server.tokens * 2e-6)
    # Eleven or twelve chunks of the two files are the same.
    chunks = sum(document.chunks or 0 for document in await app.list_documents())
    assert day.saved_by_cache.texts == chunks - len(set(server.texts))
    assert day.saved_by_resume.texts == 0
    assert (await app.status()).usage == found.total
    assert summary.group is not None
    assert (await app.group(summary.group)).usage == found.total
    runs = [(await app.status(document.id)).usage for document in await app.list_documents()]
    assert sum(run.bought.tokens for run in runs if run is not None) == server.tokens
    # A search is bought too.
    before = server.tokens
    await app.search("river")
    assert (await app.usage()).total.queries.tokens == server.tokens - before
    assert (await app.usage_of_all(days=1)).days == (await app.usage(days=1)).days
    assert (await app.for_owner("bert").usage()).days == []


async def test_a_run_that_reuses_everything_has_saved_it(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    app = await start_app(**PAID)
    folder = files(**{"a.txt": paragraphs(6)})
    await app.ingest(folder)
    bought = server.tokens
    assert (await app.ingest(folder, collection="other")).completed == 1
    assert server.tokens == bought
    total = (await app.usage()).total
    assert total.saved_by_cache.tokens == bought
    assert total.saved_by_cache.cost == pytest.approx(bought * 2e-6)


async def test_max_cost_stops_before_it_is_exceeded_and_the_next_call_continues(
    server: EmbeddingServer, start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.stages.embed.BATCH", 4)
    app = await start_app(**PAID, worker={"slots": 1})
    folder = files(**{"a.txt": paragraphs(40), "b.txt": paragraphs(3, "b")})
    summary = await app.ingest(folder, max_cost=0.005)
    assert (summary.cost_spent, summary.budget_spent, summary.failed) == (True, True, 0)
    assert summary.pending >= 1
    assert 0 < summary.cost <= 0.005
    assert server.tokens <= 2500
    documents = await app.list_documents()
    assert all(document.error is None for document in documents)
    # A limit that is too low for the next batch buys nothing, and spends no attempt.
    for _ in range(7):
        before = server.calls
        assert (await app.run(max_cost=0.0)).cost_spent
        assert server.calls == before
    assert all(document.error is None for document in await app.list_documents())
    last = await app.run()
    assert (last.cost_spent, last.pending) == (False, 0)
    assert (await app.status()).documents == {"COMPLETED": 2}
    assert len(server.texts) == len(set(server.texts)), "bought twice"
    total = (await app.usage()).total
    assert total.bought.tokens == server.tokens
    assert total.saved_by_resume.tokens > 0


async def test_max_cost_needs_a_price(server: EmbeddingServer, start_app: StartApp, files: Files) -> None:
    app = await start_app(embedder="cohere:m?dimensions=64")
    embedder: Any = app.ports.embedder
    embedder._paid, embedder._price = True, None
    with pytest.raises(UsageError, match="needs the price of cohere:m"):
        await app.ingest(files(**{"a.txt": "words"}), max_cost=1.0)
    for wrong in ("1", -1.0, float("nan"), True):
        with pytest.raises(UsageError, match="max_cost"):
            await app.run(max_cost=wrong)  # type: ignore[arg-type]
    # Without a limit it works, and the tokens are recorded without a cost.
    assert (await app.ingest(files(**{"a.txt": "some words"}))).completed == 1
    bought = (await app.usage()).total.bought
    assert (bought.tokens, bought.unpriced_tokens, bought.cost) == (server.tokens, server.tokens, 0.0)


async def test_an_estimate_buys_nothing_and_says_what_is_needed(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    app = await start_app(**PAID)
    folder = files(**{f"{n}.txt": paragraphs(4, f"{n}and") for n in range(5)})
    (folder / "notes.md").write_text("# Gates\n\n" + paragraphs(3, "m"))
    guess = await app.estimate(folder)
    assert server.calls == 0
    assert (await app.list_documents(), guess.documents, guess.measured) == ([], 6, 6)
    assert guess.cached_chunks == 0
    assert guess.seconds is None, "nothing was embedded yet"
    await app.ingest(folder)
    chunks = sum(document.chunks or 0 for document in await app.list_documents())
    assert (guess.chunks, guess.pages) == (chunks, 6)
    assert guess.cost is not None
    assert server.tokens * 2e-6 * 0.5 < guess.cost < server.tokens * 2e-6 * 2
    # What is there is not counted; texts that were bought before cost nothing; tokens are those of the provider.
    (folder / "copy.txt").write_text(paragraphs(4, "0and") + "\n\n" + paragraphs(4, "new"))
    before, calls = server.tokens, server.calls
    again = await app.estimate(folder)
    assert server.calls == calls
    assert (again.documents, again.plan.unchanged) == (1, 6)
    assert again.cached_chunks >= 2
    assert again.seconds is not None
    await app.ingest(folder)
    assert again.cost == pytest.approx((server.tokens - before) * 2e-6, rel=0.25)


async def test_an_estimate_measures_some_files_and_expects_the_rest_to_be_like_them(
    server: EmbeddingServer, start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.verbs.estimate.MEASURED", 4)
    app = await start_app(**PAID)
    folder = files(**{f"{n}.txt": paragraphs(3, f"{n}and") for n in range(20)})
    guess = await app.estimate(folder)
    assert (guess.documents, guess.measured) == (20, 4)
    await app.ingest(folder)
    chunks = sum(document.chunks or 0 for document in await app.list_documents())
    assert guess.chunks == pytest.approx(chunks, rel=0.1)
    assert guess.tokens == pytest.approx(server.tokens, rel=0.5)


def test_the_command_line_shows_cost_and_stops_with_code_3(server: EmbeddingServer, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "files"
    home.mkdir()
    folder.mkdir()
    (folder / "a.txt").write_text(paragraphs(30))
    config = tmp_path / "penstock.yaml"
    config.write_text("prices: {'openai:m': 2.0}\n")

    def run(*arguments: str) -> tuple[int, Any]:
        done = penstock(home, *arguments, "--json", embedder=PAID["embedder"], cwd=tmp_path)
        return done.returncode, json.loads(done.stdout)

    code, guess = run("ingest", str(folder), "--estimate")
    assert (code, guess["documents"], server.calls) == (0, 1, 0)
    code, spent = run("ingest", str(folder), "--max-cost", "0")
    assert (code, spent["cost_spent"], spent["pending"]) == (3, True, 1)
    code, done = run("run")
    assert (code, done["completed"]) == (0, 1)
    code, usage = run("usage")
    assert (code, usage["total"]["bought"]["tokens"]) == (0, server.tokens)
    assert fits(SHAPES["usage"][""], usage)
    assert run("status")[1]["usage"]["bought"]["cost"] == pytest.approx(done["cost"])


async def test_owners_share_bought_vectors_only_if_the_operator_says_so(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    folder = files(**{"a.txt": paragraphs(6)})
    app = await start_app(**PAID, retention={"share_bought": True})
    await app.for_owner("anna").ingest(folder)
    bought = server.tokens
    await app.for_owner("bert").ingest(folder)
    assert server.tokens == bought
    days = {day.owner: day for day in (await app.usage_of_all()).days}
    assert (days["anna"].bought.tokens, days["bert"].bought.tokens) == (bought, 0)
    assert days["bert"].saved_by_cache.tokens == bought
    assert (await app.check()).ok
