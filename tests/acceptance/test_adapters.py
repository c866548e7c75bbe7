"""Adapters that an installed package adds, used from the command line."""

from pathlib import Path

import pytest
from tests.kit.cli import Cli
from tests.kit.distribution import install

CODE = """
from penstock.embedders.fake import FakeEmbedder
from penstock.errors import SourceError
from penstock.extractors.base import Extracted
from penstock.model.items import Page
from penstock.sources.base import Found

def make_embedder(choice):
    return FakeEmbedder(int(choice.argument))


class Shelf:
    # `shelf://NAME`: three notes, of which the last cannot be read.

    repeatable = True

    def __init__(self, name):
        self.name, self.problems = name, []

    async def discover(self, known):
        for title in ("otter", "heron", "torn"):
            yield Found(f"shelf://{self.name}/{title}", f"{title}.txt", revision="1")
        self.problems.append(f"shelf://{self.name}/lost: it is not on the shelf")

    async def read(self, found):
        if found.name == "torn.txt":
            raise SourceError("the page is torn")
        yield b"The " + found.name.encode()
        yield b" sleeps on its back."


def make_source(choice):
    return Shelf(choice.argument)


class Rows:
    # PostScript: a page for each line.
    paid = False

    def version(self, media_type, params):
        return "rows-1"

    async def extract(self, raw, media_type, params, cursor):
        lines = (await raw.read_range(0, raw.size)).decode().splitlines()
        for number in range(cursor.get("line", 0), len(lines)):
            yield Extracted([Page(number + 1, f"row: {lines[number]}")], {"line": number + 1})


def make_extractor(choice):
    assert choice.name == "application/postscript"
    return Rows()
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    folder = tmp_path / "cwd"
    folder.mkdir()
    entries = {
        "penstock.embedders": {"own": "penstock_own:make_embedder"},
        "penstock.extractors": {"application/postscript": "penstock_own:make_extractor"},
        "penstock.sources": {"shelf": "penstock_own:make_source"},
    }
    site = install(tmp_path / "site", "penstock_own", CODE, entries)
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
        assert "use one of azure, cohere, fake, minilm, ollama, onnx, openai, own, wordllama" in result.json["error"]


def test_a_source_of_an_installed_package_is_ingested_by_its_url(cli: Cli) -> None:
    result = cli.process("ingest", "shelf://top", "--json")
    assert (result.code, result.json["completed"], result.json["refused"]) == (1, 2, 2)
    assert sorted(result.json["problems"]) == [
        "shelf://top/lost: it is not on the shelf",
        "shelf://top/torn: the page is torn",
    ]
    documents = cli.process("list", "--json").json["documents"]
    assert sorted(d["source"] for d in documents) == ["shelf://top/heron", "shelf://top/otter"]
    [hit, *_] = cli.process("search", "otter", "--mode", "text", "--json").json["hits"]
    assert (hit["name"], hit["text"]) == ("otter.txt", "The otter.txt sleeps on its back.")
    assert cli.process("ingest", "shelf://top", "--json").json["skipped"] == 2


def test_a_new_version_of_an_extractor_of_a_package_concerns_only_documents_that_it_reads(cli: Cli) -> None:
    (cli.folder / "birds.ps").write_text("%!PS-Adobe heron\nbittern\n")
    (cli.folder / "otter.txt").write_text("The otter sleeps on its back.")
    files = ("birds.ps", "otter.txt")
    assert cli.process("ingest", *files, "--json").json["completed"] == 2
    assert cli.process("ingest", *files, "--json").json["skipped"] == 2
    module = Path(cli.settings["PYTHONPATH"]) / "penstock_own.py"
    module.write_text(module.read_text().replace('"rows-1"', '"rows-2"').replace("row: ", "line: "))
    result = cli.process("ingest", *files, "--json").json
    assert (result["skipped"], result["stale_settings"]) == (2, 1)
    module.write_text("raise ImportError('no')\n")
    cli.settings["PENSTOCK_EMBEDDER"] = "fake"
    (cli.folder / "heron.txt").write_text("The heron waits.")
    assert cli.process("ingest", "heron.txt", "--collection", "other", "--json").json["completed"] == 1


def test_the_url_of_an_unknown_source_is_refused_without_its_password(cli: Cli) -> None:
    result = cli.process("ingest", "attic://me:hidden@top", "--json")
    assert (result.code, "hidden" in result.out + result.err) == (2, False)
    assert "use one of az, file, gs, http, https, s3, shelf" in result.json["error"]


def test_a_folder_can_be_named_by_its_url(cli: Cli) -> None:
    (cli.folder / "notes").mkdir()
    (cli.folder / "notes" / "otter.txt").write_text("The otter sleeps on its back.")
    assert cli.process("ingest", f"file://{cli.folder}/notes", "--json").json["completed"] == 1
    assert cli.process("ingest", "notes", "--json").json["skipped"] == 1


def test_an_extractor_of_an_installed_package_reads_another_media_type(cli: Cli) -> None:
    (cli.folder / "birds.ps").write_text("%!PS-Adobe heron\nbittern\n")
    (cli.folder / "data.json").write_text('{"heron": 2}')
    result = cli.process("ingest", "birds.ps", "data.json", "--json").json
    assert (result["completed"], result["reasons"]) == (2, {})
    [hit, *_] = cli.process("search", "bittern", "--mode", "text", "--json").json["hits"]
    assert (hit["name"], hit["page"]) == ("birds.ps", 1)
    [document] = cli.process("list", "--name", "*.ps", "--json").json["documents"]
    assert (document["media_type"], document["pages"]) == ("application/postscript", 2)
