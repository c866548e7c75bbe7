"""Counters and histograms in memory, rendered in the text format of Prometheus. Registries of several processes can
be added up."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import msgspec

from penstock.metrics.base import BUCKETS, COUNTERS, GAUGES, HISTOGRAMS, PHASES, Metric, exposed

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]


class Gauge(msgspec.Struct, frozen=True):
    name: str
    value: float
    labels: dict[str, str] = {}


class Delta(msgspec.Struct, frozen=True):
    """The changes since the previous delta."""

    counts: list[tuple[str, Labels, int]]
    timings: list[tuple[str, Labels, list[int], float]]
    """The count of each bucket, and the sum."""


class Registry:
    def __init__(self, known: Mapping[str, Iterable[str]] | None = None) -> None:
        """`known`: label values whose counters start at 0. Prometheus cannot see the increase of a counter that first
        appears with a value above 0."""
        self._lock = threading.Lock()
        self._counts: dict[Series, int] = {}
        self._timings: dict[Series, tuple[list[int], float]] = {}
        values = {"phase": PHASES, **(known or {})}
        for name, metric in COUNTERS.items():
            for labels in product(*([(label, v) for v in values.get(label, ())] for label in metric.labels)):
                self._counts[name, labels] = 0

    def incr(self, name: str, value: int = 1, **labels: str) -> None:
        assert name in COUNTERS, name
        key = name, tuple(labels.items())
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + value

    def observe(self, name: str, value: float, **labels: str) -> None:
        assert name in HISTOGRAMS, name
        bucket = bisect_left(BUCKETS, value)
        self._add_timings((name, tuple(labels.items())), {bucket: 1}, value)

    def take(self) -> Delta:
        """Return all values and reset them, so that another registry can add them up."""
        with self._lock:
            counts, self._counts = self._counts, {}
            timings, self._timings = self._timings, {}
        return Delta(
            [(name, labels, value) for (name, labels), value in counts.items() if value],
            [(name, labels, buckets, total) for (name, labels), (buckets, total) in timings.items()],
        )

    def add(self, delta: Delta) -> None:
        for name, labels, value in delta.counts:
            self.incr(name, value, **dict(labels))
        for name, labels, buckets, total in delta.timings:
            self._add_timings((name, labels), dict(enumerate(buckets)), total)

    def render(self, gauges: Sequence[Gauge] = ()) -> str:
        """Return all metrics in the text format of Prometheus."""
        with self._lock:
            counts = dict(self._counts)
            timings = {series: (list(buckets), total) for series, (buckets, total) in self._timings.items()}
        lines: list[str] = []
        for name, metric in COUNTERS.items():
            lines += _head(name, metric, "counter")
            lines += [_sample(exposed(n), labels, value) for (n, labels), value in sorted(counts.items()) if n == name]
        for name, metric in HISTOGRAMS.items():
            lines += _head(name, metric, "histogram")
            for (n, labels), (buckets, total) in sorted(timings.items()):
                if n == name:
                    lines += _histogram(exposed(name), labels, buckets, total)
        for name, metric in GAUGES.items():
            samples = [_sample(exposed(name), tuple(g.labels.items()), g.value) for g in gauges if g.name == name]
            lines += [*_head(name, metric, "gauge"), *samples] if samples else []
        return "\n".join(lines) + "\n"

    def _add_timings(self, series: Series, buckets: Mapping[int, int], total: float) -> None:
        with self._lock:
            counts, before = self._timings.get(series) or ([0] * (len(BUCKETS) + 1), 0.0)
            for bucket, count in buckets.items():
                counts[bucket] += count
            self._timings[series] = counts, before + total


def _head(name: str, metric: Metric, kind: str) -> list[str]:
    return [f"# HELP {exposed(name)} {metric.help}", f"# TYPE {exposed(name)} {kind}"]


def _histogram(name: str, labels: Labels, buckets: Sequence[int], total: float) -> list[str]:
    lines, so_far = [], 0
    for limit, count in zip((*map(str, BUCKETS), "+Inf"), buckets, strict=True):
        so_far += count
        lines.append(_sample(f"{name}_bucket", (*labels, ("le", limit)), so_far))
    return [*lines, _sample(f"{name}_sum", labels, total), _sample(f"{name}_count", labels, so_far)]


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
