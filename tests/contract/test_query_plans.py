"""I11, flat cost: the hot statements walk an index, whatever else the tables hold and whatever the statistics say."""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.ledger_kit import TABLES

from penstock.ledger import checkpoints, generations, queue, retention
from penstock.ledger.database import Connection, Database, Statement
from penstock.ledger.migrations import MIGRATIONS
from penstock.model.nouns import Owner, Token, WorkerId
from penstock.runtime import Runtime

MANY = 50_000
Verbs = dict[str, tuple[Statement, dict[str, Any], list[tuple[Any, ...]] | None]]

_CLAIM = {"count": 4, "token": "t", "lease_s": 1.0, "worker": "w"}
_KINDS = {"kind0": "extract", "kind1": "chunk", "kind2": "embed"}
HOT: Verbs = {
    "claim of one kind": (queue._claim_statement(1), {**_CLAIM, "kind0": "extract"}, None),
    "claim of three kinds": (queue._claim_statement(3), {**_CLAIM, **_KINDS}, None),
    "claim behind a key": (queue._CLAIM_KEYED, {**_CLAIM, "kind": "index", "key": "index:anna/default/1"}, None),
    "due": (queue._DUE, {"count": 100}, None),
    "expired": (queue._EXPIRED, {"count": 100}, None),
    "complete": (queue._COMPLETE, {}, [(7, "t", "{}"), (8, "t", "{}")]),
    "release": (queue._RELEASE, {}, [(7, "t", 1)]),
    "error": (queue._ERROR, {}, [(7, "t", "it broke", 1.0)]),
    "heartbeat": (queue._BEAT, {"lease_s": 1.0}, [(i, "t") for i in range(64)]),
    "heartbeat with signs": (queue._SIGN, {"lease_s": 1.0}, [(i, "t", None, 1, 9.0) for i in range(64)]),
    "overdue": (queue._OVERDUE, {"count": 100}, None),
    "checkpoint": (checkpoints._FORGIVE, {"lease_s": 1.0}, [(7, "t", None)]),
}
AT_ONCE = (
    "complete and chain",
    queue._complete_statement(True, True, True),
    [(7, "t", "{}", 1, "n", "chunk", None, "k", None, "CHUNKING", "text/plain", 1, "{}", 2, 1, "{}")],
)


def load(connection: Connection, rows: int, *, finished: str = "COMPLETED", kind: str = "extract") -> None:
    """Steps without documents: plans do not care, and it takes a second."""
    numbers = {
        "sqlite": f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT ",
        "postgres": "SELECT ",
    }[connection.dialect]
    source = {"sqlite": "FROM n", "postgres": f"FROM generate_series(1, {rows}) AS n(i)"}[connection.dialect]
    name = f"{kind}-{finished}-{rows}"
    connection.script(
        "INSERT INTO steps (run_id, position, document_id, generation_id, owner, snapshot, name, kind, status, "
        f"priority, rank, not_before, created_at) {numbers} '{name}-' || i, 0, 'd' || i, i, 'anna', 's', 'one', "
        f"'{kind}', '{finished}', 0, i, {'1e12' if finished == 'ERROR' else 'NULL'}, 0 {source}"
    )


def explain(connection: Connection, statement: Statement, params: dict[str, Any], rows: Any = None) -> str:
    word = "EXPLAIN QUERY PLAN " if connection.dialect == "sqlite" else "EXPLAIN "
    more = ",".join(f"{name} {kind}" for name, kind in statement.more)
    columns = ",".join(f"{name} {kind}" for name, kind in statement.columns)
    lines = connection.run(Statement(word + statement.text, columns, more), rows, [] if more else None, **params)
    return "\n".join(str(line[-1]) for line in lines)


def load_generations(connection: Connection, rows: int, hidden: int) -> None:
    numbers = {
        "sqlite": f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) ",
        "postgres": "",
    }[connection.dialect]
    source = {"sqlite": "FROM n", "postgres": f"FROM generate_series(1, {rows}) AS n(i)"}[connection.dialect]
    connection.script("INSERT INTO collections (owner, name, created_at) VALUES ('anna', 'default', 0)")
    connection.script(
        "INSERT INTO documents (id, owner, collection, source, name, size, sha256, status, created_at, updated_at) "
        f"{numbers} SELECT 'd' || i, 'anna', 'default', 's' || i, 'n', 1, 'h', 'COMPLETED', 0, 0 {source}"
    )
    connection.script(
        "INSERT INTO generations (document_id, owner, collection, index_version, state, written, raw_key, size, "
        f"sha256, created_at) {numbers} SELECT 'd' || i, 'anna', 'default', 1, "
        f"CASE WHEN i <= {hidden} THEN 'SUPERSEDED' ELSE 'ACTIVE' END, 1, 'k' || i, 1, 'h', 0 {source}"
    )


@pytest.fixture
def connect() -> Iterator[Callable[..., Connection]]:
    """connect(url): a connection to a ledger, made if it is an empty SQLite file; closed after the test."""
    runtime = Runtime()
    opened: list[Connection] = []

    def open_one(url: str, *, hot: bool = True) -> Connection:
        database = Database(url, runtime)
        connection = database.connect(hot=hot)
        opened.append(connection)
        if database.dialect == "sqlite":
            for text in (text for statements in MIGRATIONS for text in statements("sqlite")):
                connection.script(text)
        return connection

    yield open_one
    for connection in opened:
        connection.close()
    runtime.close()


Connect = Callable[..., Connection]


@pytest.mark.parametrize("analysed", [False, True])
def test_i11_on_sqlite_no_hot_statement_scans(tmp_path: Path, connect: Connect, analysed: bool) -> None:
    connection = connect(f"sqlite:///{tmp_path / 'l.db'}")
    if analysed:
        connection.begin()
        load(connection, MANY)
        load(connection, MANY, finished="PENDING", kind="embed")
        connection.commit()
        connection.script("ANALYZE")
    for name, (statement, params, rows) in HOT.items():
        plan = explain(connection, statement, params, rows)
        assert "SCAN steps" not in plan, f"{name}:\n{plan}"
    assert "USING INDEX steps_claim (" in explain(connection, *HOT["claim of one kind"])
    three = explain(connection, *HOT["claim of three kinds"])
    assert three.count("INDEX steps_claim (") == 3, three
    assert "INDEX steps_claim_keyed (resource_key=?)" in explain(connection, *HOT["claim behind a key"])
    assert "steps_backed_off" in explain(connection, *HOT["due"])


def _never_analysed(connection: Connection) -> None:
    load(connection, MANY)
    load(connection, MANY, finished="PENDING", kind="embed")


def _analysed(connection: Connection) -> None:
    _never_analysed(connection)
    load(connection, 1000, finished="ERROR")
    connection.script("ANALYZE")


def _analysed_while_small(connection: Connection) -> None:
    load(connection, 5)
    connection.script("ANALYZE")
    load(connection, MANY)


def _empty(connection: Connection) -> None:
    """As a worker finds it that plans before the first document comes."""


@pytest.mark.parametrize("prepare", [_never_analysed, _analysed, _analysed_while_small, _empty])
def test_i11_on_postgres_no_hot_statement_scans(
    fresh_postgres: str, connect: Connect, prepare: Callable[[Connection], None]
) -> None:
    connection = connect(fresh_postgres)
    prepare(connection)
    statements: Verbs = {**HOT, AT_ONCE[0]: (AT_ONCE[1], {"lease_s": 1.0, "worker": "w"}, AT_ONCE[2])}
    for name, (statement, params, rows) in statements.items():
        plan = explain(connection, statement, params, rows)
        assert "Seq Scan on steps" not in plan, f"{name}:\n{plan}"
        assert "Seq Scan on documents" not in plan, f"{name}:\n{plan}"
    one = explain(connection, *HOT["claim of one kind"])
    assert "using steps_claim on steps" in one, one
    assert "using steps_claim_keyed on steps" in explain(connection, *HOT["claim behind a key"])
    connection.close()


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_i11_what_search_must_hide_is_found_by_its_own_index(
    dialect: str, tmp_path: Path, connect: Connect, request: pytest.FixtureRequest, analysed: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'l.db'}" if dialect == "sqlite" else request.getfixturevalue("fresh_postgres")
    connection = connect(url, hot=False)
    connection.begin()
    load_generations(connection, MANY, hidden=20)
    connection.commit()
    if analysed:
        connection.script("ANALYZE")
    wanted = {"owner": "anna", "collection": "default", "version": 1, "count": 1000}
    assert "generations_hidden" in explain(connection, generations._HIDDEN, wanted)
    assert len(generations.hidden(Owner("anna"), connection, "default", 1, 1000)) == 20


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_i11_what_time_takes_is_found_by_its_own_index(
    dialect: str, tmp_path: Path, connect: Connect, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'l.db'}" if dialect == "sqlite" else request.getfixturevalue("fresh_postgres")
    hot, cold = connect(url), connect(url, hot=False) if dialect == "postgres" else None
    hot.begin()
    load_generations(hot, MANY, hidden=20)
    hot.commit()
    hot.script("UPDATE generations SET flipped_at = id, artifacts_dropped_at = CASE WHEN id % 1000 > 0 THEN 1 END")
    hot.script("ANALYZE")
    kept = {"collection": "default", "time": -1.0, "generation": 0, "kept_s": 0.0, "count": 100}
    assert "generations_kept" in explain(cold or hot, retention._DROPPABLE, kept)
    assert len(retention.droppable(cold or hot, "default", 0.0, (-1.0, 0), 100)) == MANY // 1000
    assert "generations_purged" in explain(hot, retention._PURGED, {"older": 1.0, "after": 0, "count": 100})
    for statement in (*retention._WITH_RUNS, *retention._WITH_GENERATIONS, *retention._WITH_DOCUMENTS):
        [(_, kind)] = statement.columns
        plan = explain(hot, statement, {}, [("x",) if kind == "text" else (1,)])
        table = statement.text.split()[2]
        assert f"SCAN {table}" not in plan, plan
        assert f"Seq Scan on {table}" not in plan, plan


def test_the_writer_s_connection_plans_by_key(fresh_postgres: str, connect: Connect) -> None:
    hot, cold = connect(fresh_postgres), connect(fresh_postgres, hot=False)
    for setting, value in (
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
    ):
        assert hot.script(f"SHOW {setting}") == [(value,)]
        assert cold.script(f"SHOW {setting}") != [(value,)]


def _p50(connection: Connection, repeats: int = 60) -> float:
    """Seconds that a claim of four takes; what it claimed is given back."""
    taken: list[float] = []
    for _ in range(repeats):
        token = Token(f"t{len(taken)}")
        request = queue.ClaimRequest(WorkerId("w"), ("extract", "chunk", "clean"), 4, token, 60.0)
        began = time.perf_counter()
        connection.begin()
        [steps] = queue.CLAIM.function(connection, [request])
        connection.commit()
        taken.append(time.perf_counter() - began)
        assert len(steps) == 4
        queue.RELEASE.function(connection, [queue.Release(step, give_back=True) for step in steps])
    return statistics.median(taken)


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_i11_a_claim_costs_the_same_among_many_other_rows(
    dialect: str, tmp_path: Path, connect: Connect, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'l.db'}" if dialect == "sqlite" else request.getfixturevalue("fresh_postgres")
    connection = connect(url)
    load(connection, 1000, finished="PENDING")
    few = _p50(connection)
    connection.begin()
    load(connection, 100_000)
    load(connection, 100_000, finished="PENDING", kind="embed")
    load(connection, 20_000, finished="ERROR")
    connection.commit()
    many = _p50(connection)
    assert many < 3 * few + 0.001, f"{few * 1000:.2f} ms became {many * 1000:.2f} ms"
    connection.close()


def test_the_kit_names_every_table_of_the_ledger(tmp_path: Path, connect: Connect) -> None:
    connection = connect(f"sqlite:///{tmp_path / 'l.db'}")
    names = connection.script("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    assert {row[0] for row in names} == {*TABLES, "snapshots"}
