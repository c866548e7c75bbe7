"""Every adapter of the metrics port counts alike, and Prometheus can read it."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.metrics.base import BUCKETS, COUNTERS, HISTOGRAMS, Metrics, exposed
from penstock.metrics.prometheus import PrometheusMetrics
from penstock.metrics.registry import Gauge, Registry

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


class Adapter(NamedTuple):
    metrics: Metrics
    text: Callable[[], str]

    def value(self, name: str, **labels: str) -> float:
        return samples(self.text())[name, frozenset(labels.items())]


@pytest.fixture(params=["registry", "prometheus"])
def adapter(request: pytest.FixtureRequest) -> Adapter:
    if request.param == "registry":
        registry = Registry()
        return Adapter(registry, registry.render)
    collected = CollectorRegistry()
    return Adapter(PrometheusMetrics(collected), lambda: generate_latest(collected).decode())


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_counter_adds_up_by_its_labels(adapter: Adapter) -> None:
    adapter.metrics.incr("step_completed", kind="chunk")
    adapter.metrics.incr("step_completed", 3, kind="chunk")
    adapter.metrics.incr("step_completed", kind="embed")
    adapter.metrics.incr("pages", 7)
    assert adapter.value("penstock_step_completed_total", kind="chunk") == 4
    assert adapter.value("penstock_step_completed_total", kind="embed") == 1
    assert adapter.value("penstock_pages_total") == 7
    assert adapter.value("penstock_chunks_total") == 0, "there from the beginning"


def test_a_histogram_counts_what_is_not_above_each_limit(adapter: Adapter) -> None:
    for seconds in (0.0, 0.001, 0.2, 7.0, 1e6):
        adapter.metrics.observe("claim_duration", seconds, pool="*")
    name = "penstock_claim_duration_seconds"
    counts = [adapter.value(f"{name}_bucket", pool="*", le=le) for le in ("0.001", "0.1", "0.25", "10.0", "+Inf")]
    assert counts == [2, 2, 3, 4, 5]
    assert adapter.value(f"{name}_count", pool="*") == 5
    assert adapter.value(f"{name}_sum", pool="*") == pytest.approx(1_000_007.201)


def test_all_names_are_known_and_read_alike(adapter: Adapter) -> None:
    for name, metric in COUNTERS.items():
        adapter.metrics.incr(name, 1, **dict.fromkeys(metric.labels, "x"))
    for name, metric in HISTOGRAMS.items():
        adapter.metrics.observe(name, 1.0, **dict.fromkeys(metric.labels, "x"))
    read = {name for name, _ in samples(adapter.text())}
    assert {exposed(name) for name in COUNTERS} <= read
    assert {f"{exposed(name)}_count" for name in HISTOGRAMS} <= read
    kinds = {family.name: family.type for family in text_string_to_metric_families(adapter.text())}
    assert all(kinds[f"penstock_{name}"] == "counter" for name in COUNTERS)
    assert all(kinds[exposed(name)] == "histogram" for name in HISTOGRAMS)


@pytest.mark.usefixtures("quick_switches")
def test_nothing_is_lost_between_threads(adapter: Adapter) -> None:
    def work(_: int) -> None:
        for i in range(20_000):
            adapter.metrics.incr("ledger_commits")
            if i % 10 == 0:
                adapter.metrics.observe("step_duration", 0.5, kind="index")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert adapter.value("penstock_ledger_commits_total") == 80_000
    assert adapter.value("penstock_step_duration_seconds_count", kind="index") == 8_000


def test_what_several_processes_counted_is_added_up() -> None:
    total, children = Registry({"kind": ["chunk"]}), [Registry(), Registry()]
    for child in children:
        for _ in range(2):
            child.incr("step_completed", kind="chunk")
            child.observe("step_duration", 0.02, kind="chunk")
            total.add(child.take())
    assert not children[0].take().counts, "nothing is sent twice"
    read = samples(total.render())
    chunk = ("kind", "chunk")
    assert read["penstock_step_completed_total", frozenset([chunk])] == 4
    assert read["penstock_step_duration_seconds_bucket", frozenset([chunk, ("le", "0.01")])] == 0
    assert read["penstock_step_duration_seconds_bucket", frozenset([chunk, ("le", "0.025")])] == 4
    assert read["penstock_step_duration_seconds_sum", frozenset([chunk])] == pytest.approx(0.08)


def test_what_stands_in_a_label_cannot_break_the_text() -> None:
    odd = 'a"b\\c\nd'
    registry = Registry()
    registry.incr("step_failed", kind=odd)
    gauge = Gauge("queue_depth", 3, {"kind": odd, "status": "PENDING"})
    read = samples(registry.render([gauge, Gauge("ledger_up", 1)]))
    assert read["penstock_step_failed_total", frozenset([("kind", odd)])] == 1
    assert read["penstock_queue_depth", frozenset([("kind", odd), ("status", "PENDING")])] == 3
    assert read["penstock_ledger_up", frozenset()] == 1


def test_known_labels_begin_at_zero() -> None:
    read = samples(Registry({"kind": ["chunk", "embed"], "pool": ["*"]}).render())
    assert read["penstock_step_failed_total", frozenset([("kind", "embed")])] == 0
    assert read["penstock_claim_error_total", frozenset([("pool", "*")])] == 0
    assert read["penstock_lease_lost_total", frozenset([("phase", "complete")])] == 0


def test_limits_rise() -> None:
    assert list(BUCKETS) == sorted(set(BUCKETS))
