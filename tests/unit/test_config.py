"""Settings: what is refused, with its place and with what was probably meant."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.config import ChunkConfig, Config, LimitsConfig, WorkerConfig, check_config, load_config
from penstock.config_values import names, section, wrong
from penstock.errors import ConfigError
from penstock.model.nouns import StepDefinition, Workflow
from penstock.workflows.load import with_chunk_sizes, with_defaults, with_parameters


def refusal(tmp_path: Path, text: str, environment: dict[str, str] | None = None, **keywords: Any) -> str:
    file = tmp_path / "penstock.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(keywords, environment=environment or {}, file=file)
    return str(caught.value).replace(str(file), "penstock.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("worker: {slots: 0}\n", "penstock.yaml:1:10: worker.slots 0: use a whole number from 1 to 1,024"),
        ("worker:\n  slots: -1\n", "penstock.yaml:2:3: worker.slots -1: use a whole number from 1 to 1,024"),
        ("worker: {slots: 1000000}\n", "worker.slots 1000000: use"),
        ("worker: {slots: 1.5}\n", "worker.slots 1.5: use a whole number"),
        ("worker: {slots: yes}\n", "worker.slots True: use a whole number"),
        ("worker: {lease_s: .nan}\n", "worker.lease_s nan: use a number above 0, at most 86,400"),
        ("parsers: {timeout_s: .inf}\n", "parsers.timeout_s inf: use a number above 0"),
        ("parsers: {memory_mb: -1}\n", "parsers.memory_mb -1: use a whole number from 0"),
        ("parsers: {children: 0}\n", "parsers.children 0: use a whole number from 1"),
        ("limits: {pages: 0}\n", "limits.pages 0: use a whole number from 1"),
        ("retention: {history_days: -3}\n", "retention.history_days -3: use a number above 0"),
        ("chunk: {size: 0}\n", "chunk.size 0: use a whole number from 1 to 1,000,000"),
        ("chunk: {overlap: -1}\n", "chunk.overlap -1: use a whole number from 0"),
        ("chunk: {size: 100, overlap: 100}\n", "penstock.yaml:1:20: chunk size 100 with overlap 100"),
        ("chunk: {unit: pages}\n", "penstock.yaml:1:9: chunk unit 'pages': use characters or tokens"),
        ("collections:\n  a:\n    chunk: {size: -5}\n", "penstock.yaml:3:13: collections.a.chunk.size -5: use"),
        ("collections: {'../x': {}}\n", "penstock.yaml:1:15: collection '../x': use at most 100 letters"),
        ("worker: 3\n", "penstock.yaml:1:1: worker: expected a mapping of settings, not a number"),
        ("collections: [a]\n", "collections: expected a mapping by name, not a list"),
        ("home: [a]\n", "home: use text, not a list"),
        ("- a\n", "penstock.yaml:1:1: the file must be a mapping of settings"),
        ("worker: {slots: 1\n", "penstock.yaml:2:1: not valid YAML"),
        ("home: a\nhome: b\n", "penstock.yaml:2:1: duplicate key 'home'"),
        ("home: !strange x\n", "penstock.yaml:1:7: not valid YAML: could not determine a constructor"),
        ("home: 2020-13-45\n", "penstock.yaml:1:7: not a valid value: month must be in 1..12"),
        ("a: &a [*a]\n", "this alias names a value that contains it"),
        ("[" * 5_000, "not valid YAML: it is nested too deeply"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    assert told in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("wroker: {}\n", "penstock.yaml:1:1: unknown setting `wroker`: did you mean `worker`?"),
        ("worker: {slot: 4}\n", "penstock.yaml:1:10: unknown setting `worker.slot`: did you mean `worker.slots`?"),
        ("slots: 4\n", "penstock.yaml:1:1: unknown setting `slots`: did you mean `worker.slots`?"),
        ("zebra: 4\n", "unknown setting `zebra`: `penstock config show` lists all settings"),
    ],
)
def test_an_unknown_setting_is_refused_with_what_was_meant(tmp_path: Path, text: str, told: str) -> None:
    assert told in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("PENSTOCK_WORKER__SLOTS", "0", "PENSTOCK_WORKER__SLOTS: worker.slots '0': use a whole number from 1"),
        ("PENSTOCK_WORKER__SLOTS", "many", "PENSTOCK_WORKER__SLOTS: worker.slots 'many': use a whole number"),
        ("PENSTOCK_WORKER__LEASE_S", "nan", "worker.lease_s 'nan': use a number above 0"),
        ("PENSTOCK_FOO", "1", "PENSTOCK_FOO is not a setting: `penstock config show` lists all settings"),
        ("PENSTOCK_HOMES", "x", "PENSTOCK_HOMES is not a setting: did you mean PENSTOCK_HOME?"),
        ("PENSTOCK_WORKER_SLOTS", "4", "did you mean PENSTOCK_WORKER__SLOTS?"),
        ("PENSTOCK_WORKER__SLOT", "4", "did you mean PENSTOCK_WORKER__SLOTS?"),
        ("PENSTOCK_WORKER", "4", "PENSTOCK_WORKER: worker: expected a mapping of settings, not text"),
        ("PENSTOCK_HOME__X", "4", "PENSTOCK_HOME__X is not a setting"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(tmp_path: Path, variable: str, value: str, told: str) -> None:
    assert told in refusal(tmp_path, "", {variable: value})


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    told = refusal(tmp_path, "worker: {slots: 0, lease_s: -1}\nchunk: {sise: 3}\n")
    assert [line.split(": ")[1].split()[0] for line in told.splitlines()] == [
        "worker.slots", "worker.lease_s", "unknown",
    ]  # fmt: skip


def test_the_place_is_that_of_the_source_that_counts(tmp_path: Path) -> None:
    told = refusal(tmp_path, "worker: {slots: 4}\n", {"PENSTOCK_WORKER__SLOTS": "0"})
    assert told.startswith("PENSTOCK_WORKER__SLOTS: ")
    told = refusal(tmp_path, "worker: {slots: 4}\n", {"PENSTOCK_WORKER__SLOTS": "3"}, worker={"slots": 0})
    assert told == "worker.slots 0: use a whole number from 1 to 1,024"


def test_a_value_that_may_hold_a_secret_is_not_repeated(tmp_path: Path) -> None:
    told = refusal(tmp_path, "database: {url: 'postgresql://u:pass-word@h/d'}\nwebhooks: {a: {secret: [pass-word]}}\n")
    assert "pass-word" not in told
    assert "database: use text, not a mapping" in told


def test_a_merged_mapping_of_a_file_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(
        "collections:\n  a: &a {keep_artifacts: 3, chunk: {size: 50}}\n  b: &b {<<: *a, keep_artifacts: 4}\n  c: *b\n"
    )
    config = load_config(environment={}, file=file)
    assert [config.keep_days(name) for name in "abc"] == [3, 4, 4]
    assert config.chunk_parameters("c") == {"unit": "characters", "size": 50, "overlap": 10}


def test_settings_that_a_program_makes_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"worker\.slots 0: use"):
        check_config(Config(worker=WorkerConfig(slots=0)))
    with pytest.raises(ConfigError, match="the overlap must be smaller"):
        check_config(Config(chunk=ChunkConfig(size=10, overlap=10)))
    with pytest.raises(ConfigError, match=r"'\./home' is not a Config: use open_app\(home=…\)"):
        check_config("./home")
    chosen = Config(home="x", limits=LimitsConfig(pages=5))
    assert check_config(chosen) == chosen
    assert load_config({"home": Path("x"), "limits": LimitsConfig(pages=5)}, environment={}) == chosen


def test_every_number_has_a_range() -> None:
    """What is added later cannot be forgotten."""

    def leaves(struct: type[msgspec.Struct]) -> int:
        found = 0
        for field in msgspec.structs.fields(struct):
            inner = section(field.type)
            if inner is not None:
                found += leaves(inner)
            elif re.search(r"\b(int|float)\b", str(field.type)) and "str" not in str(field.type):
                default = field.default if field.default is not None else 1
                for value in (-1, float("nan"), float("inf"), 10**18):
                    assert list(wrong({field.name: value}, struct)), f"{struct.__name__}.{field.name} takes {value}"
                assert not list(wrong({field.name: default}, struct))
                found += 1
        return found

    assert leaves(Config) >= 14
    assert ("worker", "slots") in set(names(Config))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"size": 100}, {"unit": "characters", "size": 100, "overlap": 20}),
        ({"unit": "tokens"}, {"unit": "tokens", "size": 512, "overlap": 50}),
        ({"unit": "tokens", "size": 100}, {"unit": "tokens", "size": 100, "overlap": 20}),
        ({"size": 100, "overlap": 90}, {"unit": "characters", "size": 100, "overlap": 90}),
        ({}, {"unit": "characters", "size": 1000, "overlap": 200}),
    ],
)
def test_an_overlap_that_was_not_set_follows_the_size(values: dict[str, Any], wanted: dict[str, Any]) -> None:
    step = StepDefinition("chunk", "chunk", parameters={})
    default = with_defaults(Workflow("w", "w", (step,)), {"chunk": Config().given_chunk_parameters("c")})
    [found] = with_chunk_sizes(with_parameters(default, {"chunk": values}, "values")).steps
    assert found.parameters == wanted
    if values.get("unit", "characters") == "characters":
        chunk = {"chunk": values}
        [found] = with_chunk_sizes(with_defaults(Workflow("w", "w", (step,)), chunk)).steps
        assert found.parameters == wanted == Config(chunk=ChunkConfig(**values)).chunk_parameters("c")


def test_an_overlap_that_the_settings_name_is_kept() -> None:
    given = Config(chunk=ChunkConfig(overlap=200)).given_chunk_parameters("c")
    workflow = with_defaults(Workflow("w", "w", (StepDefinition("chunk", "chunk"),)), {"chunk": given})
    with pytest.raises(ConfigError, match="overlap 200"):
        with_chunk_sizes(with_parameters(workflow, {"chunk": {"size": 100}}, "values"))
