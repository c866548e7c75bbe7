"""The command line as a user starts it, with a home of its own: in a process, or (quicker) in this one."""

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import run
from penstock.cli.signals import Signals

_started: list[subprocess.Popen[bytes]] = []

COMMAND = (sys.executable, "-m", "penstock.cli.main")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Exactly one object, on one line."""
        assert self.out.count("\n") == 1, self
        answer = json.loads(self.out)
        assert isinstance(answer, dict)
        return answer


@dataclass(frozen=True)
class Cli:
    home: Path
    folder: Path
    """Where commands are started."""
    settings: dict[str, str]

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        return {**inherited, "PENSTOCK_HOME": str(self.home), "PENSTOCK_EMBEDDER": "fake", **self.settings}

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        _started.append(process)
        return process

    def process(self, *arguments: str | Path, data: bytes = b"") -> Result:
        return finish(self.start(*arguments, stdin=subprocess.PIPE), data)

    def __call__(self, *arguments: str | Path) -> Result:
        """What `main` does, without the time that an interpreter takes to start."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
                patch.delenv(name)
            for name, value in self.environment().items():
                patch.setenv(name, value)
            patch.chdir(self.folder)
            patch.setattr(Signals, "install", lambda signals: None)
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = run([str(argument) for argument in arguments])
            out.flush()
            err.flush()
        return Result(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())

    def documents(self, *options: str) -> dict[str, dict[str, Any]]:
        """By name."""
        return {d["name"]: d for d in self("list", "--json", *options).json.get("documents", ())}


def close_all() -> None:
    """Kill what a test has left running, and close its pipes: nothing of a test that fails may fail the next one."""
    while _started:
        process = _started.pop()
        process.kill()
        with process:
            pass


def finish(process: subprocess.Popen[bytes], data: bytes | None = None, timeout: float = 180) -> Result:
    try:
        out, err = process.communicate(data, timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Result(process.returncode, out.decode(), err.decode())


def write(folder: Path, **texts: str) -> Path:
    """Files by name; a double underscore stands for the dot: `a__txt="…"`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder
