"""`penstock --server`: the commands on a server, with kills of both sides."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kit.cli import Cli, finish
from tests.kit.folders import fill, wait_for_documents
from tests.kit.service import Served, free_port, serving

from penstock.client import Client
from penstock.errors import Away


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("service") / "home") as one:
        yield one


def there(cli: Cli, served: Served, *arguments: str) -> Any:
    return cli("--server", served.url, *arguments, "--json").json


def test_the_commands_do_the_same_on_a_server(served: Served, cli: Cli) -> None:
    fill(cli.folder / "notes", 4)
    on = ("--server", served.url)
    planned = cli(*on, "ingest", "notes", "--dry-run", "--collection", "cli")
    assert planned.code == 0
    assert "7 new, 0 changed, 0 unchanged" in planned.out
    done = cli(*on, "ingest", "notes", "--collection", "cli", "--meta", "year=2020")
    assert done.code == 1, done
    assert "7 completed, 1 unsupported, 1 failed (2 inside others)" in done.out
    assert "bad.pdf" in done.err
    assert "7 skipped (unchanged)" in cli(*on, "ingest", "notes", "--collection", "cli").out
    assert there(cli, served, "ingest", "notes", "--collection", "cli")["skipped"] == 7
    listed = there(cli, served, "list", "--collection", "cli", "--limit", "3")
    assert (len(listed["documents"]), listed["more"]) == (3, 6)
    following = there(cli, served, "list", "--collection", "cli", "--limit", "10", "--after", listed["after"])
    assert len(following["documents"]) == 6
    found = there(cli, served, "status", "notes/n1.txt")
    assert (found["name"], found["metadata"]) == ("n1.txt", {"year": 2020})
    assert there(cli, served, "status", found["id"])["id"] == found["id"]
    assert there(cli, served, "status")["documents"]["COMPLETED"] >= 6
    assert there(cli, served, "search", "matter1", "--collection", "cli")["hits"]
    assert "Note 1" in cli(*on, "show", "notes/n1.txt", "--pages").out
    assert there(cli, served, "show", "notes/n1.txt", "--chunks")["chunks"][0]["ordinal"] == 0
    letters = there(cli, served, "dlq", "list")["letters"]
    number = str(next(one["id"] for one in letters if one["collection"] == "cli"))
    assert "bad.pdf" in cli(*on, "dlq", "show", number).out
    assert there(cli, served, "dlq", "replay", number, "--dry-run")["count"] == 1
    assert there(cli, served, "dlq", "discard", number)["count"] == 1
    assert there(cli, served, "retry", "notes/bad.pdf")["retried"]
    assert there(cli, served, "cancel", "notes/n1.txt")["cancelled"] == []
    assert there(cli, served, "delete", "notes/n1.txt")["count"] == 1
    chosen = ("delete", "--collection", "cli", "--name", "n*.txt")
    assert there(cli, served, *chosen, "--dry-run")["count"] == 3
    assert there(cli, served, *chosen)["count"] == 3
    assert cli(*on, "status", "notes/n1.txt").code == 2


def test_the_summary_is_that_of_a_home(served: Served, cli: Cli) -> None:
    fill(cli.folder / "notes", 3)
    alike = ("submitted", "skipped", "completed", "failed", "unsupported", "children", "reasons", "refused", "pending")
    for _ in range(2):
        local, remote = cli("ingest", "notes", "--json"), cli("--server", served.url, "ingest", "notes", "--json")
        assert remote.code == local.code
        assert set(remote.json) == set(local.json)
        assert {name: remote.json[name] for name in alike} == {name: local.json[name] for name in alike}
        assert [one["error"] for one in remote.json["remarks"]] == [one["error"] for one in local.json["remarks"]]


def test_standard_input_is_uploaded(served: Served, cli: Cli) -> None:
    said = cli.process("--server", served.url, "ingest", "-", "--name", "in.txt", "--json", data=b"From a pipe.")
    assert said.code == 0, said
    assert said.json["completed"] == 1
    assert "From a pipe." in cli("--server", served.url, "show", "in.txt", "--pages").out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("check",), "this command needs the home"),
        (("run",), "this command needs the home"),
        (("group", "list"), "this command needs the home"),
        (("status", "--watch"), "this command needs the home"),
        (("ingest", ".", "--watch"), "--watch needs the home"),
        (("ingest", ".", "--prune"), "--prune needs the home"),
        (("ingest", ".", "--max-cost", "1"), "--max-cost needs the home"),
        (("ingest", ".", "--password", "x"), "--password needs the home"),
        (("delete", "drafts/*.pdf"), "a pattern of paths needs the home"),
        (("list", "--home", "x"), "use either --server"),
        (("list", "--key-file", "none"), "--key-file none: No such file"),
    ],
)
def test_what_needs_the_home_is_refused_in_a_sentence(
    served: Served, cli: Cli, arguments: tuple[str, ...], why: str
) -> None:
    said = cli("--server", served.url, *arguments)
    assert said.code == 2
    assert why in said.err
    assert len(said.err.splitlines()) == 1
    assert not cli.home.exists()


def test_the_server_and_its_key_come_from_options_or_variables(tmp_path: Path, cli: Cli) -> None:
    with serving(tmp_path / "served") as served:
        with Client(served.url) as client:
            secret = client.create_key(scopes=["admin"]).secret
        (cli.folder / "key").write_text(f"{secret}\n")
        assert cli("--server", served.url, "--key-file", "key", "list").out == "no documents\n"
        denied = cli("--server", served.url, "list")
        assert denied.code == 1
        assert "key" in denied.err
        settings = {"PENSTOCK_SERVER": served.url, "PENSTOCK_KEY": secret}
        own = Cli(cli.home, cli.folder, settings)
        assert own("list").out == "no documents\n"
        assert "PENSTOCK_SERVER" in own("check").err
        assert secret not in own("list", "-v").err
        # An explicit home is meant.
        assert "there are no documents in" in own("list", "--home", "here").err


def test_a_server_that_is_not_there_is_told_soon(cli: Cli) -> None:
    began = time.monotonic()
    with (
        Client(f"http://127.0.0.1:{free_port()}", patience_s=1) as client,
        pytest.raises(Away, match="does not answer"),
    ):
        client.ingest(cli.folder)
    assert time.monotonic() - began < 10


def test_i1_an_upload_of_a_folder_goes_on_after_kills_of_client_and_server(tmp_path: Path, cli: Cli) -> None:
    count = 150
    folder = fill(cli.folder / "notes", count)
    (folder / "large.bin").write_bytes(os.urandom(12 << 20))
    arguments = ("--port", free_port())
    url = f"http://127.0.0.1:{arguments[1]}"
    command = ("--server", url, "ingest", "notes", "--json")
    with serving(tmp_path / "served", *arguments) as served:
        first = cli.start(*command)
        wait_for_documents(url, 20)
        first.kill()
        first.wait()
        second = cli.start(*command)
        wait_for_documents(url, 80)
        served.kill()
    time.sleep(1)
    with serving(tmp_path / "served", *arguments) as served:
        done = finish(second)
        assert done.code in (0, 1), done
        summary = json.loads(done.out)
        assert summary["submitted"] + summary["skipped"] == count + 4
        assert summary["refused"] == summary["pending"] == 0
        with Client(url) as client:
            sources = [one.source for one in client.list_documents() if one.parent is None]
            assert len(sources) == len(set(sources)) == count + 4
            counts = client.status().documents
        assert counts == {"COMPLETED": count + 3, "FAILED": 1, "UNSUPPORTED": 2}
        # Only hashes.
        assert json.loads(finish(cli.start(*command)).out)["skipped"] == count + 4


def test_an_interrupted_upload_is_told_and_goes_on(tmp_path: Path, cli: Cli) -> None:
    fill(cli.folder / "notes", 30)
    with serving(tmp_path / "served", "--no-worker") as served:
        process = cli.start("--server", served.url, "ingest", "notes", "--json")
        wait_for_documents(served.url, 33)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said = finish(process)
    assert said.code == 130, said
    assert json.loads(said.out)["interrupted"]
    assert "the same command follows it" in said.err
