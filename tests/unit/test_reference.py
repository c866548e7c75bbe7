"""The reference says what the code says: commands, settings, reasons of dead letters."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest
from scripts import reference

from penstock import config
from penstock.cli.main import penstock
from penstock.config import Config, load_config
from penstock.metrics.base import COUNTERS, GAUGES, HISTOGRAMS, PHASES, exposed
from penstock.model.reasons import ADVICE
from penstock.streams.notifications import BAD_EVENT
from penstock.worker.counters import MADE

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
REASONS = ROOT / "docs" / "reference" / "reasons.md"


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_a_page_is_what_the_code_draws(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == reference.PAGES[page](), "run `python scripts/reference.py`"


def test_every_command_has_its_section_and_the_shape_of_its_answer() -> None:
    page = reference.commands_page()
    paths = [path for path, _ in reference.leaves(penstock)]
    assert re.findall(r"^## penstock (.*)$", page, re.M) == paths
    assert set(reference.SHAPES) == set(paths)


def test_every_option_is_on_the_page() -> None:
    page = reference.commands_page()
    for path, command in reference.leaves(penstock):
        section = page.partition(f"## penstock {path}\n")[2].partition("\n## ")[0]
        names = {
            parameter.opts[0]
            for parameter in command.params
            if isinstance(parameter, click.Option) and not parameter.hidden
        }
        shared = {
            f"--{name}" for name in ("home", "config", "owner", "server", "key-file", "json", "quiet", "verbose", "log")
        }
        assert names - set(re.findall(r"^\| `(-[^`]+)`", section, re.M)) == shared


STRUCTS = [value for value in vars(config).values() if isinstance(value, type) and issubclass(value, msgspec.Struct)]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_setting_says_what_it_is_for(struct: type[msgspec.Struct]) -> None:
    page = reference.settings_page()
    for name, (_, about) in reference.documented(struct).items():
        section = re.search(rf"^## (\w+\.)*{name}(\.|$)", page, re.M)
        assert about or section, f"{struct.__name__}.{name} wants a sentence under it"


def test_every_variable_on_the_page_is_taken() -> None:
    """With the default it stands beside, so that the defaults on the page are accepted ones."""
    rows = re.findall(r"^\| `[^`]+` \| [^|]+ \| (?:`([^`]+)`)?\s*\| `(PENSTOCK_\w+)`", reference.settings_page(), re.M)
    assert len(rows) >= 15
    environment = {variable: value for value, variable in rows if value and "__NAME__" not in variable}
    assert load_config(environment=environment, file=None) == Config()


def reasons() -> Iterator[tuple[str, str]]:
    """Every reason that the code gives a dead letter, with the file that does. The command line only shows them."""
    for path in set(SOURCE.rglob("*.py")) - set(SOURCE.glob("cli/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for given in _given(node):
                yield from (
                    (str(c.value), path.name) for c in ast.walk(given) if isinstance(c, ast.Constant) and c.value
                )


def _given(node: ast.AST) -> list[ast.expr]:
    """What a node gives as a reason: `reason=…`, a default, or its place in the messages that carry one."""
    match node:
        case ast.keyword(arg="reason", value=value):
            return [value]
        case ast.arguments(kwonlyargs=names, kw_defaults=defaults):
            return [d for name, d in zip(names, defaults, strict=True) if name.arg == "reason" and d is not None]
        case ast.Call(func=ast.Name(id="Answer" | "StepFailure"), args=[_, reason, *_]):
            return [reason]
        case ast.Call(func=ast.Name(id="Outcome"), args=[kind, reason, *_]):
            return [] if isinstance(kind, ast.Constant) and kind.value == "away" else [reason]
        case ast.IfExp(body=ast.Attribute(attr="reason"), orelse=otherwise):
            return [otherwise]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="user_code"), attr="reason"), args=[_, otherwise]):
            return [otherwise]
    return []


def test_every_reason_of_a_dead_letter_is_explained_and_no_other() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", REASONS.read_text(encoding="utf-8"), re.M)
    assert len(listed) == len(set(listed))
    # Written by SQL, for a letter that was lost.
    given = dict(reasons()) | {"unknown": "repairs.py", BAD_EVENT: "notifications.py"}
    assert len(given) >= 12
    assert not set(given) - set(listed), f"{REASONS.name} does not say what to do about these"
    assert not set(listed) - set(given), f"{REASONS.name} explains what nothing raises"


def test_the_advice_of_a_reason_is_that_of_its_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \|$", REASONS.read_text(encoding="utf-8"), re.M)
    assert dict(rows) == ADVICE


def test_the_page_of_metrics_names_them_all_as_the_code_does() -> None:
    page = (ROOT / "docs" / "how-to" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(penstock_\w+)` \| (.*?) ?\| (.*) \|$", page, re.M)
    known = {**COUNTERS, **HISTOGRAMS, **GAUGES}
    assert rows == [
        (exposed(name), ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for name, metric in known.items()
    ]
    assert [phase for phase in PHASES if f"`{phase}`" not in page] == []


def test_every_metric_is_told_somewhere() -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "metrics" or path.name == "disk.py"
    )
    told = set(re.findall(r'(?:incr|observe|_measure|Gauge)\(\s*"(\w+)"', code)) | set(MADE.values())
    told |= {"step_error", "event_error"}
    assert told == {*COUNTERS, *HISTOGRAMS, *GAUGES}
    assert set(re.findall(r'(?:\.mark_lost\(|\b_?must\(.*, )"(\w+)"\)', code)) == set(PHASES)
