"""What a user trusts us with: passwords and documents are for nobody else."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.cli import Cli
from tests.kit.pdfs import Lock, numbered, pdf

from penstock.errors import LedgerAway
from penstock.ledger.database.outage_wait import OutageWait, Use

SECRET = "open-sesame-42"


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def locked(cli: Cli) -> Path:
    path = cli.folder / "a.pdf"
    path.write_bytes(pdf(*numbered(3, "lockedword"), lock=Lock(SECRET.encode())))
    return path


def modes(home: Path) -> dict[str, int]:
    return {
        str(path.relative_to(home)): stat.S_IMODE(path.stat().st_mode)
        for path in (home, *home.rglob("*"))
        if path.relative_to(home).parts[:1] != ("index",) or path == home / "index"
    }


def passwords(home: Path) -> list[str | None]:
    with closing(sqlite3.connect(home / "ledger.db")) as ledger:
        return [row[0] for row in ledger.execute("SELECT password FROM documents")]


def test_a_new_home_is_for_its_owner_alone(cli: Cli, usual_umask: None) -> None:
    (cli.folder / "a.txt").write_text("some words to find")
    assert cli.process("ingest", "a.txt").code == 0
    found = modes(cli.home)
    assert {"index", "blobs", "ledger.db"} <= set(found)
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


def test_an_old_home_is_tightened_when_its_owner_opens_it_unless_it_is_shared(cli: Cli, usual_umask: None) -> None:
    (cli.folder / "a.txt").write_text("some words to find")
    assert cli("ingest", "a.txt").code == 0
    places = [cli.home, cli.home / "blobs", cli.home / "index", cli.home / "ledger.db"]
    for path in places:
        path.chmod(0o755 if path.is_dir() else 0o644)
    answer = cli("list")
    assert (answer.code, answer.err) == (0, "")
    assert [stat.S_IMODE(path.stat().st_mode) for path in places] == [0o700, 0o700, 0o700, 0o600]
    for path in places:
        path.chmod(0o2770 if path.is_dir() else 0o660)
    assert cli("list").code == 0
    assert [stat.S_IMODE(path.stat().st_mode) for path in places] == [0o2770, 0o2770, 0o2770, 0o660]


def test_a_password_does_not_outlive_its_use(cli: Cli, locked: Path) -> None:
    assert cli("ingest", locked, "--no-wait", "--password", SECRET).code == 0
    assert passwords(cli.home) == [SECRET]
    assert cli("run").code == 0
    assert passwords(cli.home) == [None]
    assert cli("search", "lockedword").code == 0


@pytest.mark.parametrize("way", ["flag", "file", "input", "variable"])
def test_a_password_may_come_by_a_file_standard_input_or_a_variable(cli: Cli, locked: Path, way: str) -> None:
    (cli.folder / "word").write_text(f"{SECRET}\r\nanother line\n")
    given = {"flag": ["--password", SECRET], "file": ["--password-file", "word"], "input": ["--password-file", "-"]}
    if way == "variable":
        cli.settings["PENSTOCK_PASSWORD"] = SECRET
    arguments = ["ingest", str(locked), *given.get(way, [])]
    ended = cli.process(*arguments, data=f"{SECRET}\n".encode()) if way == "input" else cli(*arguments)
    assert ended.code == 0, ended
    assert SECRET not in ended.out + ended.err
    assert passwords(cli.home) == [None]


@pytest.mark.parametrize("command", ["retry", "replay"])
def test_a_retry_and_a_replay_take_a_password_in_the_same_ways(cli: Cli, locked: Path, command: str) -> None:
    (cli.folder / "word").write_text(SECRET)
    assert cli("ingest", locked, "--json").json["failed"] == 1
    [document] = cli("list", "--json").json["documents"]
    arguments = ["retry", document["id"]] if command == "retry" else ["dlq", "replay", "--all"]
    assert cli(*arguments, "--password-file", "word").code == 0
    assert passwords(cli.home) == [SECRET]
    assert cli("run").code == 0
    assert passwords(cli.home) == [None]


def test_a_password_that_cannot_be_had_is_said(cli: Cli, locked: Path) -> None:
    (cli.folder / "empty").write_text("\n")
    (cli.folder / "bytes").write_bytes(b"\xff\xfe\n")
    for arguments, sentence in {
        ("--password-file", "none"): "No such file",
        ("--password-file", "empty"): "the password is empty",
        ("--password-file", "bytes"): "not UTF-8",
        ("--password-file", "empty", "--password", "x"): "not both",
    }.items():
        refused = cli("ingest", locked, *arguments)
        assert (refused.code, sentence in refused.err) == (2, True), refused
    refused = cli("ingest", "-", "--name", "a.txt", "--password-file", "-")
    assert (refused.code, "standard input contains the document" in refused.err) == (2, True)


URLS = [
    f"postgresql://u:{SECRET}@127.0.0.1:1/db",
    f"postgresql://u@127.0.0.1:1/db?password={SECRET}&sslpassword={SECRET}",
    f"postgresql://u:{SECRET}/x@127.0.0.1:1/db",
    f"postgresql://u:x{SECRET}@y@127.0.0.1:1/db",
    f"postgresql://127.0.0.1:{SECRET}/db",
    f"postgresql://u@127.0.0.1:1/db?password={SECRET}&nonsense=1",
    f"mysql://u:{SECRET}@host/db",
]


@pytest.mark.parametrize("url", URLS)
def test_no_password_of_a_database_is_ever_printed(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def say_and_give_up(patience: OutageWait, error: LedgerAway, use: Use) -> None:
        patience.say(str(error))
        raise error

    monkeypatch.setattr(OutageWait, "wait", say_and_give_up)
    cli.settings["PENSTOCK_DATABASE"] = url
    for command in (["list"], ["config", "show"], ["config", "check"], ["db", "migrate"], ["run"]):
        for mode in ([], ["--json"]):
            if command == ["run"] and not mode:
                continue
            answer = cli(*command, *mode)
            assert SECRET not in answer.out + answer.err, (command, answer)
            assert "Traceback" not in answer.err
