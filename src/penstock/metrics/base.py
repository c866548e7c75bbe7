"""The metrics port: the names of all metrics, and the interface that receives them."""

from typing import Protocol

import msgspec


class Metrics(Protocol):
    """Receives metrics. Called from several threads: the event loop, the ledger's writer and the heartbeat thread.
    Must be thread-safe and fast, because the caller waits. If it raises, the error is logged once and ignored."""

    def incr(self, name: str, value: int = 1, **labels: str) -> None:
        """Add to a counter of `COUNTERS`."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a measurement, in seconds, to a histogram of `HISTOGRAMS`."""


class NullMetrics:
    """Discards all metrics."""

    def incr(self, name: str, value: int = 1, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...


NULL_METRICS: Metrics = NullMetrics()


class Metric(msgspec.Struct, frozen=True):
    help: str
    labels: tuple[str, ...] = ()


COUNTERS = {
    "claim_attempts": Metric("Claims made by a pool.", ("pool",)),
    "claim_success": Metric("Steps claimed.", ("pool",)),
    "claim_idle": Metric("Claims that found nothing to do.", ("pool",)),
    "claim_error": Metric("Claims that failed in the ledger.", ("pool",)),
    "claim_lost_race": Metric("Claimed steps that were taken away before they started.", ("pool",)),
    "step_chained": Metric("Steps claimed in the transaction that completed the previous step.", ("kind",)),
    "step_completed": Metric("Steps completed.", ("kind",)),
    "step_error": Metric("Failed attempts of steps that will be tried again.", ("kind",)),
    "step_failed": Metric("Steps that ended as a dead letter.", ("kind",)),
    "step_released": Metric("Steps released unfinished: a stop, a spent budget, a full disk.", ("kind",)),
    "step_held": Metric("Steps that wait because what they need is away; no attempt is counted.", ("kind",)),
    "step_rewound": Metric("Steps that wait because an input artifact is damaged and is made again.", ("kind",)),
    "step_reset_by_reaper": Metric("Steps taken back from dead workers.", ("kind",)),
    "worker_reaped": Metric("Dead workers removed."),
    "worker_restarts": Metric("Worker processes that died and were restarted (`--processes`)."),
    "lease_lost": Metric("Leases found to be lost: the step was cancelled, or belongs to another worker.", ("phase",)),
    "resource_lock_swept": Metric("Locks taken back from dead workers."),
    "index_failed": Metric("Failures of an index table, after which workers pause before they use it again."),
    "target_failed": Metric("Times that a provider or store was away, limited us or refused our key.", ("state",)),
    "call_throttled": Metric("Calls that a provider refused because there were too many.", ("target",)),
    "answer_bought": Metric("Answers of paid calls that were stored: texts embedded, ranges of pages extracted."),
    "answer_reused": Metric("Answers that were found stored, and not bought again."),
    "failure": Metric(
        "Documents that failed, by the reason of their dead letter; `custom`: any reason of a custom step.", ("reason",)
    ),
    "document_ended": Metric("Documents that ended in this worker.", ("status",)),
    "pages": Metric("Pages extracted."),
    "chunks": Metric("Chunks made."),
    "embedded": Metric("Chunks embedded."),
    "indexed": Metric("Chunks written to the index."),
    "event_delivered": Metric("Events delivered to a handler or webhook.", ("event",)),
    "event_error": Metric("Failed deliveries that will be tried again.", ("event",)),
    "event_failed": Metric("Deliveries that ended as a dead letter.", ("event",)),
    "stream_messages": Metric("Messages of streams that `penstock consume` has confirmed."),
    "stream_refused": Metric("Messages of streams that became dead letters."),
    "ledger_commits": Metric("Transactions committed by the ledger's writer."),
}
HISTOGRAMS = {
    "claim_duration": Metric("Wall time of a claim.", ("pool",)),
    "step_duration": Metric("Wall time of a step that completed or failed, from the time it got a slot.", ("kind",)),
    "delivery_duration": Metric("Wall time of a delivery, successful or not.", ("event",)),
}
GAUGES = {
    "ledger_up": Metric("1 if the ledger could be read, else 0; then the gauges below are omitted."),
    "queue_depth": Metric("Unfinished steps.", ("kind", "status")),
    "oldest_pending_age_seconds": Metric("Age of the oldest pending step.", ("kind",)),
    "documents": Metric("Documents.", ("status",)),
    "deliveries_waiting": Metric("Deliveries of events to handlers that have not succeeded yet."),
    "dead_letters_open": Metric("Dead letters that were not replayed or discarded."),
    "targets_away": Metric("Providers and stores that do not work: away, limited or unauthorized.", ("state",)),
    "workers": Metric("Registered workers, including dead ones that were not reaped yet."),
    "spent_dollars": Metric(
        "Cost of provider calls so far, in US dollars: bought, query; and what was saved: cached, resumed.", ("kind",)
    ),
    "stream_lag": Metric("Messages that a stream still has for `penstock consume`, by its metrics only.", ("stream",)),
    "disk_free_bytes": Metric("Free space of the local disk that holds ledger, blobs or index.", ("place",)),
    "disk_reserve_bytes": Metric("Free space below which `penstock serve` accepts no upload."),
}
"""The state of the ledger and of the disks. They are read on request and are not sent to `Metrics`."""

PHASES = ("heartbeat", "alone", "work", "checkpoint", "complete", "error", "release")
"""Where a lost lease was detected."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


def exposed(name: str) -> str:
    """The name of the metric in Prometheus."""
    unit = "_total" if name in COUNTERS else "_seconds" if name in HISTOGRAMS else ""
    return f"penstock_{name}{unit}"


class SafeMetrics:
    """Calls the user's metrics object and ignores its errors."""

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
            logging.getLogger("penstock").exception(
                "the metrics object raised for %s; further errors are not logged", name
            )
