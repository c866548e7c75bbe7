"""Options of every command: -h, -q, -v, --log. And what `run --budget` says about the rest."""

import json

import pytest
from tests.kit.cli import Cli, write

from penstock.cli.main import penstock


@pytest.mark.parametrize("command", [[], ["ingest"], ["dlq"], ["dlq", "list"]])
def test_h_is_help(cli: Cli, command: list[str]) -> None:
    short, long = cli(*command, "-h"), cli(*command, "--help")
    assert short.code == 0
    assert short.out == long.out
    assert "Usage: penstock" in short.out


def test_quiet_prints_only_the_result(cli: Cli) -> None:
    write(cli.folder / "files", a__txt="One.", b__txt="Two.")
    said = cli.process("ingest", "files", "--no-wait")
    assert "penstock run" in said.err
    assert "2 pending" in said.out
    said = cli.process("-q", "ingest", "files", "--no-wait")
    assert (said.code, said.err) == (0, "")
    assert cli.process("ingest", "files", "-q").err == ""
    said = cli.process("-q", "status", "01NOSUCH")
    assert (said.code, "no document" in said.err) == (2, True), "an error is always told"


def test_logs_are_json_where_asked_for(cli: Cli) -> None:
    write(cli.folder / "files", a__txt="One.")
    (cli.home / "workflows").mkdir(parents=True)
    (cli.home / "workflows" / "w.yaml").write_text(
        "id: w\nsteps: {validate: , extract: , clean: , chunk: , embed: , index: }\n"
        "lifecycle_events: {item_end: [{name: log, method: penstock.events.handlers.log}]}\n"
    )
    said = cli.process("ingest", "files", "--workflow", "w", "--log", "json")
    assert said.code == 0
    lines = [json.loads(line) for line in said.err.splitlines()]
    assert lines
    assert {"time", "level", "logger", "message"} == set(lines[0])
    assert lines[0]["logger"].startswith("penstock.")
    assert "1 completed" in said.out


def test_the_rest_of_the_whole_queue_is_reported(cli: Cli) -> None:
    write(cli.folder / "files", **{f"n{i}__txt": f"Note {i}." for i in range(5)})
    write(cli.folder / "more", z__txt="Zeta.")
    assert cli("ingest", "files", "--no-wait").code == 0
    said = cli("ingest", "more", "--no-wait")
    assert "6 documents in the queue are not done: run `penstock run` to continue." in said.err
    assert cli("ingest", "more", "--no-wait", "--json").json["left"] in (0, 6)
    assert cli("run", "--json").json["left"] == 0


def test_help_fits_80_columns(cli: Cli) -> None:
    def commands(command: object, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        inner = getattr(command, "commands", {})
        return [path, *(found for name, one in inner.items() for found in commands(one, (*path, name)))]

    paths = commands(penstock, ())
    assert len(paths) > 30
    for path in paths:
        for line in cli(*path, "--help").out.splitlines():
            assert len(line) <= 80, (path, line)
