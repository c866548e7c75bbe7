"""The wheel: what a user installs has all files that the checkout has, works without the checkout, and takes a new user
through the quickstart."""

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from email.message import Message
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.acceptance import pages
from tests.acceptance.pages import ROOT

VERSIONS = ("3.11", "3.12", "3.13")
LONG = bool(os.environ.get("PENSTOCK_LONG"))
UNREACHABLE = re.compile(r"NewConnectionError|ConnectTimeout|Temporary failure in name resolution|ProxyError")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_every_file_of_the_package_and_stays_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("penstock/")}
    source = ROOT / "src"
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    there = {str((ROOT / line).relative_to(source)) for line in tracked.splitlines() if (ROOT / line).exists()}
    assert there <= packed
    assert "penstock/py.typed" in packed
    assert wheel.stat().st_size < 1_500_000


def test_the_distribution_does_not_have_the_name_of_another_project(wheel: Path, metadata: Message) -> None:
    assert metadata["Name"] == "penstock-rag"
    assert wheel.name == f"penstock_rag-{metadata['Version']}-py3-none-any.whl"
    # What a reader could copy: no page and no message installs the package of somebody else.
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    wrong = re.compile(r"pip install [^\n`]*?(?<![\w.-])penstock(?![\w-])(?!/)")
    warning = "Do not run `pip install penstock`"
    texts = {path: path.read_text(encoding="utf-8").replace(warning, "") for path in files}
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if wrong.search(text)] == []


def test_the_metadata_is_complete(metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Keywords"]
    assert metadata["Summary"]
    classifiers = metadata.get_all("Classifier", [])
    assert [f"Programming Language :: Python :: {version}" for version in VERSIONS] == [
        line for line in classifiers if line.startswith("Programming Language :: Python :: 3.")
    ]
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Repository", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(urls["Repository"]) for url in urls.values())


def test_the_readme_of_the_package_has_no_relative_links(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    own = [target for target in targets if target.startswith("https://git.example/")]
    base = re.compile(r"https://git\.example/penstock/penstock/(?:blob|raw)/v[\d.]+/")
    assert [target for target in own if not (ROOT / base.sub("", target).partition("#")[0]).exists()] == []


def test_an_unpacked_wheel_writes_the_samples_and_starts(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    entry = next((tmp_path / "site").glob("penstock_rag-*.dist-info/entry_points.txt")).read_text()
    assert "penstock = penstock.cli.main:main" in entry
    code = (
        "import penstock, pathlib, sys; from penstock.demo.samples import write_samples; "
        "assert pathlib.Path(penstock.__file__).is_relative_to(sys.argv[1]), penstock.__file__; "
        "print(len(write_samples(pathlib.Path('papers'))))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    for arguments, said in (
        (("-c", code, str(tmp_path / "site")), "7"),
        (("-m", "penstock.cli.main", "--version"), "penstock"),
    ):
        ran = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
        assert said in ran.stdout


def _interpreter(version: str) -> Path | None:
    """An interpreter of this version, if there is one: ours, one in the path, or one of pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [Path(path) for path in (shutil.which(f"python{version}"),) if path is not None]
    for python in (*sorted(home.glob(f"versions/{version}.*/bin/python"), reverse=True), *found):
        told = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
        if told.returncode == 0 and told.stdout.startswith(f"Python {version}."):
            return python
    return None


def _pinned(metadata: Message) -> str:
    """The part of the lock that a user needs: the packages that the wheel requires, and what those require."""
    lines: dict[str, str] = {}
    for block in re.split(r"^(?=\w)", (ROOT / "requirements.lock").read_text(), flags=re.M)[1:]:
        package = str(canonicalize_name(block.partition("==")[0]))
        lines[package] = lines.get(package, "") + block
    needed: set[str] = set()
    new: set[str] = _requires(metadata.get_all("Requires-Dist", []))
    while new:
        name = new.pop()
        needed.add(name)
        with suppress(PackageNotFoundError):
            new |= _requires(requires(name) or []) - needed
    return "".join(lines[name] for name in sorted(needed) if name in lines)


def _requires(lines: list[str]) -> set[str]:
    return {str(canonicalize_name(Requirement(line).name)) for line in lines if "extra ==" not in line}


def _install(command: Sequence[str | Path], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode and UNREACHABLE.search(done.stderr):
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_new_user_follows_the_quickstart_from_a_wheel(
    version: str, wheel: Path, metadata: Message, tmp_path: Path
) -> None:
    """In a fresh environment, with the pinned versions. PENSTOCK_LONG=1 does it for every Python that can be had."""
    if not LONG and version != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip("only with PENSTOCK_LONG=1")
    python = _interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    folder, fresh = tmp_path / "folder", tmp_path / "venv"
    folder.mkdir()
    shutil.copy(wheel, folder)
    ours = re.compile("PENSTOCK_|PYTHONPATH$|VIRTUAL_ENV$")
    environment = {name: value for name, value in os.environ.items() if not ours.match(name)}
    subprocess.run([python, "-m", "venv", fresh], env=environment, check=True, capture_output=True)
    (tmp_path / "pinned.txt").write_text(_pinned(metadata))
    pip: list[str | Path] = [fresh / "bin/pip", "install", "--quiet", "--no-compile"]
    _install([*pip, "--require-hashes", "-r", tmp_path / "pinned.txt"], folder, environment)
    # What the page says. Without an index, so that it fails if the wheel needs anything else.
    [line] = re.findall(r"^pip install (\./penstock_rag\S+\.whl)$", (ROOT / "docs/quickstart.md").read_text(), re.M)
    _install([*pip, "--no-index", line], folder, environment)

    pages.run_session("docs/quickstart.md", folder, {}, fresh / "bin")
    code = (
        f"import sys, asyncio; sys.path.append({str(Path(pages.__file__).parent)!r}); import pages, penstock; "
        f"assert penstock.__file__.startswith({str(fresh)!r}), penstock.__file__; "
        "asyncio.run(pages.run_python('docs/quickstart.md', {}))"
    )
    ran = subprocess.run(
        [fresh / "bin/python", "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
