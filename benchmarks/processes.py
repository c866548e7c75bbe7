"""A whole process, from exec to exit: its seconds, its answer, and the peak memory of it with all its children."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

SAMPLE_S = 0.02
PENSTOCK = (sys.executable, "-m", "penstock.cli.main")
PLAIN = (sys.executable, "-m", "benchmarks.plain")
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Ended:
    seconds: float
    answer: dict[str, Any]
    peak_mb: float = 0.0
    """The largest sum of PSS (shared pages counted once) over its processes; 0 where nobody looked."""


def run(command: Sequence[str | Path], *, memory: bool = False) -> Ended:
    """Exit code 1 is no failure: among real documents some cannot be read. Looking at the memory slows a process
    down, so time is taken without."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=out, stderr=err, start_new_session=True)
        peak = _peak(process) if memory else 0
        code = process.wait()
        seconds = time.perf_counter() - began
        out.seek(0)
        err.seek(0)
        if code not in (0, 1):
            raise RuntimeError(f"{' '.join(map(str, command))} ended with {code}: {err.read().decode()}")
        return Ended(seconds, json.loads(out.read().splitlines()[-1]), peak / 1024)


def warm_up(folder: Path, work: Path) -> None:
    """Nobody's first run counts: it compiles modules and fills the disk cache."""
    run([*PLAIN, folder, work / "warm-up.lance"])
    penstock(work / "warm-up", "ingest", folder)


def penstock(home: Path, *arguments: str | Path, memory: bool = False) -> Ended:
    return run([*PENSTOCK, *arguments, "--home", home, "--json"], memory=memory)


def middle(ended: Sequence[Ended]) -> float:
    return median(one.seconds for one in ended)


def _environment() -> dict[str, str]:
    """Modules are loaded compiled, as from any installed package, also where this Python may not write bytecode."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHONDONTWRITE"))}
    return kept | {"PYTHONPYCACHEPREFIX": _bytecode().name}


@cache
def _bytecode() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="penstock-bench-")


def _peak(process: subprocess.Popen[bytes]) -> int:
    """Every child stays in the session that the process began, also one whose parent has died."""
    peak = 0
    while process.poll() is None:
        began = time.perf_counter()
        peak = max(peak, sum(map(_pss, _session(process.pid))))
        time.sleep(max(0.0, SAMPLE_S - (time.perf_counter() - began)))
    return peak


def _session(leader: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.getsid(int(name)) == leader:
                found.append(int(name))
    return found


def _pss(pid: int) -> int:
    """In kB; 0 for a process that has just ended."""
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
