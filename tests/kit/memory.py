"""The memory of a process and of all processes that it started."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOK_S = 0.05


@dataclass
class Peak:
    megabytes: int = 0
    looks: int = 0


def tree_megabytes(pid: int) -> int:
    """The proportional set size of the process and its descendants: pages that several of them share count once."""
    kilobytes, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            with open(f"/proc/{one}/smaps_rollup") as rollup:
                kilobytes += next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
            for thread in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{thread}/children") as children:
                    waiting += map(int, children.read().split())
        except (OSError, StopIteration):
            # It has ended.
            continue
    return kilobytes >> 10


@contextmanager
def watched(pid: int) -> Iterator[Peak]:
    """The highest memory of a process and its descendants while the block runs."""
    peak, ended = Peak(), threading.Event()

    def look() -> None:
        while not ended.is_set():
            peak.megabytes = max(peak.megabytes, tree_megabytes(pid))
            peak.looks += 1
            time.sleep(LOOK_S)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def ingest(home: Path, *paths: Path, **settings: Any) -> int:
    """Ingest with the command line, and return the highest memory of all its processes in megabytes."""
    home.mkdir()
    config = home / "penstock.yaml"
    config.write_text(json.dumps({"home": str(home), "embedder": "fake", **settings}))
    command = [sys.executable, "-m", "penstock.cli.main", "--config", str(config), "ingest", *map(str, paths)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        with watched(process.pid) as peak:
            process.wait(1000)
    assert process.returncode in (0, 1), "it worked to the end, and documents may have failed"
    assert peak.looks > 10
    return peak.megabytes
