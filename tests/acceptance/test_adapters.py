"""Adapters that an installed package adds, used from the command line."""

from pathlib import Path

import pytest
from tests.kit.cli import Cli
from tests.kit.distribution import install

CODE = """
from penstock.embedders.fake import FakeEmbedder

def make_embedder(choice):
    return FakeEmbedder(int(choice.argument))
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    folder = tmp_path / "cwd"
    folder.mkdir()
    site = install(
        tmp_path / "site", "penstock_own", CODE, {"penstock.embedders": {"own": "penstock_own:make_embedder"}}
    )
    return Cli(tmp_path / "home", folder, {"PENSTOCK_EMBEDDER": "own:24", "PYTHONPATH": str(site)})


def test_an_embedder_of_an_installed_package_ingests_and_searches(cli: Cli) -> None:
    (cli.folder / "otter.txt").write_text("The otter sleeps on its back.")
    assert cli.process("config", "check", "--json").json["ok"]
    assert cli.process("ingest", "otter.txt", "--json").json["completed"] == 1
    hits = cli.process("search", "otter", "--mode", "vector", "--json").json["hits"]
    assert [hit["name"] for hit in hits] == ["otter.txt"]


def test_an_unknown_embedder_is_a_wrong_setting_that_names_the_known_ones(cli: Cli) -> None:
    cli.settings["PENSTOCK_EMBEDDER"] = "nothing"
    (cli.folder / "otter.txt").write_text("The otter sleeps on its back.")
    for command in (["config", "check"], ["ingest", "otter.txt"]):
        result = cli.process(*command, "--json")
        assert result.code == 2
        assert "known are fake, own, wordllama" in result.json["error"]
