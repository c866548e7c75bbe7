"""Workflow definitions and parameter sets: what is read, and what is refused with file and line."""

from pathlib import Path

import pytest

from penstock.errors import ConfigError, Permanent
from penstock.model.nouns import StepDefinition, Workflow
from penstock.model.states import DocumentStatus
from penstock.workflows import read
from penstock.workflows.catalog import Catalog
from penstock.workflows.load import decode, encode, with_defaults, with_parameters
from penstock.workflows.routing import following
from penstock.yaml_file import YamlFile

FOREIGN = """\
id: batch
name: Batch Workflow
meta: {}
item_steps:
  validate:
    name: docling validate
    retries: 3
    method: soliplex.ingester.lib.workflow.validate_document
    parameters: {}
  parse:
    name: docling parse
    retries: 2
    method: soliplex.ingester.lib.workflow.parse_document
  chunk:
    name: docling chunk
    method: soliplex.ingester.lib.workflow.chunk_document
    parameters: {chunk_size: 512}
  embed:
    name: embeddings
    method: soliplex.ingester.lib.workflow.embed_document
  store:
    name: save to rag
    method: soliplex.ingester.lib.workflow.save_to_rag
lifecycle_events:
  group_start:
    - name: log group start
      method: soliplex.ingester.lib.workflow.log_event
      retries: 1
      parameters: {message: Starting}
"""
BRANCHES = """\
id: scans
steps:
  triage: {kind: route, method: shop.triage, choices: {scan: ocr, blank: NOT_INDEXABLE, default: extract}}
  ocr: {kind: extract, method: shop.ocr, next: clean, timeout: 600, retries: 5}
  extract:
  clean:
  chunk: {parameters: {size: 300}}
  embed:
  index:
"""


def problems(text: str) -> list[tuple[int, str]]:
    source = YamlFile(text, "w.yaml")
    assert read.workflow(source) is None
    return [(problem.line, problem.message) for problem in source.problems]


def workflow(text: str) -> Workflow:
    source = YamlFile(text, "w.yaml")
    found = read.workflow(source)
    assert found is not None, source.problems
    return found


def test_steps_by_name_keep_their_order_and_take_their_kind_from_it() -> None:
    found = workflow(BRANCHES)
    assert [(step.name, step.kind) for step in found.steps][1:4] == [
        ("ocr", "extract"),
        ("extract", "extract"),
        ("clean", "clean"),
    ]
    assert found.steps[1] == StepDefinition("ocr", "extract", "shop.ocr", 5, timeout=600, next="clean")
    assert found.name == "scans"


def test_a_list_of_steps_is_the_same_as_a_mapping() -> None:
    listed = workflow("id: a\nsteps:\n  - {name: one, kind: validate}\n  - {name: two, kind: extract, retries: 1}\n")
    assert listed == workflow("id: a\nsteps:\n  one: {kind: validate}\n  two: {kind: extract, retries: 1}\n")


def test_words_of_other_systems_are_taken_for_ours() -> None:
    found = workflow(FOREIGN)
    assert [step.kind for step in found.steps] == ["validate", "extract", "clean", "chunk", "embed", "index"]
    assert {step.method for step in found.steps} == {None}
    assert found.steps[1].retries == 2
    assert found.steps[3].parameters == {"size": 512}
    [handler] = found.lifecycle_events["group_start"]
    assert (handler.method, handler.retries) == ("penstock.events.handlers.log", 1)


def test_a_parameter_set_with_foreign_words_fits_such_a_workflow() -> None:
    source = YamlFile(
        "id: default\nname: Default\nmeta: {}\nconfig:\n  parse: {ocr_enabled: true}\n"
        "  chunk: {chunk_size: 100, chunk_overlap: 5}\n",
        "p.yaml",
    )
    values = read.parameter_set(source)
    assert values is not None
    merged = with_parameters(workflow(FOREIGN), values.config, "p")
    assert merged.steps[1].parameters == {"ocr_enabled": True}
    assert merged.steps[3].parameters == {"size": 100, "overlap": 5}


def test_a_set_wins_over_the_workflow_and_that_over_the_settings() -> None:
    found = with_defaults(workflow(BRANCHES), {"chunk": {"size": 1, "overlap": 7}})
    assert found.steps[4].parameters == {"size": 300, "overlap": 7}
    assert with_parameters(found, {"chunk": {"size": 9}}, "p").steps[4].parameters == {"size": 9, "overlap": 7}
    by_kind = with_parameters(found, {"extract": {"a": 1}, "ocr": {"a": 2}}, "p")
    assert [by_kind.steps[1].parameters, by_kind.steps[2].parameters] == [{"a": 2}, {"a": 1}]
    with pytest.raises(ConfigError, match=r"set 'x': workflow 'scans' has no step shred"):
        with_parameters(found, {"shred": {}}, "parameter set 'x'")


def test_a_snapshot_comes_back_as_it_was() -> None:
    for text in (FOREIGN, BRANCHES):
        assert decode(encode(workflow(text))[1]) == workflow(text)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("id: a\nsteps:\n  x: {kind: shred}\n", 3, "unknown kind 'shred'"),
        ("id: a\nsteps:\n  x:\n    kind: validate\n    color: red\n", 5, "unknown key 'color'"),
        ("id: a\ncolour: red\nsteps: {validate: }\n", 2, "unknown key 'colour'"),
        ("id: a\nsteps:\n  validate:\n  x: {kind: enrich}\n", 4, "needs a `method`"),
        ("id: a\nsteps:\n  x: {kind: route, method: m.f}\n", 3, "needs `choices`"),
        ("id: a\nsteps:\n  x: {kind: validate, choices: {a: b}}\n", 3, "only a step of kind route"),
        ("id: a\nsteps:\n  validate: {retries: 0}\n", 3, "retries must be a number above zero"),
        ("id: a\nsteps:\n  validate: {timeout: yes}\n", 3, "timeout must be a number above zero"),
        ("id: a\nsteps:\n  validate: {pool: 'My GPU'}\n", 3, "pool must consist of lower-case letters"),
        ("id: a\nsteps:\n  validate: {pool: index}\n", 3, "for index steps only"),
        ("id: a\nsteps:\n  x: {kind: enrich, method: m.f, resource_key: 7}\n", 3, "printable text, not 7"),
        ("id: a\nsteps:\n  x: {kind: enrich, method: m.f, resource_key: 'a {day}'}\n", 3, "not {day}"),
        ("id: a\nsteps:\n  validate: {resource_key: a}\n", 3, "only a step with its own `method`"),
        ("id: a\nsteps:\n  validate:\n  extract: {next: validate}\n", 4, "must come after"),
        ("id: a\nsteps:\n  validate: {next: nowhere}\n", 3, "no step 'nowhere'"),
        ("id: a\nsteps:\n  - {name: x, kind: validate}\n  - {name: x, kind: extract}\n", 4, "two steps are named 'x'"),
        ("id: a\nsteps:\n  validate:\n  validate:\n", 4, "duplicate key"),
        ("id: a\nsteps: [1]\n", 2, "a step must be a mapping"),
        ("id: a\nsteps: []\n", 2, "at least one step"),
        ("id: a\n", 1, "a workflow needs `steps`"),
        ("id: [1]\nsteps: {validate: }\n", 1, "Expected `str`"),
        ("id: a\nsteps: {validate: }\nlifecycle_events:\n  lunch: []\n", 4, "unknown event 'lunch'"),
        (
            "id: a\nsteps: {validate: }\nlifecycle_events:\n  item_end:\n    - {name: x}\n",
            5,
            "a `method` or a `webhook`",
        ),
        ("id: a\nsteps: {validate: }\nlifecycle_events:\n  item_end: x\n", 4, "must be a list"),
        ("id: a\n  b: c\n", 2, "not valid YAML"),
        ("- a\n", 1, "mapping of names"),
        ("", 1, "mapping of names"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(text: str, line: int, words: str) -> None:
    found = problems(text)
    assert any(at == line and words in message for at, message in found), found


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    assert len(problems("id: a\nsteps:\n  x: {kind: shred}\n  y: {kind: burn}\n")) == 2


def test_a_method_that_cannot_be_imported_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(
        "id: a\nsteps:\n  validate:\n  x:\n    kind: enrich\n    method: os.path.nothing\n"
        "lifecycle_events:\n  item_end:\n    - {method: no.such.module}\n    - {method: os.getcwd}\n"
    )
    _, found = Catalog(tmp_path / "none", tmp_path / "none").check(file)
    assert [(problem.line, problem.message.split(":")[0]) for problem in found] == [
        (6, "'os.path.nothing' cannot be imported"),
        (9, "'no.such.module' cannot be imported"),
        (10, "'os.getcwd' is not an `async def` function"),
    ]
    assert str(found[0]).startswith(f"{file}:6:5: ")


def test_a_name_leads_to_the_folder_then_to_what_ships(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, tmp_path / "params")
    assert [entry.workflow.id for entry in catalog.workflows()] == ["batch", "default"]
    (tmp_path / "mine.yaml").write_text("id: default\nsteps: {validate: }\n")
    assert len(catalog.workflow("default").steps) == 1
    (tmp_path / "bad.yaml").write_text("id: bad\nsteps: {shred: }\n")
    assert len(catalog.workflow("default").steps) == 1, "another file's fault is none of this one's"
    with pytest.raises(ConfigError, match=r"bad.yaml:2:\d+: .*unknown kind 'shred'"):
        catalog.workflow("bad")
    with pytest.raises(ConfigError, match="no workflow 'none'"):
        catalog.workflow("none")
    assert catalog.workflow(str(tmp_path / "mine.yaml")).id == "default"
    with pytest.raises(ConfigError, match="does not exist"):
        catalog.workflow(str(tmp_path / "gone.yaml"))
    with pytest.raises(ConfigError, match="no parameter set 'x'"):
        catalog.parameter_set("x")


def test_the_way_of_a_run() -> None:
    found = workflow(BRANCHES)
    assert following(found, 0, "scan") == 1
    assert following(found, 0, None) == 2
    assert following(found, 0, "anything") == 2
    assert following(found, 0, "blank") is DocumentStatus.NOT_INDEXABLE
    assert following(found, 1, None) == 3
    assert following(found, 2, None) == 3
    assert following(found, 6, None) is DocumentStatus.COMPLETED
    strict = workflow(
        "id: a\nsteps:\n  r: {kind: route, method: m.f, choices: {a: validate}}\n  validate: {next: END}\n"
    )
    assert following(strict, 1, None) is DocumentStatus.COMPLETED
    with pytest.raises(Permanent, match="neither that nor `default`"):
        following(strict, 0, "b")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("id: a\nsteps:\n  embed: {method: shop.vectors}\n", 3, "an embed step cannot have a `method`"),
        ("id: a\nsteps:\n  mine: {kind: embed, method: shop.vectors}\n", 3, "entry point `penstock.embedders`"),
        ("id: a\nsteps:\n  index: {method: shop.rows}\n", 3, "an index step cannot have a `method`"),
        ("id: a\nsteps:\n  chunk: {parameters: {size: 0}}\n", 3, "chunk.size 0: use a whole number from 1"),
        ("id: a\nsteps:\n  chunk:\n    parameters:\n      sise: 9\n", 5, "did you mean `chunk.size`?"),
        ("id: a\nsteps:\n  chunk: {parameters: {size: 9, overlap: 9}}\n", 3, "overlap must be smaller"),
        ("id: a\nsteps:\n  chunk: {timeout: .nan}\n", 3, "timeout must be a number above zero"),
        ("id: a\nsteps:\n  chunk: {retries: 1000000}\n", 3, "retries must be a number above zero, at most 1,000"),
        ("id: a\nsteps:\n  chunk: {retires: 1}\n", 3, "unknown key 'retires': did you mean 'retries'?"),
        ("id: a\nsteps:\n  chnk:\n", 3, "unknown kind 'chnk': did you mean 'chunk'?"),
    ],
)
def test_what_would_fail_later_is_refused_now(text: str, line: int, words: str) -> None:
    source = YamlFile(text, "w.yaml")
    assert read.workflow(source) is None
    assert any(problem.line == line and words in problem.message for problem in source.problems), source.problems


def test_chunk_values_of_a_parameter_set_are_checked() -> None:
    source = YamlFile("id: a\nconfig:\n  chunk: {chunk_size: 5, chunk_overlap: 7}\n", "p.yaml")
    assert read.parameter_set(source) is None
    assert "overlap must be smaller" in source.problems[0].message


def test_a_list_needs_no_names() -> None:
    steps = workflow("id: x\nsteps:\n- kind: validate\n- kind: extract\n- {kind: index, name: last}\n").steps
    assert [(step.name, step.kind) for step in steps] == [
        ("validate", "validate"),
        ("extract", "extract"),
        ("last", "index"),
    ]
    assert problems("id: x\nsteps:\n- retries: 2\n- kind: extract\n") == [(3, "a step needs a `kind`")]


@pytest.mark.parametrize(
    "text", ["steps:\n- kind: fetch\n- kind: extract\n", "item_steps:\n  ingest: {}\n  parse: {}\n"]
)
def test_a_step_that_no_worker_executes_is_refused(text: str) -> None:
    [(_, said)] = problems(f"id: x\n{text}")
    assert said.startswith("there is no fetch step: documents are fetched when they are submitted")
