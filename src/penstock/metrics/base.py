"""Metrics: what is counted and measured, and the two calls by which it is told to whoever wants to know."""

from typing import Protocol

import msgspec


class Metrics(Protocol):
    """Called from several threads at once: the loop, the ledger's writer and the heart. Must be thread-safe, and quick:
    the work waits for it. What it raises is logged once, and changes nothing."""

    def incr(self, name: str, value: int = 1, **labels: str) -> None:
        """Add to a counter of `COUNTERS`."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Enter a measurement, in seconds, into a histogram of `HISTOGRAMS`."""


class Nothing:
    """Nobody listens."""

    def incr(self, name: str, value: int = 1, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...


NOTHING: Metrics = Nothing()


class Metric(msgspec.Struct, frozen=True):
    help: str
    labels: tuple[str, ...] = ()


COUNTERS = {
    "claim_attempts": Metric("Claims that a pool made.", ("pool",)),
    "claim_success": Metric("Steps that came by a claim.", ("pool",)),
    "claim_idle": Metric("Claims that found nothing to do.", ("pool",)),
    "claim_error": Metric("Claims that the ledger refused.", ("pool",)),
    "claim_lost_race": Metric("Claimed steps that were gone before they began.", ("pool",)),
    "step_chained": Metric("Steps that were claimed along with the completion of the one before.", ("kind",)),
    "step_completed": Metric("Steps that were completed.", ("kind",)),
    "step_error": Metric("Failures after which the step is tried again.", ("kind",)),
    "step_failed": Metric("Steps that ended as a dead letter.", ("kind",)),
    "step_released": Metric("Steps that were handed over: a stop, a spent budget, a full disk.", ("kind",)),
    "step_rewound": Metric("Steps that wait because an artifact was found torn and is made again.", ("kind",)),
    "step_reset_by_reaper": Metric("Steps of dead workers that wait again.", ("kind",)),
    "worker_reaped": Metric("Dead workers that were buried."),
    "worker_restarts": Metric("Worker processes that died and were replaced (`--processes`)."),
    "lease_lost": Metric("Steps that were somebody else's, or cancelled, when we wrote.", ("phase",)),
    "resource_lock_swept": Metric("Locks that were taken back from the dead."),
    "index_failed": Metric("Times that an index table could not be used, and was left alone for a while."),
    "document_ended": Metric("Documents that ended here.", ("status",)),
    "pages": Metric("Pages that were extracted."),
    "chunks": Metric("Chunks that were cut."),
    "embedded": Metric("Chunks that were embedded."),
    "indexed": Metric("Chunks that were written to the index."),
    "event_delivered": Metric("Events that a handler or webhook took.", ("event",)),
    "event_error": Metric("Failures after which an event is told again.", ("event",)),
    "event_failed": Metric("Events that ended as a dead letter.", ("event",)),
    "ledger_commits": Metric("Transactions of the ledger's writer."),
}
HISTOGRAMS = {
    "claim_duration": Metric("Wall time of a claim.", ("pool",)),
    "step_duration": Metric("Wall time of a step that was completed, or failed, since it had room to run.", ("kind",)),
    "delivery_duration": Metric("Wall time of a handler or webhook that was told, whatever came of it.", ("event",)),
}
GAUGES = {
    "ledger_up": Metric("Whether the ledger could be asked; if not, the gauges below are left out."),
    "queue_depth": Metric("Unfinished steps.", ("kind", "status")),
    "oldest_pending_age_seconds": Metric("Age of the oldest step that waits.", ("kind",)),
    "documents": Metric("Documents.", ("status",)),
    "dead_letters_open": Metric("Dead letters that nobody has replayed or discarded."),
    "workers": Metric("Workers that are registered; the dead among them until they are reaped."),
}
"""Of the ledger, whoever works on it. They are read when somebody asks, and no `Metrics` is told of them."""

PHASES = ("heartbeat", "alone", "work", "checkpoint", "complete", "error", "release")
"""Where a lost lease was noticed."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


def exposed(name: str) -> str:
    """The name under which Prometheus sees it."""
    unit = "_total" if name in COUNTERS else "_seconds" if name in HISTOGRAMS else ""
    return f"penstock_{name}{unit}"


class Guarded:
    """A user's own metrics: whatever they raise, the work goes on."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._told = False

    def incr(self, name: str, value: int = 1, **labels: str) -> None:
        try:
            self._metrics.incr(name, value, **labels)
        except Exception:
            self._tell(name)

    def observe(self, name: str, value: float, **labels: str) -> None:
        try:
            self._metrics.observe(name, value, **labels)
        except Exception:
            self._tell(name)

    def _tell(self, name: str) -> None:
        if not self._told:
            import logging

            self._told = True
            logging.getLogger("penstock").exception("the metrics object refused %s; this is said once", name)
