"""What pages ask of a large ledger walks an index."""

from pathlib import Path
from typing import Any

import pytest
from tests.ledger.test_query_plans import Connect, explain, load_generations, scans
from tests.ledger.test_query_plans import connect as connect

from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import samples
from penstock.ledger.reads import history, related, stats
from penstock.model.states import StepStatus

MANY = 10_000
LARGE = {"documents", "d", "generations", "g"}
"""The tables that are filled here. The others are empty, and a database may scan them."""
_PAGE = {"owner": "anna", "count": 100}
_STEPS = {"owner": "anna", "kind": "", "stuck_s": -1.0, "count": 100}
_WINDOW = {"owner": "anna", "width": 60, "first": 0}
ASKED: dict[str, tuple[Statement, dict[str, Any]]] = {
    "documents of a reason": (related._OF_REASON[False], {**_PAGE, "reason": "bad"}),
    "more documents of a reason": (related._OF_REASON[True], {**_PAGE, "reason": "bad", "before": "d5"}),
    "how many of a reason": (related._COUNT, {"owner": "anna", "reason": "bad", "most": 100}),
    "documents inside": (related._LISTS["parent", False], {**_PAGE, "value": "d1"}),
    "documents of a batch": (related._LISTS["batch", True], {**_PAGE, "value": "monday", "before": "d5"}),
    "documents of a group": (related._LISTS["group", True], {**_PAGE, "value": "g", "before": "d5"}),
    "documents changed since": (related._LISTS["updated_since", False], {**_PAGE, "value": 2e12}),
    "oldest": (history._OLDEST, {"owner": "anna"}),
    "samples of steps": (samples._STEP_SLOTS, _WINDOW),
    "samples of the queue": (samples._QUEUE_SLOTS, _WINDOW),
    "old samples": (samples._OLD_QUEUES, _WINDOW),
}


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_i11_what_pages_ask_walks_an_index(
    dialect: str, tmp_path: Path, connect: Connect, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'l.db'}" if dialect == "sqlite" else request.getfixturevalue("fresh_postgres")
    connection = connect(url, hot=False)
    connection.begin()
    load_generations(connection, MANY, hidden=0)
    for status in ("PENDING", "FAILED"):
        connection.script(f"UPDATE documents SET status = '{status}' WHERE id LIKE 'd%7'")
    connection.commit()
    if dialect == "postgres":
        connection.script("ANALYZE")
    for name, (statement, params) in ASKED.items():
        plan = explain(connection, statement, params)
        assert not LARGE.intersection(scans(statement, plan)), f"{name}:\n{plan}"


def test_i11_on_sqlite_steps_are_found_by_their_status(tmp_path: Path, connect: Connect) -> None:
    connection = connect(f"sqlite:///{tmp_path / 'l.db'}", hot=False)
    indexes = {
        StepStatus.RUNNING: "steps_running",
        StepStatus.ERROR: "steps_backed_off",
        StepStatus.FAILED: "steps_failed",
        StepStatus.CANCELLED: "steps_failed",
    }
    for status, index in indexes.items():
        plan = explain(connection, stats._OF_STATUS[status], _STEPS)
        assert f"INDEX {index}" in plan, plan
