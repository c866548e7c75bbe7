"""Write deploy/grafana/penstock.json: the dashboard of docs/how-to/observability.md. A test compares it with this."""

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

PAGE = Path(__file__).parents[1] / "deploy" / "grafana" / "penstock.json"
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
OURS = 'job=~"$job"'
P = TypeVar("P", stat.Panel, timeseries.Panel)
WIDTH, HEIGHT = 24, 8
NARROW = 4


class Panel(NamedTuple):
    title: str
    about: str
    unit: str
    queries: dict[str, str]
    """The PromQL by its legend."""


def _rate(name: str, by: str = "") -> str:
    return f"sum {by}(rate({name}{{{OURS}}}[$__rate_interval]))"


def _state(name: str, by: str = "", more: str = "") -> str:
    """A gauge of the ledger: every process shows the same value."""
    return f"max {by}({name}{{{OURS}{more}}})"


STEPS = _state("penstock_queue_depth", "by (kind, status) ")
AGE = _state("penstock_oldest_pending_age_seconds")
AWAY = _state("penstock_targets_away", "by (state) ")
LETTERS = _state("penstock_dead_letters_open")
BOUGHT = _state("penstock_spent_dollars", "by (kind) ", ', kind=~"bought|query"')
BUCKETS = _rate("penstock_step_duration_seconds_bucket", "by (kind, le) ")

NOW = (
    Panel("Workers", "Registered workers.", "short", {"workers": _state("penstock_workers")}),
    Panel("Waiting", "Steps that are not done.", "short", {"steps": f"sum({STEPS})"}),
    Panel("Oldest step", "Its age.", "s", {"age": AGE}),
    Panel("Dead letters", "Open ones.", "short", {"open": LETTERS}),
    Panel("Targets away", "Providers and stores.", "short", {"away": f"sum({AWAY})"}),
    Panel("Spent", "On providers, so far.", "currencyUSD", {"bought": f"sum({BOUGHT})"}),
)

ROWS: dict[str, tuple[Panel, ...]] = {
    "Queue": (
        Panel(
            "Queue age",
            "Age of the oldest pending step of each kind.",
            "s",
            {"{{kind}}": _state("penstock_oldest_pending_age_seconds", "by (kind) ")},
        ),
        Panel(
            "Queue depth",
            "Steps by status.",
            "short",
            {"{{status}}": f"sum by (status) ({STEPS})"},
        ),
        Panel("Documents", "By status.", "short", {"{{status}}": _state("penstock_documents", "by (status) ")}),
    ),
    "Throughput": (
        Panel(
            "Documents that ended",
            "Per second, by status.",
            "ops",
            {"{{status}}": _rate("penstock_document_ended_total", "by (status) ")},
        ),
        Panel(
            "Items",
            "Per second.",
            "ops",
            {name: _rate(f"penstock_{name}_total") for name in ("pages", "chunks", "embedded", "indexed")},
        ),
        Panel(
            "Duration of steps",
            "The 95th percentile of each kind.",
            "s",
            {"{{kind}}": f"histogram_quantile(0.95, {BUCKETS})"},
        ),
    ),
    "Failures": (
        Panel(
            "Reasons",
            "Documents that failed within an hour.",
            "short",
            {"{{reason}}": f"sum by (reason) (increase(penstock_failure_total{{{OURS}}}[1h])) > 0"},
        ),
        Panel("Dead letters", "Open ones.", "short", {"open": LETTERS}),
        Panel(
            "Attempts that failed",
            "Per second: tried again, ended as a dead letter, taken back from dead workers.",
            "ops",
            {
                "again": _rate("penstock_step_error_total"),
                "failed": _rate("penstock_step_failed_total"),
                "reaped": _rate("penstock_step_reset_by_reaper_total"),
            },
        ),
    ),
    "Providers and money": (
        Panel(
            "Throttling",
            "Calls per second that a provider refused.",
            "ops",
            {"{{target}}": _rate("penstock_call_throttled_total", "by (target) ")},
        ),
        Panel("Targets away", "By state.", "short", {"{{state}}": AWAY}),
        Panel(
            "Cost per hour",
            "Bought and saved, in US dollars.",
            "currencyUSD",
            {"{{kind}}": f"max by (kind) (delta(penstock_spent_dollars{{{OURS}}}[1h]))"},
        ),
    ),
    "Engine": (
        Panel(
            "Events",
            "Deliveries per second, and those that wait.",
            "short",
            {
                "delivered": _rate("penstock_event_delivered_total"),
                "failed": _rate("penstock_event_failed_total"),
                "waiting": _state("penstock_deliveries_waiting"),
            },
        ),
        Panel("Ledger commits", "Per second.", "ops", {"commits": _rate("penstock_ledger_commits_total")}),
        Panel(
            "Free disk",
            "Beside the reserve.",
            "bytes",
            {
                "{{instance}} {{place}}": f"min by (instance, place) (penstock_disk_free_bytes{{{OURS}}})",
                "reserve": _state("penstock_disk_reserve_bytes"),
            },
        ),
    ),
}


def page() -> str:
    board = (
        dashboard.Dashboard("Penstock")
        .uid("penstock")
        .tags(["penstock"])
        .refresh("30s")
        .time("now-6h", "now")
        .readonly()
        .with_variable(dashboard.DatasourceVariable("source").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("job")
            .label("Job")
            .datasource(SOURCE)
            .query("label_values(penstock_ledger_up, job)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .multi(True)
        )
    )
    for panel in NOW:
        one = stat.Panel().title(panel.title).description(panel.about).unit(panel.unit).datasource(SOURCE)
        board = board.with_panel(_with_queries(one.span(WIDTH // len(NOW)).height(NARROW), panel))
    for title, panels in ROWS.items():
        board = board.with_row(dashboard.Row(title))
        for panel in panels:
            plot = timeseries.Panel().title(panel.title).description(panel.about).unit(panel.unit).datasource(SOURCE)
            board = board.with_panel(_with_queries(plot.min(0).span(WIDTH // len(panels)).height(HEIGHT), panel))
    whole = json.loads(JSONEncoder().encode(board.build()))
    return json.dumps(_without_none(whole), indent=2, sort_keys=True) + "\n"


def _without_none(value: Any) -> Any:
    """Grafana takes a missing option as its default, but not one that is null."""
    if isinstance(value, dict):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, list) else value


def _with_queries(panel: P, queries: Panel) -> P:
    for number, (legend, query) in enumerate(queries.queries.items()):
        asked = prometheus.Dataquery().expr(query).legend_format(legend).ref_id(chr(ord("A") + number))
        panel = panel.with_target(asked)
    return panel


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
