"""The wheel: what a user installs has all files that the checkout has, and works without the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    [path] = folder.glob("penstock-*.whl")
    return path


def test_the_wheel_has_every_file_of_the_package_and_stays_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("penstock/")}
    source = ROOT / "src"
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    there = {str((ROOT / line).relative_to(source)) for line in tracked.splitlines() if (ROOT / line).exists()}
    assert there <= packed
    assert wheel.stat().st_size < 1_000_000


def test_an_unpacked_wheel_writes_the_samples_and_starts(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    entry = next((tmp_path / "site").glob("penstock-*.dist-info/entry_points.txt")).read_text()
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
