"""What the README shows is what happens."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "turbine.txt").write_text("The turbine runs at 375 revolutions a minute. It rests in August.\n")
    (notes / "dam.md").write_text("# Dam\n\nThe dam is inspected every spring.\n")
    return tmp_path


def shape(text: str) -> str:
    """Times and ids differ from run to run; everything else must not."""
    text = re.sub(r"\b[0-9A-Z]{26}\b", "ID", text)
    return re.sub(r"\d+\.\d+ s", "N s", text).strip()


def session() -> list[tuple[str, str]]:
    [block] = re.findall(r"```console\n(\$ penstock.*?)```", README, re.S)
    parts = re.split(r"^\$ ", block, flags=re.M)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def test_the_session_in_the_readme_runs_as_shown(folder: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    commands = session()
    assert len(commands) >= 4
    for command, shown in commands:
        name, *arguments = shlex.split(command)
        assert name == "penstock"
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert shape(done.stdout + done.stderr) == shape(shown), command


async def test_the_library_example_in_the_readme_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [code] = re.findall(r"```python\n(.*?)```", README, re.S)
    monkeypatch.chdir(folder)
    compiled = compile(code, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(compiled, {})
    assert "turbine.txt 1 The turbine runs at 375" in capsys.readouterr().out


def test_the_settings_in_the_readme_are_accepted(folder: Path) -> None:
    from penstock.config import load_config

    [text] = re.findall(r"```yaml\n(.*?)```", README, re.S)
    (folder / "penstock.yaml").write_text(text)
    config = load_config(environment={}, file=folder / "penstock.yaml")
    assert config.chunk_parameters("contracts") == {"unit": "tokens", "size": 300, "overlap": 30}


def test_every_file_the_readme_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
