"""Workflows that go on with others: what a run is given, and what is refused with file and line."""

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.model.nouns import Workflow
from penstock.model.states import DocumentStatus
from penstock.workflows.catalog import Catalog
from penstock.workflows.load import with_parameters
from penstock.workflows.routing import ahead, following

MAIN = """\
id: main
steps:
  triage: {kind: route, method: m.f, choices: {scan: "workflow:ocr", blank: NOT_INDEXABLE, default: extract}}
  extract: {next: chunk}
  clean:
  chunk:
"""
OCR = """\
id: ocr
steps:
  look: {kind: route, method: m.f, choices: {hard: better, default: extract}}
  extract: {next: END}
  better: {kind: extract}
  clean: {next: "workflow:last"}
"""
LAST = "id: last\nsteps:\n  chunk:\n  index: {next: COMPLETED}\n"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    for name, body in {"main": MAIN, "ocr": OCR, "last": LAST}.items():
        (tmp_path / f"{name}.yaml").write_text(body)
    return Catalog(tmp_path, tmp_path / "params")


def ways(workflow: Workflow) -> dict[str, str | None]:
    return {step.name: step.next for step in workflow.steps}


def test_the_steps_of_the_other_stand_behind_its_own_under_its_name(catalog: Catalog) -> None:
    main = catalog.workflow("main")
    assert ways(main) == {
        "triage": None, "extract": "chunk", "clean": None, "chunk": "END",
        "ocr.look": None, "ocr.extract": "END", "ocr.better": None, "ocr.clean": "ocr.last.chunk",
        "ocr.last.chunk": None, "ocr.last.index": "COMPLETED",
    }  # fmt: skip
    assert main.steps[0].choices == {"scan": "ocr.look", "blank": "NOT_INDEXABLE", "default": "extract"}
    assert main.steps[4].choices == {"hard": "ocr.better", "default": "ocr.extract"}


def test_a_run_keeps_to_its_way(catalog: Catalog) -> None:
    main = catalog.workflow("main")
    assert following(main, 0, "scan") == main.position("ocr.look")
    assert following(main, main.position("chunk"), None) == DocumentStatus.COMPLETED
    assert [step.name for step in ahead(main, 0)] == ["extract", "chunk"], "a route is taken to answer `default`"
    assert [step.name for step in ahead(main, main.position("ocr.better"))] == [
        "ocr.clean", "ocr.last.chunk", "ocr.last.index",
    ]  # fmt: skip


def test_two_others_do_not_run_into_each_other(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("id: one\nsteps: {validate: }\n")
    (tmp_path / "two.yaml").write_text(
        'id: two\nsteps:\n  r: {kind: route, method: m.f, choices: {a: "workflow:one", b: "workflow:last", '
        'default: "workflow:one"}}\n'
    )
    two = catalog.workflow("two")
    assert ways(two) == {"r": None, "one.validate": "END", "last.chunk": None, "last.index": "COMPLETED"}
    assert two.steps[0].choices["a"] == two.steps[0].choices["default"], "it is there once"
    assert list(ahead(two, 1)) == []


def test_a_workflow_that_names_no_other_is_what_it_was(catalog: Catalog) -> None:
    assert ways(catalog.workflow("default")) == dict.fromkeys(
        ("validate", "extract", "clean", "chunk", "embed", "index")
    )


def test_values_are_given_by_the_whole_name_or_by_kind(catalog: Catalog) -> None:
    main = with_parameters(catalog.workflow("main"), {"chunk": {"size": 9}, "ocr.last.chunk": {"size": 3}}, "p")
    assert {step.name: step.parameters for step in main.steps if step.kind == "chunk"} == {
        "chunk": {"size": 9}, "ocr.last.chunk": {"size": 3},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"no step last\.chunk"):
        with_parameters(main, {"last.chunk": {}}, "p")


def test_a_file_is_looked_for_beside_the_one_that_names_it(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.yaml").write_text('id: a\nsteps:\n  validate: {next: "workflow:b.yaml"}\n')
    (tmp_path / "far" / "b.yaml").write_text("id: other\nsteps: {extract: }\n")
    assert ways(catalog.workflow(str(tmp_path / "far" / "a.yaml"))) == {
        "validate": "other.extract", "other.extract": "END",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "where", "words"),
    [
        ({"x": 'id: x\nsteps:\n  validate:\n  extract: {next: "workflow:x"}\n'}, "x.yaml:4", "form a cycle: x → x"),
        (
            {
                "x": 'id: x\nsteps:\n  validate: {next: "workflow:y"}\n',
                "y": 'id: y\nsteps:\n  validate:\n  extract:\n    next: "workflow:x"\n',
            },
            "y.yaml:5",
            "form a cycle: x → y → x",
        ),
        ({"x": 'id: x\nsteps:\n  validate: {next: "workflow:gone"}\n'}, "x.yaml:3", "no workflow 'gone'"),
        ({"x": 'id: x\nsteps:\n  validate: {next: "workflow:gone.yaml"}\n'}, "x.yaml:3", "does not exist"),
        (
            {"x": 'id: x\nsteps:\n  validate: {next: "workflow:y"}\n', "y": "id: y\nsteps:\n  shred:\n"},
            "x.yaml:3",
            "y.yaml:3:3: unknown kind 'shred'",
        ),
        (
            {"x": 'id: x\nsteps:\n  last.index: {kind: index, next: "workflow:last"}\n'},
            "x.yaml:1",
            "two steps are named 'last.index'",
        ),
        (
            {a: f'id: {a}\nsteps:\n  validate: {{next: "workflow:{b}"}}\n' for a, b in ("xy", "yz", "zu", "uv", "v-")},
            "u.yaml:3",
            "more than 4 workflows in a chain: x → y → z → u → v",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_gone_on_with_is_reported_with_its_line(
    catalog: Catalog, tmp_path: Path, files: dict[str, str], where: str, words: str
) -> None:
    for name, body in files.items():
        (tmp_path / f"{name}.yaml").write_text(body)
    _, problems = catalog.check(tmp_path / "x.yaml")
    assert any(str(problem).startswith(str(tmp_path / where)) and words in problem.message for problem in problems), (
        problems
    )
    with pytest.raises(ConfigError, match=where):
        catalog.workflow("x")


def test_what_is_wrong_far_down_is_told_once(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        'id: x\nsteps:\n  r: {kind: route, method: json.loads, choices: {a: "workflow:y", default: "workflow:z"}}\n'
    )
    for name in "yz":
        (tmp_path / f"{name}.yaml").write_text(f'id: {name}\nsteps:\n  validate: {{next: "workflow:w"}}\n')
    (tmp_path / "w.yaml").write_text('id: w\nsteps:\n  validate: {next: "workflow:gone"}\n')
    with pytest.raises(ConfigError) as refused:
        catalog.workflow("x")
    assert str(refused.value).count("there is no workflow 'gone'") == 1
