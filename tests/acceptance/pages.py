"""Runs what a Markdown page shows, and compares what comes out with what is shown."""

import ast
import asyncio
import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_MARK = "\x1e"
_STEP = """{command}
code=$?; printf '{mark}%s{mark}' "$code"; (exit "$code")
"""
_VARIABLE = (
    # How far it is, every few seconds: a slow machine says it more often.
    (re.compile(r"^[\d,]+ of [\d,]+ documents?  .*\n", re.M), ""),
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"), "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"\d+\.\d s\b"), "N s"),
    (re.compile(r"\b[01]\.\d{3}\b"), "SCORE"),
    # What bash says when a command was killed begins with the name of its script.
    (re.compile(r"^.*: line \d+: +\d+ (Killed).*$", re.M), r"\1"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" *$", re.M), ""),
)


class Shown(NamedTuple):
    command: str
    output: str


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page that are in one language."""
    return [text for found, text in _BLOCK.findall(_read(page)) if found == language]


def session(page: str) -> list[Shown]:
    """Every command behind a `$ ` of a console block, with the output under it."""
    parts = [part for block in blocks(page, "console") for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [Shown(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def write_files(page: str, folder: Path) -> None:
    """The files that a page shows: blocks whose language is followed by a name."""
    for name, text in re.findall(r"^```\w+ (\S+)\n(.*?)^```", _read(page), re.M | re.S):
        (folder / name).write_text(text, encoding="utf-8")


def links(page: str) -> list[Path]:
    """The files of this repository that a page links to."""
    return [(ROOT / page).parent / target for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", _read(page))]


def run_session(page: str, folder: Path, replace: Mapping[str, str], bin: Path | None = None) -> None:
    """All commands of a page in one shell, in `folder`, with some words of them replaced. A command that fails must be
    followed by `$ echo $?`. `bin`: the folder of the commands, instead of those of this checkout."""
    commands = session(page)
    # Where nothing is searched, vectors need no meaning, and a model need not be loaded.
    searches = any("penstock search" in shown.command for shown in commands)
    settings = {} if searches else {"PENSTOCK_EMBEDDER": "fake"}
    script = folder.parent / "session.sh"
    text = "".join(_STEP.format(command=shown.command, mark=_MARK) for shown in commands)
    for old, new in replace.items():
        text = text.replace(old, new)
    script.write_text(text)
    done = subprocess.run(
        ["bash", str(script)], cwd=folder, env=_environment(folder.parent, bin) | settings, timeout=280,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    parts = done.stdout.split(_MARK)
    for i, shown in enumerate(commands):
        output, code = parts[2 * i], parts[2 * i + 1]
        assert agree(shown.output, output), f"{page}: $ {shown.command}\n{output}"
        told = i + 1 < len(commands) and commands[i + 1].command == "echo $?"
        assert code == "0" or told, f"{page}: $ {shown.command} ended with {code}"


def agree(shown: str, actual: str) -> bool:
    """Ids, times and scores differ from run to run, and `…` stands for anything; everything else must be as shown."""
    pattern = ".*?".join(re.escape(part) for part in _shape(shown).split("…"))
    return re.fullmatch(pattern, _shape(actual), re.S) is not None


async def run_python(page: str, namespace: dict[str, Any], replace: Mapping[str, str] | None = None) -> None:
    """All Python blocks of a page, one after the other, in one namespace, with some words of them replaced. They may
    await. What one prints is compared with the text block that follows it, if one does."""
    found = _BLOCK.findall(_read(page))
    for number, (language, code) in enumerate(found):
        if language != "python":
            continue
        for old, new in (replace or {}).items():
            code = code.replace(old, new)
        after, shown = found[number + 1] if number + 1 < len(found) else ("", "")
        with redirect_stdout(io.StringIO()) as printed:
            await _run_block(code, f"{page}, block {number + 1}", namespace)
        if after == "text":
            assert agree(shown, printed.getvalue()), f"{page}:\n{code}\n{printed.getvalue()}"


async def _run_block(code: str, name: str, namespace: dict[str, Any]) -> None:
    compiled = compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if "asyncio.run(" in code:
        # A whole program, which wants a loop of its own.
        await asyncio.to_thread(exec, compiled, namespace)
    else:
        waiting = eval(compiled, namespace)
        if waiting is not None:
            await waiting


def _shape(text: str) -> str:
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    return text.strip()


def _environment(folder: Path, bin: Path | None) -> dict[str, str]:
    """The commands of this checkout, or those of `bin`, come first in the path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    if bin is None:
        bin = folder / "bin"
        bin.mkdir()
        for name, arguments in (("penstock", "-m penstock.cli.main"), ("python", "")):
            (bin / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
            (bin / name).chmod(0o755)
    else:
        inherited.pop("PYTHONPATH", None)
    return {**inherited, "PATH": f"{bin}:{inherited.get('PATH', '')}"}


def _read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")
