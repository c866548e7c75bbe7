"""The repository keeps its own promises: a lock that any machine can install, a Makefile that explains itself."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked() -> list[tuple[Requirement, str]]:
    """Each requirement of the lock with the hashes that follow it."""
    entries = re.split(r"^(?=\S)", LOCK, flags=re.MULTILINE)
    parts = [entry.partition("--hash=") for entry in entries if entry.strip() and not entry.startswith("#")]
    return [(Requirement(head.strip().removesuffix("\\")), mark + rest) for head, mark, rest in parts]


def declared() -> list[str]:
    """Every requirement that pyproject.toml names, wherever it names it."""
    project = PYPROJECT["project"]
    return [
        *PYPROJECT["build-system"]["requires"],
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
        *(line for group in PYPROJECT["dependency-groups"].values() for line in group),
    ]


def test_the_lock_names_no_host_and_no_path() -> None:
    assert not re.findall(r"\w+://\S*|^\s*-(?!-hash=).*|^\s*[./]\S*", LOCK, flags=re.MULTILINE)


def test_every_locked_requirement_is_pinned_and_hashed() -> None:
    assert locked()
    for requirement, hashes in locked():
        assert [pin.operator for pin in requirement.specifier] == ["=="], requirement
        assert re.fullmatch(r"(--hash=sha256:[0-9a-f]{64}(\s*\\)?\s*)+", hashes), requirement


@pytest.mark.parametrize("line", sorted(set(declared())))
def test_a_declared_dependency_is_in_the_lock(line: str) -> None:
    wanted = Requirement(line)
    pins = [
        pin.version
        for requirement, _ in locked()
        if canonicalize_name(requirement.name) == canonicalize_name(wanted.name)
        for pin in requirement.specifier
    ]
    assert pins, f"{line} is not in requirements.lock: run `make lock`"
    assert all(wanted.specifier.contains(pin, prereleases=True) for pin in pins), f"run `make lock`: {line}, {pins}"


def test_make_alone_lists_every_target() -> None:
    # As if started by hand: under `make test` these would make it a sub-make.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    shown = subprocess.run(["make"], cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    listed = re.findall(r"^  make ([\w-]+) +\S", shown, flags=re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert phony is not None
    assert listed == phony[1].split()


@pytest.mark.parametrize("script", [".ci/run"])
def test_a_script_can_be_executed(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


def invariants() -> list[tuple[str, str, str]]:
    """The rows of the table in the architecture page: invariant, what guards it, what proves it."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return re.findall(r"^\| \*\*(I\d+) [^|]*\| ([^|]*) \| ([^|]*) \|$", text, flags=re.MULTILINE)


def test_every_invariant_is_in_the_table() -> None:
    assert [name for name, _, _ in invariants()] == [f"I{number}" for number in range(1, 13)]


@pytest.mark.parametrize(("name", "guards", "tests"), invariants())
def test_what_guards_and_proves_an_invariant_is_there(name: str, guards: str, tests: str) -> None:
    guarded = re.findall(r"(.*?)\(((?:`[\w/]+\.(?:py|sql)`(?:, )?)+)\)", guards)
    assert guarded
    for words, files in guarded:
        texts = [(ROOT / "src/penstock" / file).read_text() for file in re.findall("`([^`]+)`", files)]
        for word in re.findall("`([^`]+)`", words):
            wanted = word.removesuffix(" …").rpartition(".")[2]
            assert all(wanted in text for text in texts), (word, files)
    there = {found for file in ROOT.glob("tests/**/*.py") for found in re.findall(r"def (test_\w+)", file.read_text())}
    for test in re.findall("`([^`]+)`", tests):
        assert test in there
        assert f"_{name.lower()}_" in test
