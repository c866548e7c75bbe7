"""Another try: as the run was, or with other values, and then only what they change is done again."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration import own_steps
from tests.kit.apps import metas, only, text
from tests.kit.workflows import define

from penstock.app import App
from penstock.errors import ConfigError, NotFound
from penstock.verbs import replays

Files = Callable[..., Path]
OWN = "tests.integration.own_steps"
PICKY = f"""\
id: fussy
steps:
  extract:
  clean:
  chunk:
  picky: {{kind: enrich, method: {OWN}.picky}}
  embed:
  index:
"""
BEFORE = ("extract", "clean", "chunk")
"""What is made before it fails."""


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    own_steps.calls.clear()
    yield
    own_steps.calls.clear()


async def rows(app: App, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await app.ledger.read(lambda connection: connection.script(query))]


async def runs(app: App) -> int:
    [(count,)] = await rows(app, "SELECT count(*) FROM runs")
    return int(count)


async def failed(app: App, files: Files, **options: Any) -> str:
    """The id of a document that failed in a workflow of its own."""
    define(app, PICKY)
    options.setdefault("workflow", "fussy")
    assert (await app.ingest([files(**{"a.txt": text(9)})], **options)).failed == 1
    document: str = (await only(app)).id
    return document


async def test_a_retry_keeps_to_the_workflow_of_its_run(app: App, files: Files) -> None:
    document = await failed(app, files)
    assert await app.retry([document]) == {document}
    assert (await app.run()).failed == 1
    assert "picky" in await metas(app, document)
    assert (await runs(app), own_steps.calls) == (1, ["picky"] * 2)


async def test_a_retry_keeps_to_the_values_of_its_run(start_app: StartApp, files: Files) -> None:
    app = await start_app(collections={"default": {"workflow": "fussy", "params": "harsh"}})
    define(app, "id: harsh\nconfig: {picky: {reason: harsh}}\n", "params")
    document = await failed(app, files, workflow=None)
    other = await start_app(collections={"default": {"params": "gone"}})
    assert (await other.replay(reason="harsh")).resumed == 1, "today's collection is none of its business"
    await other.run()
    assert await runs(other) == 1
    letter = await other.dead_letter(2)
    assert (letter.workflow, letter.params, letter.parameters["picky"]) == ("fussy", "harsh", {"reason": "harsh"})
    assert letter.document_id == document


@pytest.mark.parametrize("changed", ["workflow", "params"])
async def test_a_definition_that_was_changed_starts_a_new_run(app: App, files: Files, changed: str) -> None:
    define(app, "id: harsh\nconfig: {picky: {reason: harsh}}\n", "params")
    document = await failed(app, files, params="harsh")
    if changed == "params":
        define(app, "id: harsh\nconfig: {picky: {likes: it}}\n", "params")
    else:
        define(app, PICKY.replace(".picky}", ".picky, parameters: {likes: it}}"))
    answer = await app.replay(dry_run=True)
    assert (answer.count, answer.resumed, answer.started, answer.by_reason) == (1, 0, 1, {"harsh": 1})
    assert await app.retry([document]) == {document}
    assert (await app.run()).completed == 1
    assert await runs(app) == 2


async def test_other_values_do_only_that_again_which_they_change(app: App, files: Files) -> None:
    document = await failed(app, files)
    answer = await app.replay(values={"picky": {"likes": "that"}, "embed": {"x": 1}})
    assert (answer.replayed, answer.resumed, answer.started) == ([document], 0, 1)
    assert (await app.run()).failed == 1
    made = await metas(app, document)
    assert all(made[step]["reused"] for step in BEFORE)
    assert await app.retry([document]) == {document}
    assert (await app.run()).failed == 1
    assert await runs(app) == 2, "a retry keeps the values that were given for the last try"
    await app.retry([document], values={"picky": {"likes": "it"}})
    assert (await app.run()).completed == 1
    [(body,)] = await rows(
        app, "SELECT body FROM snapshots s JOIN runs x ON x.snapshot = s.hash ORDER BY x.id DESC LIMIT 1"
    )
    assert '"values":{"picky":{"likes":"it"},"embed":{"x":1}}' in body, "and new ones are added to them"


async def test_i4_a_new_run_goes_on_with_what_was_half_made(app: App, files: Files) -> None:
    define(app, PICKY.replace("extract:", f"extract: {{method: {OWN}.two_pages}}").replace(".picky", ".nothing"))
    await app.ingest([files(**{"a.txt": "words"})], workflow="fussy")
    document = (await only(app)).id
    own_steps.calls.append("open")
    await app.retry([document], values={"chunk": {"size": 60, "overlap": 0}})
    assert (await app.run()).completed == 1
    assert await runs(app) == 2
    assert own_steps.calls == ["page 1", "open", "page 2"]
    assert [page.number async for page in app.show(document, "pages")] == [1, 2]


async def test_another_set_takes_the_place_of_all_values(app: App, files: Files) -> None:
    define(app, "id: harsh\nconfig: {picky: {reason: harsh, likes: that}}\n", "params")
    define(app, "id: mild\nconfig: {picky: {likes: it}}\n", "params", "mild.yaml")
    document = await failed(app, files, params="harsh")
    await app.retry([document], values={"picky": {"likes": "none"}})
    assert (await app.run()).failed == 1
    await app.retry([document], params="mild")
    assert (await app.run()).completed == 1, "values that were given over the other set are gone with it"


async def test_another_workflow_is_taken_as_ingest_takes_it(app: App, files: Files) -> None:
    define(app, "id: harsh\nconfig: {picky: {reason: harsh}}\n", "params")
    document = await failed(app, files, params="harsh")
    assert (await app.replay([1], workflow="default")).started == 1
    assert (await app.run()).completed == 1
    made = await metas(app, document)
    assert list(made) == ["validate", "extract", "clean", "chunk", "embed", "index"]


async def test_the_same_workflow_by_another_name_is_no_change(
    app: App, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await failed(app, files)
    (tmp_path / "mine.yaml").write_text(PICKY)
    assert (await app.replay(workflow=str(tmp_path / "mine.yaml"), dry_run=True)).resumed == 1
    assert (await app.replay(values={"chunk": {"size": 1000}}, dry_run=True)).resumed == 1
    (tmp_path / "set.yaml").write_text("id: s\nconfig: {picky: {reason: set}}\n")
    monkeypatch.chdir(tmp_path)
    await app.replay(workflow="mine.yaml", params="set.yaml")
    await app.run()
    monkeypatch.chdir("/")
    answer = await app.replay(reason="set")
    assert (answer.resumed, answer.notes) == (1, []), "a file is found from everywhere"


async def test_a_workflow_that_is_gone_is_no_hindrance(app: App, files: Files, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(PICKY)
    document = await failed(app, files, workflow=str(file))
    assert (await app.replay(dry_run=True)).notes == []
    await app.ingest(data=b"other words", name="b.txt", workflow=str(file), priority=2)
    file.unlink()
    (app.config.home_path / "workflows" / "w.yaml").unlink()
    answer = await app.replay()
    assert (answer.resumed, answer.started, len(answer.notes)) == (2, 0, 1)
    assert "mine.yaml" in answer.notes[0]
    await app.run()
    notes: list[str] = []
    assert await app.retry([document], values={"picky": {"likes": "it"}}, notes=notes) == {document}
    assert notes == answer.notes
    assert (await app.run()).completed == 1
    assert "picky" in await metas(app, document)


async def test_a_set_that_is_gone_is_no_hindrance(app: App, files: Files) -> None:
    define(app, "id: harsh\nconfig: {picky: {reason: harsh}}\n", "params")
    await failed(app, files, params="harsh")
    (app.config.home_path / "params" / "w.yaml").unlink()
    answer = await app.replay()
    assert (answer.resumed, "no parameter set 'harsh'" in answer.notes[0]) == (1, True)
    await app.run()
    for workflow, params in (("gone", None), (None, "gone")):
        with pytest.raises(ConfigError, match="'gone'"):
            await app.replay(workflow=workflow, params=params)


async def test_a_definition_that_is_wrong_is_refused(app: App, files: Files) -> None:
    document = await failed(app, files)
    define(app, PICKY.replace("  clean:", "  shred:"))
    with pytest.raises(ConfigError, match=r"w.yaml:4:\d+: .*'shred'"):
        await app.retry([document])
    assert (await app.list_dead_letters()).total == 1


async def test_a_value_that_fits_one_workflow_only_changes_nothing(app: App, files: Files) -> None:
    await failed(app, files)
    await app.ingest(data=b"%PDF-1.7\n" + bytes(range(256)) * 40, name="noise.bin")
    for dry_run in (False, True):
        with pytest.raises(ConfigError, match="'default' has no step picky"):
            await app.replay(values={"picky": {"likes": "it"}}, dry_run=dry_run)
    assert (await app.list_dead_letters()).total == 2
    both = [document.id for document in await app.list_documents()]
    for order in (both, both[::-1]):
        with pytest.raises(ConfigError, match="'default' has no step picky"):
            await app.retry(order, values={"picky": {"likes": "it"}})
    assert (await app.list_dead_letters()).total == 2


async def test_a_retry_keeps_the_priority(app: App, files: Files) -> None:
    document = await failed(app, files, priority=5)
    await app.retry([document], values={"picky": {"likes": "it"}})
    assert await rows(app, "SELECT DISTINCT priority FROM steps") == [(5,)]


async def test_a_document_without_text_starts_anew(app: App) -> None:
    await app.ingest(data=b"  ", name="blank.txt")
    document = (await only(app)).id
    assert await app.retry([document]) == {document}
    assert await runs(app) == 2


async def many(app: App, count: int) -> None:
    """Dead letters of two reasons, by turns."""
    define(app, PICKY)
    define(app, "id: harsh\nconfig: {picky: {reason: harsh}}\n", "params")
    for i in range(count):
        params = "harsh" if i % 2 else None
        await app.ingest(data=text(1).encode(), name=f"{i}.txt", workflow="fussy", params=params, wait=False)
    assert (await app.run()).failed == count


async def test_dead_letters_are_taken_page_by_page(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "BATCH", 2)
    monkeypatch.setattr(replays, "LISTED", 3)
    await many(app, 9)
    before = await app.list_dead_letters()
    would = await app.replay(dry_run=True)
    assert (would.count, would.resumed, would.by_reason, would.replayed) == (9, 9, {"picky": 5, "harsh": 4}, [])
    assert (await app.discard(reason="picky", dry_run=True)).by_reason == {"picky": 5}
    assert await app.list_dead_letters() == before, "nothing was done"
    done = await app.replay(reason="harsh")
    assert (done.count, done.by_reason, len(done.replayed), done.dry_run) == (4, {"harsh": 4}, 3, False)
    assert (await app.list_dead_letters()).by_reason == {"picky": 5}
    gone = await app.discard()
    assert (gone.count, gone.by_reason, len(gone.discarded)) == (5, {"picky": 5}, 3)
    assert (await app.run()).failed == 4
    assert (await app.replay(values={"picky": {"likes": "it"}})).started == 4
    assert (await app.run()).completed == 4


async def test_a_letter_that_comes_back_meanwhile_is_left_alone(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker beside us may fail again what we have just replayed."""
    monkeypatch.setattr(replays, "BATCH", 1)
    await many(app, 3)
    again = replays.Replayer._again

    async def work_too(self: replays.Replayer, origins: Any) -> Any:
        done = await again(self, origins)
        await app.run()
        return done

    monkeypatch.setattr(replays.Replayer, "_again", work_too)
    async with asyncio.timeout(20):
        assert (await app.replay()).count == 3
    assert (await app.list_dead_letters()).total == 3


async def test_an_empty_list_is_not_everything(app: App) -> None:
    await many(app, 2)
    assert (await app.replay([])).count == 0
    assert (await app.discard([])).count == 0
    with pytest.raises(NotFound, match="no open dead letter 7"):
        await app.replay([1, 7])
    assert (await app.replay([1, 1, 2])).count == 2
