"""What one document may take: bytes, pages, time of parsers. More than that ends it, with a reason of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.integration.test_pdf import Calls, pages_of
from tests.kit.apps import found, named, only
from tests.kit.parsers import PATHS
from tests.kit.pdfs import numbered, pdf

from penstock.app import App
from penstock.config import load_config
from penstock.errors import ConfigError
from penstock.worker.parsers import process

Files = Callable[..., Path]


async def letter_of(app: App, name: str) -> tuple[str, str]:
    [letter] = [letter for letter in (await app.list_dead_letters()).letters if letter.name == name]
    return letter.reason, letter.error


async def test_i9_a_file_that_is_too_large_is_a_dead_letter_that_names_the_setting(
    start_app: StartApp, files: Files
) -> None:
    folder = files(**{"large.txt": "largeword " * 150_000, "small.txt": "smallword"})
    app = await start_app(limits={"megabytes": 1})
    summary = await app.ingest([folder])
    assert (summary.completed, summary.failed) == (1, 1)
    reason, sentence = await letter_of(app, "large.txt")
    assert reason == "too_large"
    assert "1.5 megabytes, and the limit is 1 " in sentence
    assert "limits.megabytes" in sentence
    document = await named(app, "large.txt")
    higher = await start_app(limits={"megabytes": 2})
    await higher.retry([document.id])
    assert (await higher.run()).completed == 1


async def test_i9_one_with_too_many_pages_is_a_dead_letter_and_a_higher_limit_goes_on(
    start_app: StartApp, files: Files
) -> None:
    folder = files(**{"a.pdf": pdf(*numbered(60)), "b.txt": "\f".join(f"page {i}" for i in range(60))})
    app = await start_app(parsers={"children": 1}, limits={"pages": 50})
    calls = Calls(app.resources.parsers)
    assert (await app.ingest([folder])).failed == 2
    for name in ("a.pdf", "b.txt"):
        reason, sentence = await letter_of(app, name)
        assert reason == "too_many_pages"
        assert "60 pages" in sentence
        assert "limits.pages" in sentence
    assert len(calls.batches) == 1, "the first answer tells how many there are"
    higher = await start_app(limits={"pages": 60})
    await higher.retry([(await named(app, name)).id for name in ("a.pdf", "b.txt")])
    assert (await higher.run()).completed == 2


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call takes 0.2 s."""
    monkeypatch.setenv("PYTHONPATH", PATHS)
    monkeypatch.setattr(process, "CHILD", "tests.integration.cursed_child")
    monkeypatch.setenv("PYTHON_CURSE", "slow:0.2")


async def test_i9_one_that_keeps_parsers_busy_for_too_long_ends_and_others_do_not(
    start_app: StartApp, files: Files, slow: None
) -> None:
    folder = files(**{"long.pdf": pdf(*numbered(240)), "short.pdf": pdf(*numbered(8, "shortword"))})
    app = await start_app(parsers={"children": 2}, limits={"parser_s": 1.0})
    summary = await app.ingest([folder])
    assert (summary.completed, summary.failed) == (1, 1)
    assert await found(app, "shortword1") == {"short.pdf"}
    reason, sentence = await letter_of(app, "long.pdf")
    assert reason == "parser_limit"
    assert "limits.parser_s" in sentence
    document = await named(app, "long.pdf")
    kept = await pages_of(app, document.id)
    assert 8 <= len(kept) < 160
    higher = await start_app(parsers={"children": 2}, limits={"parser_s": 100.0})
    calls = Calls(higher.resources.parsers)
    await higher.retry([document.id])
    assert (await higher.run()).completed == 1
    assert min(first for first, _ in calls.batches) == len(kept)


async def test_the_time_of_parsers_is_counted_over_interruptions(start_app: StartApp, files: Files, slow: None) -> None:
    app = await start_app(parsers={"children": 1}, limits={"parser_s": 1.0})
    await app.ingest([files(**{"a.pdf": pdf(*numbered(120))})], wait=False)
    claims = 0
    while (await only(app)).status not in ("FAILED", "COMPLETED"):
        await app.run(budget_s=0.001)
        claims += 1
        assert claims < 20
    assert claims > 2, "it was interrupted"
    assert (await letter_of(app, "a.pdf"))[0] == "parser_limit"
    assert 8 <= len(await pages_of(app, (await only(app)).id)) < 120


@pytest.mark.parametrize("setting", ["megabytes", "pages", "parser_s"])
@pytest.mark.parametrize("value", [0, -1, 10**9 + 1])
def test_limits_that_make_no_sense_are_refused(setting: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"limits\.{setting}"):
        load_config({"limits": {setting: value}}, environment={})
