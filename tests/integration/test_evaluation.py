"""`evaluate` measures the collection and trials of it, and leaves nothing behind."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found, text
from tests.kit.cli import Cli
from tests.kit.pdfs import page, pdf

from penstock.app import App
from penstock.errors import ConfigError, NotFound, UsageError
from penstock.worker.parsers.pool import ParserPool

QUESTIONS: list[dict[str, Any]] = [
    {"question": "matter3 subject3", "answer": "matter3", "document": "long.txt"},
    {"question": "sluice gate", "answer": "the sluice", "document": "gates.pdf", "page": 2},
    {"question": "who paints", "answer": "the painter"},
    {"question": "what is lost", "document": "lost.txt"},
]

Write = Callable[..., Path]


@pytest.fixture
async def filled(start_app: StartApp, database_url: str, files: Write) -> App:
    """A collection with a text and a PDF file, on each database in turn."""
    app = await start_app(database=database_url)
    pages = (page("One word of the dam."), page("The sluice gate is open."))
    folder = files(**{"long.txt": text(60), "gates.pdf": pdf(*pages)})
    assert (await app.ingest([folder])).completed == 2
    return app


async def picture(app: App) -> Any:
    """Everything that a user can see."""
    return (
        await app.status(),
        await app.list_documents(limit=100),
        await app.list_steps(),
        await app.list_groups(),
        await found(app, "matter3"),
        (await app.check()).problems,
    )


def trials(app: App) -> list[str]:
    folder = app.config.home_path / "trials"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_it_measures_the_collection_and_tells_misses_from_what_is_nowhere(filled: App) -> None:
    evaluation = await filled.evaluate(QUESTIONS, k=[5, 1], tries={"mode": ["text"]})
    text_mode = evaluation.results[1]
    assert evaluation.k == [1, 5]
    assert [result.mode for result in evaluation.results] == ["hybrid", "text"]
    assert text_mode.recall == {"1": 0.5, "5": 0.5}
    assert text_mode.mrr == 0.5
    assert [one.line for one in text_mode.absent] == [3, 4]
    assert text_mode.missed == []
    assert 0 < text_mode.latency_ms.p50 <= text_mode.latency_ms.p95
    assert evaluation.plan.trials == []


async def test_an_answer_that_search_does_not_find_is_missed_and_not_absent(filled: App) -> None:
    [result] = (
        await filled.evaluate([{"question": "sluice", "answer": "matter7"}], k=[1], tries={"mode": ["text"]})
    ).results[1:]
    assert [one.line for one in result.missed] == [1]
    assert result.absent == []


async def test_another_chunk_size_reads_no_file_again_and_changes_nothing(
    filled: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await picture(filled)
    calls: list[ParserPool] = []
    monkeypatch.setattr(ParserPool, "start", calls.append)

    evaluation = await filled.evaluate(QUESTIONS, tries={"chunk.size": [200, 1000], "mode": ["text", "hybrid"]})

    by_size = {result.settings["chunk.size"]: result for result in evaluation.results}
    assert len(evaluation.results) == 4
    [trial] = evaluation.plan.trials
    assert (trial.settings, trial.documents, trial.extracted) == ({"chunk.size": 200}, 2, 0)
    built = by_size[200].built
    assert built is not None
    assert (built.pages, built.failed) == (0, 0)
    assert built.chunks == built.embedded == by_size[200].chunks > 2 * by_size[1000].chunks
    assert by_size[1000].built is None
    assert [result.present for result in evaluation.results].count(True) == 1
    assert calls == []
    assert await picture(filled) == before
    assert trials(filled) == []


async def test_a_value_that_affects_extraction_extracts_again(filled: App) -> None:
    evaluation = await filled.evaluate(QUESTIONS, tries={"extract.note": ["x"]})
    built = evaluation.results[1].built
    assert evaluation.plan.trials[0].extracted == 2
    assert built is not None
    assert built.pages == 3


async def test_kept_trials_are_used_again_follow_the_collection_and_are_pruned(filled: App, files: Write) -> None:
    first = await filled.evaluate(QUESTIONS, tries={"chunk.size": [200]}, keep=True)
    folder = files(**{"long.txt": text(10), "new.txt": "a new sluice"})
    (folder / "gates.pdf").unlink()
    await filled.ingest([folder], prune=True)

    second = await filled.evaluate(QUESTIONS, tries={"chunk.size": [200]}, keep=True)

    assert first.results[1].documents == second.results[1].documents == 2
    assert second.results[1].chunks < first.results[1].chunks
    assert [one.line for one in second.results[1].absent] == [2, 3, 4]
    assert (await filled.evaluate(QUESTIONS, tries={"chunk.size": [300]})).removed_trials == 0
    assert len(trials(filled)) == 2
    assert (await filled.prune()).trials == 0
    [lock] = (filled.config.home_path / "trials").glob("*.lock")
    os.utime(lock, (time.time() - 90_000, time.time() - 90_000))
    assert (await filled.prune(dry_run=True)).trials == 1
    assert (await filled.prune()).trials == 1
    assert trials(filled) == []


async def test_another_owner_evaluates_only_his_own(filled: App) -> None:
    with pytest.raises(NotFound, match="no collection 'default'"):
        await filled.for_owner("bert").evaluate(QUESTIONS)


async def test_a_stop_ends_it_and_the_same_call_continues(filled: App) -> None:
    def stop(progress: object) -> None:
        filled.stop()

    stopped = await filled.evaluate(QUESTIONS, tries={"chunk.size": [50]}, report=stop)
    assert stopped.interrupted
    assert len(stopped.results) == 1
    assert len(trials(filled)) == 2
    filled.resources.stopping = False
    done = await filled.evaluate(QUESTIONS, tries={"chunk.size": [50]})
    assert len(done.results) == 2
    assert trials(filled) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"collection": "none"}, NotFound),
        ({"k": [0]}, UsageError),
        ({"k": []}, UsageError),
        ({"tries": {"chunk.size": ["big"]}}, UsageError),
        ({"tries": {"chunk.size": [0]}}, UsageError),
        ({"tries": {"chunk.sizes": [5]}}, UsageError),
        ({"tries": {"chunk.overlap": [1000]}}, ConfigError),
        ({"tries": {"nostep.size": [5]}}, ConfigError),
        ({"tries": {"embedder": ["nosuch"]}}, ConfigError),
        ({"questions": []}, UsageError),
        ({"questions": 5}, UsageError),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_built(
    start_app: StartApp, files: Write, arguments: dict[str, Any], error: type[Exception]
) -> None:
    app = await start_app()
    await app.ingest([files(**{"a.txt": "some words"})])
    with pytest.raises(error):
        await app.evaluate(**{"questions": QUESTIONS, **arguments})
    assert trials(app) == []


def command(tmp_path: Path, **settings: str) -> Cli:
    return Cli(tmp_path / "home", tmp_path, {f"PENSTOCK_{name}": value for name, value in settings.items()})


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    folder = tmp_path / "notes"
    folder.mkdir()
    for i in range(8):
        (folder / f"n{i}.txt").write_text(text(20, f"word{i}x"))
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    # A trial reads the artifacts of the collection.
    assert command(tmp_path, KEEP_ARTIFACTS="always")("ingest", folder).code == 0
    return command(tmp_path)


@pytest.mark.parametrize("failpoint", ["ledger.adopt.after", "ledger.submit.after", "ledger.flip.before"])
def test_after_a_kill_in_a_trial_nothing_is_seen_and_the_same_command_continues(
    cli: Cli, tmp_path: Path, failpoint: str
) -> None:
    seen = cli("list", "--json").out, cli("status", "--json").out
    killed = command(tmp_path, FAILPOINTS=f"{failpoint}=kill@1").process("eval", "q.jsonl", "--try", "chunk.size=200")
    assert killed.code == -9
    assert list((cli.home / "trials").glob("*.lock"))
    assert (cli("list", "--json").out, cli("status", "--json").out) == seen
    assert cli("check", "--json").json["problems"] == []

    again = cli("eval", "q.jsonl", "--try", "chunk.size=200", "--json", "--plot", "r.svg").json

    assert [result["settings"] for result in again["results"]] == [{}, {"chunk.size": 200}]
    assert again["results"][1]["documents"] == 8
    assert again["results"][1]["built"]["pages"] == 0
    assert list((cli.home / "trials").iterdir()) == []
    assert (tmp_path / "r.svg").read_text().startswith("<svg")


def test_the_next_eval_removes_what_a_killed_one_left(cli: Cli, tmp_path: Path) -> None:
    command(tmp_path, FAILPOINTS="ledger.flip.before=kill@1").process("eval", "q.jsonl", "--try", "chunk.size=200")
    assert cli("eval", "q.jsonl", "--json").json["removed_trials"] == 1
    assert list((cli.home / "trials").iterdir()) == []


def test_the_table_has_a_row_for_each_combination(cli: Cli) -> None:
    done = cli("eval", "q.jsonl", "--try", "mode=text,hybrid,vector", "-k", "1,3")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()[:4]] == [
        "settings",
        "mode=hybrid",
        "mode=text",
        "mode=vector",
    ]
    assert "R@3" in done.out
    assert "answers are not in any chunk" in done.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("none.jsonl",),
        ("q.jsonl", "-k", "a"),
        ("q.jsonl", "--try", "chunk.size"),
        ("q.jsonl", "--plot", "r.png"),
        ("q.jsonl", "--plot", "none/r.svg"),
        ("notes",),
    ],
)
def test_a_wrong_argument_is_a_sentence_and_exit_code_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli("eval", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("penstock: ")
