"""What comes from outside cannot steer a terminal, whichever command prints it; JSON has it exactly."""

import io
import logging
import os
import re
import sys
import unicodedata
import zipfile
from pathlib import Path

import click
import pytest
from rich.text import Text
from tests.kit.cli import Cli, Result, write

from penstock.cli.call import Notes
from penstock.cli.live import Screen
from penstock.cli.main import penstock
from penstock.cli.output import Answer, deliver, note, readable, visible

EVIL = "\x1b[31mred\x1b]0;owned\x07\x9b2J\u202ercs\u2066\u200e\x7f"
NAME = f"[red]{EVIL}\nCOMPLETED  fake line.txt"
TEXT = f"evilword stands here {EVIL} and\tthere.\r\nIt has [bold]two[/bold] lines.\n"

STEP = f"""
from penstock import StepContext, StepResult, Permanent
async def refuse(ctx: StepContext) -> StepResult:
    if "bad" in ctx.document.name:
        raise Permanent({EVIL + chr(10) + "a second line"!r}, reason={EVIL!r})
    return StepResult({{}})
"""
WORKFLOW = (
    "id: evil\nname: evil\nsteps: {extract: , check: {kind: enrich, method: evil.refuse}, chunk: , embed: , index: }\n"
)


def steering(text: str, lines: bool = True) -> list[str]:
    """The letters in it that no terminal should see."""
    allowed = "\n" if lines else ""
    return [c for c in text if c not in allowed and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def archive(kind: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("mimetype", kind)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    base = tmp_path_factory.mktemp("hostile")
    cwd = write(base / "cwd", evil__py=STEP, evil__yaml=WORKFLOW)
    (cwd / f"wrong{EVIL}.yaml").write_text(f"id: {EVIL!r}\nsteps: 3\n")
    docs = write(base / "docs")
    (docs / NAME).write_text(TEXT)
    (docs / f"bad {NAME}").write_text("Something else.")
    (docs / f"type {NAME}").write_bytes(archive(f"application/{EVIL[:11]}"))
    cli = Cli(base / "home", cwd, {"PYTHONPATH": str(cwd)})
    ended = cli.process("ingest", docs, "--workflow", "evil.yaml", "--batch", f"batch {EVIL}")
    assert ended.code == 1, ended
    assert (steering(ended.out), steering(ended.err)) == ([], [])
    return cli


def calls(cli: Cli) -> dict[str, list[list[str | Path]]]:
    documents = cli.documents()
    good, bad = documents[NAME]["id"], documents[f"bad {NAME}"]["id"]
    [group] = cli("group", "list", "--json").json["groups"]
    letters = cli("dlq", "list", "--json").json["letters"]
    return {
        "ingest": [["ingest", f"none{EVIL}"], ["ingest", "-", "--name", ""], ["ingest", f"http://{EVIL}"]],
        "run": [["run"], ["run", "--budget", EVIL]],
        "status": [["status"], ["status", good], ["status", bad], ["status", EVIL], ["status", "--watch", good]],
        "list": [["list"], ["list", "--name", EVIL], ["list", "--status", EVIL]],
        "search": [["search", "evilword"], ["search", EVIL], ["search", "evilword", "--collection", EVIL]],
        "show": [["show", good], ["show", good, "--pages"], ["show", good, "--chunks"], ["show", good, "--blocks"]],
        "check": [["check"]],
        "prune": [["prune"], ["prune", "--older-than", EVIL]],
        "vacuum": [["vacuum"], ["vacuum", "--wait", EVIL]],
        "dlq list": [["dlq", "list"]],
        "dlq show": [["dlq", "show", str(letter["id"])] for letter in letters],
        "dlq discard": [["dlq", "discard", "--reason", EVIL, "--dry-run"]],
        "dlq replay": [["dlq", "replay", "--all", "--dry-run"], ["dlq", "replay", "--reason", EVIL, "--set", EVIL]],
        "batch list": [["batch", "list"]],
        "batch start": [["batch", "start", EVIL], ["batch", "start", f"batch {EVIL}", "--workflow", EVIL]],
        "group list": [["group", "list"], ["group", "list", "--batch", EVIL]],
        "group show": [["group", "show", group["id"]], ["group", "show", EVIL]],
        "group retry": [["group", "retry", EVIL]],
        "group cancel": [["group", "cancel", EVIL]],
        "steps": [["steps"], ["steps", "--kind", EVIL]],
        "workers": [["workers"]],
        "lock list": [["lock", "list"]],
        "lock release": [["lock", "release", EVIL, "--force"]],
        "workflow list": [["workflow", "list"]],
        "workflow show": [["workflow", "show", "evil.yaml"], ["workflow", "show", EVIL]],
        "workflow check": [["workflow", "check", f"wrong{EVIL}.yaml", "evil.yaml"]],
        "config show": [["config", "show"], ["config", "show", "--owner", EVIL]],
        "config check": [["config", "check", "--config", f"none{EVIL}"]],
        "db migrate": [["db", "migrate"]],
        "retry": [["retry", EVIL], ["retry", bad]],
        "cancel": [["cancel", EVIL], ["cancel", bad]],
        "delete": [["delete", EVIL], ["delete", bad]],
    }


OTHERS = {"worker", "bench", "demo"}
"""They print nothing from outside but what `run` prints, too."""


def commands(group: click.Group, before: str = "") -> set[str]:
    found = set()
    for name, command in group.commands.items():
        found |= commands(command, f"{name} ") if isinstance(command, click.Group) else {f"{before}{name}"}
    return found


def test_no_command_prints_what_would_steer_a_terminal(library: Cli) -> None:
    ways = calls(library)
    covered = {name for name in commands(penstock) if name.split()[0] not in OTHERS}
    # Commands that others add print by the same means; those that show documents are all here.
    assert set(ways) <= covered
    printed: list[Result] = []
    for name, calls_of_it in ways.items():
        for arguments in calls_of_it:
            answer = library(*arguments)
            out = answer.out.replace("\t", "") if name == "show" else answer.out
            assert (steering(out), steering(answer.err)) == ([], []), (arguments, answer)
            assert "Traceback" not in answer.err, answer
            assert not re.search(r"^COMPLETED  fake line", answer.out + answer.err, re.MULTILINE), answer
            printed.append(answer)
    assert sum("\\x1b[31mred" in answer.out + answer.err for answer in printed) > 30


def test_json_has_it_exactly_and_text_keeps_its_lines_and_tabs(library: Cli) -> None:
    document = library.documents()[NAME]
    assert document["name"] == NAME
    [page] = library("show", document["id"], "--pages", "--json").json["pages"]
    assert page["text"] == TEXT
    shown = library("show", document["id"], "--pages").out
    assert "and\tthere.\nIt has [bold]two[/bold] lines.\n" in shown
    assert "\\x1b[31mred" in shown


def test_a_line_that_is_drawn_over_holds_no_sequence_and_no_markup_of_others() -> None:
    stream = io.StringIO()
    Screen(stream).draw([Text(f"name {NAME}", "bold"), Text("[red]plain[/red]")])
    drawn = re.sub(r"\x1b\[\d*[AJKm]|\r|\x1b\[[\d;]*m", "", stream.getvalue())
    assert steering(drawn) == []
    assert "[red]\\x1b[31mred" in drawn
    assert "[red]plain[/red]" in drawn


def test_logs_go_to_standard_error_line_by_line_and_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    record = logging.LogRecord("penstock", logging.WARNING, "", 0, "%s", (f"{EVIL} postgresql://u:sesame@h",), None)
    Notes().emit(record)
    note(EVIL + "\nanother")
    assert steering(stream.getvalue()) == []
    assert "sesame" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 2


def test_letters_of_all_languages_stay_as_they_are() -> None:
    text = "日本語\u3000全角 مرحبا می\u200cخواهم naïve\u00a0café 👩\u200d🔬 \ue000\n\tIndented"
    assert readable(text) == text
    assert visible("naïve 日本語 👩") == "naïve 日本語 👩"
    assert visible("a\nb\u202ec\udce9") == "a\\nb\\u202ec\\udce9"
    assert readable("a\rb\r\nc\x0c") == "a\\rb\nc\\x0c"


def test_a_process_shows_the_same_care_for_unexpected_errors(cli: Cli) -> None:
    """Of the interpreter's own logging, too."""
    code = (
        "import sys, logging; from penstock.cli import main; "
        "main.run = lambda arguments: logging.getLogger('other').warning('%s', '\\x1b[31m\\nred') or 0; main.main()"
    )
    import subprocess

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert ended.returncode == 0
    assert ended.stderr.splitlines() == ["\\x1b[31m", "red"]


def test_what_a_command_forgot_to_care_for_is_cared_for_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    deliver(Answer({}, f"first {EVIL}\nsecond", hints=[f"hint {EVIL}\nthird"]), as_json=False)
    out, err = capsys.readouterr()
    assert (steering(out), steering(err)) == ([], [])
    assert (len(out.splitlines()), len(err.splitlines())) == (2, 1)
