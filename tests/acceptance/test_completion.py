"""What the Tab key completes, by the script that the quickstart puts into the settings of bash."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.kit.cli import COMMAND, Cli

BASH = shutil.which("bash")
TYPE = r"""
eval "$(_PENSTOCK_COMPLETE=bash_source penstock)"
compopt() { COMPREPLY+=("the shell: $2"); }
while read -r line; do
    eval "COMP_WORDS=($line)" COMPREPLY=\(\)
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _penstock_completion penstock
    (IFS='|'; echo "${COMPREPLY[*]}")
done
"""
"""As bash calls it for the words that were typed; the last one is not complete."""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    folder = tmp_path_factory.mktemp("typed")
    (folder / "notes" / "a").mkdir(parents=True)
    (folder / "notes" / "turbine.txt").write_text("The turbine turns.")
    (folder / "notes" / "a" / "my file (1).txt").write_text("The ferry leaves at noon.")
    (folder / "notes" / "bad.pdf").write_bytes(b"%PDF-1.7 and nothing else")
    cli = Cli(folder / "home", folder, {})
    assert cli("ingest", "notes", "--collection", "river").code == 1
    return cli


def tab(cli: Cli, *lines: str) -> list[list[str]]:
    assert BASH is not None
    command = cli.folder / "bin" / "penstock"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    command.chmod(0o700)
    environment = {**cli.environment(), "PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [BASH, "-c", TYPE],
        input="".join(f"{line}\n" for line in lines),
        text=True,
        cwd=cli.folder,
        env=environment,
        check=True,
        capture_output=True,
        timeout=300,
    )
    assert done.stderr == ""
    return [[word for word in line.split("|") if word] for line in done.stdout.splitlines()]


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_tab_completes(cli: Cli) -> None:
    ids = [document["id"] for document in cli("list", "--json").json["documents"]]
    completed = {
        "penstock collec": ["collection"],
        "penstock show turb": ["turbine.txt"],
        "penstock show notes/tu": ["notes/turbine.txt"],
        "penstock show my": [r"my\ file\ \(1\).txt"],
        f"penstock show {ids[0].lower()}": [ids[0]],
        f"penstock show {ids[0][:6]}": ids,
        "penstock list --status COM": ["COMPLETED"],
        "penstock ingest --collection ''": ["river"],
        "penstock dlq show ''": ["1"],
        "penstock ingest no": ["the shell: default"],
        "penstock ingest notes --manifest x": ["the shell: default"],
        "penstock delete no": ["the shell: default"],
        "penstock delete turb": ["the shell: default", "turbine.txt"],
        "penstock --home x": ["the shell: dirnames"],
    }
    assert dict(zip(completed, tab(cli, *completed), strict=True)) == completed


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_without_a_ledger_nothing_is_completed_and_no_home_is_made(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home", tmp_path, {})
    assert tab(cli, "penstock show a") == [[]]
    assert not cli.home.exists()
