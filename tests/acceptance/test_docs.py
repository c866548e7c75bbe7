"""What the pages show is what happens."""

import inspect
import re
from pathlib import Path

import pytest
from tests.acceptance import pages
from tests.acceptance.pages import ROOT, agree
from tests.kit.service import serving

import penstock
from penstock import App, load_config, open_app
from penstock.client import AsyncClient, Client
from penstock.client.operations import Operations
from penstock.demo.samples import write_samples

PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
CLIENT = "docs/how-to/client.md"
"""Its examples need a server."""
SESSIONS = [page for page in PAGES if pages.session(page) and page != CLIENT]

PAPERS = ("inspection.pdf", "shift-log.txt")
DATABASE = "postgresql://penstock@db.example/penstock"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the pages talk about: a folder with notes."""
    notes = tmp_path / "folder" / "notes"
    notes.mkdir(parents=True)
    (notes / "turbine.txt").write_text("The turbine runs at 375 revolutions a minute. It rests in August.\n")
    (notes / "dam.md").write_text("# Dam\n\nThe dam is inspected every spring.\n")
    return notes.parent


@pytest.mark.parametrize("page", SESSIONS)
async def test_a_page_runs_as_shown(
    page: str, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    if "papers/" in text and "write_samples" not in text:
        for path in write_samples(folder / "papers"):
            if path.name not in PAPERS:
                path.unlink()
    replace = {DATABASE: f"'{request.getfixturevalue('empty_postgres')}'"} if DATABASE in text else {}
    pages.write_files(page, folder)
    pages.run_session(page, folder, replace)
    monkeypatch.chdir(folder)
    await pages.run_python(page, {})


async def test_the_library_page_runs_as_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    async with open_app(home="./.penstock") as app:
        await pages.run_python("docs/library.md", {"app": app})


async def test_the_client_page_runs_as_shown(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with serving(tmp_path / "served", PENSTOCK_EMBEDDER="wordllama") as served:
        with Client(served.url) as client:
            await pages.run_python(CLIENT, {"client": client})
        pages.run_session(CLIENT, folder, {"http://127.0.0.1:8440": served.url})


def test_the_client_page_names_every_method() -> None:
    text = (ROOT / CLIENT).read_text(encoding="utf-8")
    methods = {name for kind in (AsyncClient, Operations) for name in vars(kind) if not name.startswith("_")}
    assert {name for name in methods - {"close", "url"} if f"`{name}`" not in text} == set()


def test_the_library_page_shows_every_verb_and_every_public_name() -> None:
    text = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    verbs = [name for name, verb in inspect.getmembers(App, inspect.isfunction) if not name.startswith("_")]
    assert len(verbs) >= 15
    assert [verb for verb in verbs if f"app.{verb}(" not in text] == []
    assert [name for name in penstock.__all__ if not re.search(rf"`{name}`", text)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if pages.blocks(page, "yaml")])
def test_settings_are_accepted(page: str, tmp_path: Path) -> None:
    for text in pages.blocks(page, "yaml"):
        (tmp_path / "penstock.yaml").write_text(text)
        load_config(environment={}, file=tmp_path / "penstock.yaml")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_links_to_is_there(page: str) -> None:
    assert [str(target) for target in pages.links(page) if not target.exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, new = set(), {ROOT / "README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        inside = [target.resolve() for target in pages.links(str(page.relative_to(ROOT)))]
        new |= {target for target in inside if target.suffix == ".md"} - reached
        new |= {page for target in inside if target.is_dir() for page in target.glob("*.md")} - reached
    assert [page for page in PAGES if ROOT / page not in reached] == []


@pytest.mark.parametrize(
    ("shown", "actual", "same"),
    [
        ("2 completed in 1.5 s", "2 completed in 0.3 s\n", True),
        ("2 completed in 1.5 s", "1 completed in 1.5 s", False),
        (
            " 1. 1.000  dam.md\n    01M7GZQJXCK1BXB2ZYP1YTP0G8",
            " 1. 0.731  dam.md\n    01M7H5FVPJJFQAKV824PD5178F",
            True,
        ),
        ("It reads …: convert", "It reads text/html, text/plain: convert", True),
        ("It reads …: convert", "It reads nothing", False),
        ("Killed", "session.sh: line 3: 4711 Killed                  penstock run", True),
        ("", "something", False),
    ],
)
def test_what_differs_from_run_to_run_agrees_and_nothing_else(shown: str, actual: str, same: bool) -> None:
    assert agree(shown, actual) is same
