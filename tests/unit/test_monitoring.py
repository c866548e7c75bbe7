"""Alerts and dashboard ask only for metrics that a worker serves."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from scripts import grafana

from penstock.cli.metrics import ledger_gauges, registry_for
from penstock.config import Config
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.metrics.base import COUNTERS, HISTOGRAMS
from penstock.runtime import Runtime

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
TESTS = RULES.with_name("rules_test.yml")
ADDED = {"job", "instance", "le"}
"""Labels that Prometheus adds, and that of the buckets."""
SET_BY_GRAFANA = {"$__rate_interval": "5m", "$job": ".*"}


@pytest.fixture
def served(tmp_path: Path) -> dict[str, set[str]]:
    """The labels of each metric that a worker serves, once all of them have happened."""
    settings = Config(home=str(tmp_path))
    Ledger(Database(settings.database_url, Runtime()))._open(True)
    registry = registry_for(None)
    for name, metric in COUNTERS.items():
        registry.incr(name, 1, **dict.fromkeys(metric.labels, "x"))
    for name, metric in HISTOGRAMS.items():
        registry.observe(name, 1.0, **dict.fromkeys(metric.labels, "x"))
    gauges = ledger_gauges(settings)
    text = registry.render(gauges())
    gauges.close()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        for target in panel.get("targets", ()):
            yield target["expr"]
        yield from queries(panel.get("panels", []))


def asked(query: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that a query names."""
    metrics: set[str] = set()
    labels: set[str] = set()

    def visit(node: object) -> None:
        match node:
            case promql_parser.VectorSelector():
                metrics.add(str(node.name))
                labels.update(matcher.name for matcher in node.matchers.matchers)
            case promql_parser.AggregateExpr() if node.modifier is not None:
                labels.update(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(query), visit)
    return metrics, labels


def check(query: str, served: dict[str, set[str]]) -> None:
    metrics, labels = asked(query)
    assert metrics, f"it asks for no metric: {query}"
    assert metrics <= set(served), f"no worker serves {metrics - set(served)}"
    there = ADDED | {label for metric in metrics for label in served[metric]}
    assert labels <= there, f"{metrics} have no label {labels - there}"


def test_alerts_ask_for_what_is_served(served: dict[str, set[str]]) -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    names = [rule["alert"] for rule in rules]
    assert len(names) == len(set(names)) >= 10
    for rule in rules:
        check(rule["expr"], served)
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "action"} <= set(rule["annotations"])
    tested = TESTS.read_text()
    assert [name for name in names if f"alertname: {name}}}" not in tested] == [], "when nothing is wrong"
    assert [name for name in names if f'"{name}"' not in tested and f"alertname: {name}\n" not in tested] == []


def test_alerts_fire_when_they_must() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt install prometheus")
    done = subprocess.run([promtool, "test", "rules", TESTS], cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_what_the_script_writes() -> None:
    assert grafana.PAGE.read_text(encoding="utf-8") == grafana.page(), "run `python scripts/grafana.py`"


def test_the_dashboard_asks_for_what_is_served(served: dict[str, set[str]]) -> None:
    found = list(queries(json.loads(grafana.PAGE.read_text(encoding="utf-8"))["panels"]))
    assert len(found) >= 20
    for query in found:
        for variable, value in SET_BY_GRAFANA.items():
            query = query.replace(variable, value)
        check(query, served)
    whole = " ".join(found)
    for metric in (
        "oldest_pending_age_seconds",
        "pages_total",
        "failure_total",
        "call_throttled_total",
        "spent_dollars",
    ):
        assert f"penstock_{metric}" in whole
