"""`--rerank`: a model that reads query and passage together reorders the best hits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.cli import Cli
from tests.kit.models import tiny_bert, tiny_cross_encoder

from penstock.app import App
from penstock.embedders.folder import ModelFolder
from penstock.errors import ConfigError, UsageError
from penstock.rerankers.local import LocalReranker
from penstock.runtime import Runtime
from penstock.search import reranking


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home", tmp_path, {"PENSTOCK_EMBEDDER": "fake"})


@pytest.fixture
async def app(start_app: StartApp, tmp_path: Path) -> App:
    """Fifteen documents about water. Two name the judge."""
    app = await start_app()
    folder = tmp_path / "notes"
    folder.mkdir()
    for i in range(15):
        judge = " judge" * 3 if i in (6, 12) else ""
        (folder / f"{i:02}.txt").write_text("water " * (30 - i) + "pipe" + judge)
    await app.ingest([folder])
    return app


def names(hits: Sequence[Any]) -> list[str]:
    return [hit.name for hit in hits]


def test_a_model_of_a_wheel_without_a_config_reranks(cli: Cli, tmp_path: Path) -> None:
    tiny_cross_encoder(tmp_path / "model", {"judge": 9.0})
    added = cli("model", "add", "judges", str(tmp_path / "model"))
    assert added.code == 0
    assert "--rerank judges" in added.out
    (tmp_path / "a.txt").write_text("Water water water in the pipe.")
    (tmp_path / "b.txt").write_text("The judge carries water.")
    assert cli("ingest", "a.txt", "b.txt").code == 0
    plain, reranked = (cli("search", "water", "--mode", "text", "--json", *more).json["hits"] for more in ((), R))
    assert [hit["name"] for hit in plain] == ["a.txt", "b.txt"]
    assert [hit["name"] for hit in reranked] == ["b.txt", "a.txt"]
    explained = cli("search", "water", "--explain", *R)
    assert "RERANKED" in explained.out


R = ("--rerank", "judges")


async def test_the_order_depends_neither_on_the_number_nor_on_the_page(app: App, tmp_path: Path) -> None:
    model = str(tiny_cross_encoder(tmp_path / "model", {"judge": 9.0}))
    whole = await app.search("water pipe", 15, mode="text", rerank=model)
    before = await app.search("water pipe", 15, mode="text")
    at = names(before).index("12.txt")
    assert 0 < at < reranking.DEPTH
    assert names(whole)[0] == "12.txt"
    assert names(whole)[reranking.DEPTH :] == names(before)[reranking.DEPTH :], "what the model did not read stays"
    scores = [hit.score for hit in whole]
    assert scores == sorted(scores, reverse=True)
    found: list[str] = []
    after = None
    while True:
        page = await app.search("water pipe", 4, mode="text", rerank=model, after=after)
        found += names(page)
        after = page.next
        if after is None:
            break
    assert found == names(whole)
    page = await app.search("water pipe", 4, mode="text", rerank=model)
    with pytest.raises(UsageError, match="belongs to another search"):
        await app.search("water pipe", 4, mode="text", after=page.next)


async def test_a_passage_is_read_once_a_search(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(tiny_cross_encoder(tmp_path / "model", {"judge": 9.0}))
    read: list[str] = []
    score = LocalReranker._score

    def counted(self: LocalReranker, query: str, text: str) -> float:
        read.append(text)
        return score(self, query, text)

    monkeypatch.setattr(LocalReranker, "_score", counted)
    await app.search("water pipe", 12, rerank=model, group="document", min_score=0.01)
    assert len([text for text in read if text != "warm"]) == reranking.DEPTH


@pytest.mark.parametrize(("onnx", "said"), [(True, "is no cross-encoder"), (False, "has no classifier")])
async def test_a_model_that_makes_vectors_is_refused(app: App, tmp_path: Path, onnx: bool, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await app.search("water", rerank=str(tiny_bert(tmp_path / "vectors", onnx=onnx)))


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
async def test_a_model_that_returns_no_numbers_is_refused(app: App, tmp_path: Path, weight: float) -> None:
    with pytest.raises(ConfigError, match="not numbers"):
        await app.search("water", rerank=str(tiny_cross_encoder(tmp_path / "model", {"water": weight})))


async def test_an_unknown_model_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        await app.search("water", rerank="nothing")
    with pytest.raises(ConfigError, match="unknown name 'other'"):
        await app.search("water", rerank="other:model")


async def test_a_cross_encoder_of_safetensors_reads_the_pair(tmp_path: Path) -> None:
    runtime = Runtime()
    try:
        reranker = LocalReranker(ModelFolder(tiny_bert(tmp_path / "model", classifier=True)), runtime)
        first, second = await reranker.scores("water", ["the pipe", "the judge"])
        assert first != second
        assert await reranker.scores("water", ["the judge"]) == [second], "it does not depend on the others"
        assert await reranker.scores("court", ["the judge"]) != [second]
    finally:
        runtime.close()
