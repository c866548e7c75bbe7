"""Workflows of one's own: steps by dotted path, branches, parameter sets, and what is made again when they change."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration import own_steps
from tests.kit.apps import found, metas, named, only, text
from tests.kit.workflows import OWN, define, ending

from penstock.app import App
from penstock.errors import ConfigError

Files = Callable[..., Path]

BRANCHES = f"""\
id: branches
steps:
  triage: {{kind: route, method: {OWN}.triage, choices: {{scan: ocr, blank: NOT_INDEXABLE, default: extract}}}}
  ocr: {{kind: extract, method: {OWN}.backwards, next: clean}}
  extract:
  clean:
  chunk:
  embed:
  index:
"""
ELSEWHERE = f"""\
id: elsewhere
steps:
  triage: {{kind: route, method: {OWN}.triage, choices: {{scan: "workflow:other", default: extract}}}}
  extract:
  clean:
  chunk:
  embed:
  index:
"""
OTHER = f"""\
id: other
steps:
  extract: {{method: {OWN}.backwards}}
  clean:
  chunk:
  count: {{kind: enrich, method: {OWN}.count}}
  summed: {{kind: enrich, method: {OWN}.summed}}
  embed:
  index:
"""
COUNTED = f"""\
id: counted
steps:
  validate:
  extract:
  clean:
  chunk: {{parameters: {{size: 120, overlap: 0}}}}
  count: {{kind: enrich, method: {OWN}.count}}
  summed: {{kind: enrich, method: {OWN}.summed}}
  embed:
  index:
"""


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    own_steps.calls.clear()
    yield
    own_steps.calls.clear()


async def test_a_route_chooses_the_branch_of_each_document(app: App, files: Files) -> None:
    define(app, BRANCHES)
    folder = files(**{"a.txt": "SCAN yadot", "b.txt": "WORDS turbine", "c.txt": "BLANK page"})
    summary = await app.ingest([folder], workflow="branches")
    assert (summary.completed, summary.not_indexable, summary.failed) == (2, 1, 0)
    assert await found(app, "today") == {"a.txt"}, "the branch read it backwards"
    assert await found(app, "turbine") == {"b.txt"}
    scan, blank = await named(app, "a.txt"), await named(app, "c.txt")
    assert list(await metas(app, scan.id)) == ["triage", "ocr", "clean", "chunk", "embed", "index"]
    assert await metas(app, blank.id) == {"triage": {"choice": "blank"}}


async def test_a_route_goes_on_with_another_workflow(app: App, files: Files) -> None:
    define(app, OTHER, name="other.yaml")
    define(app, ELSEWHERE)
    folder = files(**{"a.txt": "SCAN yadot", "b.txt": "WORDS turbine"})
    assert (await app.ingest([folder], workflow="elsewhere", wait=False)).submitted == 2
    waiting = await app.status((await named(app, "a.txt")).id)
    assert [step.name for step in waiting.steps] == ["triage", "extract", "clean", "chunk", "embed", "index"]
    assert (await app.run()).completed == 2
    assert await found(app, "today") == {"a.txt"}
    assert await found(app, "turbine") == {"b.txt"}
    scan = await metas(app, (await named(app, "a.txt")).id)
    others = ("extract", "clean", "chunk", "count", "summed", "embed", "index")
    assert list(scan) == ["triage", *(f"other.{name}" for name in others)]
    assert scan["other.summed"]["of"] == 1, "its steps call each other by their own names"
    words = await metas(app, (await named(app, "b.txt")).id)
    assert list(words) == ["triage", "extract", "clean", "chunk", "embed", "index"]


async def test_what_a_route_might_go_on_with_makes_nothing_again(app: App, files: Files) -> None:
    define(app, ELSEWHERE.replace('"workflow:other"', "NOT_INDEXABLE"))
    folder = files(**{"b.txt": "WORDS turbine"})
    await app.ingest([folder], workflow="elsewhere")
    await app.delete([(await only(app)).id])
    define(app, OTHER, name="other.yaml")
    define(app, ELSEWHERE)
    await app.ingest([folder], workflow="elsewhere")
    made = await metas(app, (await only(app)).id)
    assert [made[name].get("reused") for name in ("extract", "clean", "chunk", "embed")] == [True] * 4


async def test_what_waits_after_a_branch_is_shown_once(app: App, files: Files) -> None:
    define(app, BRANCHES.replace("  clean:\n", f"  clean:\n  own: {{kind: enrich, method: {OWN}.picky}}\n"))
    await app.ingest([files(**{"a.txt": "SCAN yadot"})], workflow="branches")
    steps = (await app.status((await only(app)).id)).steps
    assert [step.name for step in steps] == ["triage", "ocr", "clean", "own", "chunk", "embed", "index"]


async def test_steps_of_one_s_own_read_what_came_before_and_hand_on(app: App, files: Files) -> None:
    define(app, COUNTED)
    await app.ingest([files(**{"a.txt": text(9)})], workflow="counted")
    made = await metas(app, (await only(app)).id)
    assert made["count"] == {"counted": made["chunk"]["chunks"]}
    assert made["summed"]["of"] == made["chunk"]["chunks"]
    assert made["summed"]["sum"] > 0


async def test_i4_a_custom_step_goes_on_from_its_checkpoint(start_app: StartApp, files: Files) -> None:
    app = await start_app()
    define(app, COUNTED.replace(".count}", ".count, parameters: {slow: true}}"))
    work = asyncio.create_task(app.ingest([files(**{"a.txt": text(60)})], workflow="counted"))
    while len(own_steps.calls) < 5:
        await app.runtime.sleep(0.01)
    app.stop()
    assert (await work).interrupted
    before = len(own_steps.calls)
    again = await start_app()
    assert (await again.run()).completed == 1
    made = await metas(again, (await only(again)).id)
    assert own_steps.calls == [f"count {i}" for i in range(made["count"]["counted"])], "each was counted once"
    assert before < len(own_steps.calls)


async def test_i1_what_a_custom_step_makes_survives_a_power_cut(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[str, bool]] = []
    put = type(app.blobs).put

    async def watched(self: Any, key: str, data: bytes, *, durable: bool) -> None:
        kept.append((key, durable))
        await put(self, key, data, durable=durable)

    monkeypatch.setattr(type(app.blobs), "put", watched)
    define(app, COUNTED)
    await app.ingest([files(**{"a.txt": text(9)})], workflow="counted")
    assert [durable for _, durable in kept].count(True) == 1, "the counts cannot be made again, the rest can"
    kept.clear()
    define(
        app, COUNTED.replace("id: counted", "id: again").replace(".count}", ".count, repeatable: true}"), name="2.yaml"
    )
    files(**{"a.txt": text(8)})
    await app.ingest([files()], workflow="again")
    assert not any(durable for _, durable in kept)


async def test_a_new_parameter_of_a_late_step_makes_nothing_before_it_again(app: App, files: Files) -> None:
    define(app, COUNTED)
    define(app, "id: other\nconfig: {count: {unit: letters}}\n", "params", "p.yaml")
    folder = files(**{"a.txt": text(30)})
    await app.ingest([folder], workflow="counted")
    document = await only(app)
    counted = len(own_steps.calls)
    await app.delete([document.id])
    await app.ingest([folder], workflow="counted", params="other")
    made = await metas(app, (await only(app)).id)
    assert made["extract"]["reused"]
    assert made["chunk"]["reused"]
    assert "reused" not in made["count"]
    assert len(own_steps.calls) == 2 * counted


async def test_a_collection_names_its_workflow_and_its_values(start_app: StartApp, files: Files) -> None:
    app = await start_app(collections={"small": {"workflow": "counted", "params": "tiny"}})
    define(app, COUNTED)
    define(app, "id: tiny\nconfig: {chunk: {size: 40}}\n", "params", "p.yaml")
    folder = files(**{"a.txt": text(9)})
    await app.ingest([folder], collection="small")
    await app.ingest([folder])
    small = await only(app, collection="small")
    assert "count" in await metas(app, small.id)
    large = await only(app, collection="default")
    assert (small.chunks or 0) > 2 * (large.chunks or 0) > 0
    assert app.workflow(collection="small").steps[3].parameters["size"] == 40


async def test_a_run_keeps_the_workflow_that_it_started_with(app: App, files: Files) -> None:
    define(app, COUNTED)
    await app.ingest([files(**{"a.txt": text(9)})], workflow="counted", wait=False)
    define(app, COUNTED.replace("  count:", "  nobody:"))
    await app.run()
    assert "count" in await metas(app, (await only(app)).id)


async def test_a_changed_definition_counts_at_once(app: App) -> None:
    def sizes() -> tuple[object, object]:
        asked = app.resources.run_specs.asked("default", "counted", "tiny")
        spec = app.resources.run_specs.start(app.owner, "default", asked)
        return spec.workflow.steps[3].parameters["size"], spec.settings

    define(app, COUNTED)
    define(app, "id: tiny\nconfig: {chunk: {overlap: 0}}\n", "params", "p.yaml")
    first = sizes()
    assert sizes() == first
    define(app, COUNTED.replace("120", "130"))
    second = sizes()
    define(app, "id: tiny\nconfig: {chunk: {size: 140}}\n", "params", "p.yaml")
    third = sizes()
    assert [size for size, _ in (first, second, third)] == [120, 130, 140]
    assert len({settings for _, settings in (first, second, third)}) == 3


async def test_a_custom_step_is_tried_again_and_may_say_nothing(app: App, files: Files) -> None:
    define(app, ending(f"{{kind: enrich, method: {OWN}.flaky}}"))
    assert (await app.ingest([files(**{"a.txt": text(3)})], workflow="x")).completed == 1
    assert own_steps.calls == ["flaky"] * 3
    define(app, ending(f"{{kind: enrich, method: {OWN}.nothing}}").replace("id: x", "id: y"), name="y.yaml")
    assert (await app.ingest([files(**{"b.txt": text(3)}) / "b.txt"], workflow="y")).completed == 1


@pytest.mark.parametrize(
    ("step", "reason", "words"),
    [
        (f"{{kind: enrich, method: {OWN}.gone}}", "bad_method", "cannot be imported"),
        (f"{{kind: enrich, method: {OWN}.wrong}}", "bad_method", "answers with a StepResult"),
        (f"{{kind: route, method: {OWN}.triage, choices: {{scan: extract}}}}", "bad_route", "returned 'words'"),
        (f"{{kind: enrich, method: {OWN}.wish, parameters: {{of: pears}}}}", "missing_input", "needs 'pears'"),
        (f"{{kind: enrich, method: {OWN}.wish, parameters: {{of: chunk}}}}", "missing_input", "needs 'chunk'"),
    ],
)
async def test_i9_a_step_that_cannot_work_is_a_dead_letter_that_says_so(
    app: App, files: Files, step: str, reason: str, words: str
) -> None:
    define(app, ending(step))
    assert (await app.ingest([files(**{"a.txt": "WORDS here"})], workflow="x")).failed == 1
    letters = await app.list_dead_letters()
    assert letters.by_reason == {reason: 1}
    assert words in letters.letters[0].error


async def test_i9_a_step_that_asks_for_what_only_another_branch_makes_is_a_dead_letter(app: App, files: Files) -> None:
    wish = f"{{kind: enrich, method: {OWN}.wish, parameters: {{of: ocr}}}}"
    define(app, BRANCHES.replace("  clean:", f"  wish: {wish}\n  clean:").replace("next: clean", "next: wish"))
    summary = await app.ingest([files(**{"a.txt": "SCAN here", "b.txt": "WORDS here"})], workflow="branches")
    assert (summary.completed, summary.failed, summary.reasons) == (1, 1, {"missing_input": 1})
    assert (await named(app, "b.txt")).status == "FAILED"


async def test_i9_a_run_that_comes_to_the_index_without_chunks_harms_no_other(app: App, files: Files) -> None:
    define(app, "id: short\nsteps: {validate: , extract: , index: }\n")
    folder = files(**{"a.txt": "words here"})
    await app.ingest([folder], workflow="short", wait=False)
    await app.ingest(data=b"other words", name="b.txt", wait=False)
    await app.run()
    assert (await named(app, "b.txt")).status == "COMPLETED"
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.name, letter.step, letter.reason) == ("a.txt", "index", "missing_input")


async def test_a_document_that_is_deleted_while_a_step_asks_leaves_no_letter(app: App, files: Files) -> None:
    wish = f"{{kind: enrich, method: {OWN}.wish, parameters: {{of: pears, first: 0.4}}}}"
    define(app, ending(wish))
    working = asyncio.create_task(app.ingest([files(**{"a.txt": "words"})], workflow="x"))
    while not own_steps.calls:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await app.delete([(await only(app)).id])
    await working
    assert (await app.list_dead_letters()).total == 0


@pytest.mark.parametrize("many", [0, 3000])
async def test_all_chunks_of_a_custom_step_are_indexed_however_many(app: App, files: Files, many: int) -> None:
    define(app, f"id: x\nsteps: {{validate: , extract: , clean: , chunk: {{method: {OWN}.cut, parameters: "
           f"{{many: {many}}}}}, embed: , index: }}\n")  # fmt: skip
    await app.ingest([files(**{"a.txt": "words here"})], workflow="x")
    document = await only(app)
    assert (document.status, document.chunks) == ("COMPLETED" if many else "NOT_INDEXABLE", many)
    assert (await app.check()).ok


async def test_what_is_wrong_is_refused_before_anything_is_accepted(app: App, files: Files) -> None:
    define(app, "id: x\nsteps: {shred: }\n")
    with pytest.raises(ConfigError, match=r"w.yaml:2:\d+: .*unknown kind 'shred'"):
        await app.ingest([files(**{"a.txt": text(3)})], workflow="x")
    with pytest.raises(ConfigError, match="no parameter set 'y'"):
        await app.ingest([files()], params="y")
    assert (await app.status()).documents == {}


async def test_only_extract_and_chunk_count_pages_and_chunks(app: App, files: Files) -> None:
    define(app, COUNTED.replace(f"{OWN}.summed", f"{OWN}.boast"))
    await app.ingest([files(**{"a.txt": text(9)})], workflow="counted")
    document = await only(app)
    chunks = [chunk async for chunk in app.show(document.id, "chunks")]
    assert (document.pages, document.chunks) == (1, len(chunks))
    assert (await app.check()).ok


TWICE = """\
id: twice
steps:
  validate:
  extract:
  clean:
  {first}: {{kind: chunk, parameters: {{size: {one}, overlap: 0}}}}
  {second}: {{kind: chunk, parameters: {{size: {other}, overlap: 0}}}}
  embed:
  index:
"""


@pytest.mark.parametrize("sizes", [(100, 300), (300, 100)])
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
async def test_of_two_steps_of_one_kind_the_last_is_shown_counted_and_found(
    app: App, files: Files, names: tuple[str, str], sizes: tuple[int, int]
) -> None:
    define(app, TWICE.format(first=names[0], second=names[1], one=sizes[0], other=sizes[1]))
    await app.ingest([files(**{"a.txt": text(9)})], workflow="twice")
    document = await only(app)
    shown = [chunk.text async for chunk in app.show(document.id, "chunks")]
    hits = await app.search("paragraph", 50, mode="text")
    assert hits
    assert {hit.text for hit in hits} <= set(shown)
    assert document.chunks == len(shown)
    assert (await app.status(document.id)).progress.chunks == len(shown)
    assert (await app.check()).ok
