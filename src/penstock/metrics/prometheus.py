"""Metrics in a registry of prometheus-client, for a program that already uses one."""

from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.metrics.base import BUCKETS, COUNTERS, HISTOGRAMS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class PrometheusMetrics:
    """`open_app(metrics=PrometheusMetrics())`. `registry` defaults to the global registry of prometheus-client. Create
    one instance per registry; several apps can share it."""

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        try:
            from prometheus_client import REGISTRY, Counter, Histogram
        except ImportError as error:
            raise ConfigError(
                "PrometheusMetrics needs the metrics extra: pip install 'penstock-rag[metrics]' (in a checkout: "
                "pip install '.[metrics]')"
            ) from error
        where = REGISTRY if registry is None else registry
        self._counters = {
            name: Counter(name, metric.help, metric.labels, namespace="penstock", registry=where)
            for name, metric in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(
                name, metric.help, metric.labels, namespace="penstock", unit="seconds", registry=where, buckets=BUCKETS
            )
            for name, metric in HISTOGRAMS.items()
        }

    def incr(self, name: str, value: int = 1, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        histogram = self._histograms[name]
        (histogram.labels(**labels) if labels else histogram).observe(value)
