"""I11, flat cost: the hot statements walk an index, whatever else the tables hold and whatever the statistics say."""

import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import flat
from benchmarks.flat import fill
from tests.kit.ledger import TABLES

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.migrations import MIGRATIONS
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import (
    answers,
    checkpoints,
    children,
    claims,
    collections,
    completions,
    documents,
    failures,
    forgotten,
    generations,
    index_versions,
    leasing,
    limits,
    postgres_statements,
    refusals,
    releases,
    revisions,
    small_blobs,
    work,
)
from penstock.ledger.reads import feed, stats
from penstock.ledger.upkeep import evictions, retention
from penstock.model.nouns import Owner
from penstock.runtime import Runtime

MANY = 50_000
Verbs = dict[str, tuple[Statement, dict[str, Any], list[tuple[Any, ...]] | None]]

_CLAIM = {"count": 4, "token": "t", "lease_s": 1.0, "worker": "w"}
_KINDS = {"kind0": "extract", "kind1": "chunk", "kind2": "embed"}
_DIGESTS, _DOCUMENTS = [("d1",), ("d2",)], [("d1",), ("d2",)]
_PARENT = {"owner": "anna", "parent": "d1"}
_PLACE = {"owner": "anna", "collection": "default"}
_RANGE = {"low": "s1", "high": "s2", "after": "s11", "last": "d1", "count": 9}
HOT: Verbs = {
    "claim of one kind": (claims._claim_statement(1), {**_CLAIM, "kind0": "extract"}, None),
    "claim of three kinds": (claims._claim_statement(3), {**_CLAIM, **_KINDS}, None),
    "claim behind a key": (claims._CLAIM_KEYED, {**_CLAIM, "kind": "index", "key": "index:anna/default/1"}, None),
    "changes": (feed._CHANGED, {"owner": "anna", "at": 9e9, "document": "", "count": 9}, None),
    "claim by number": (claims._CLAIM_THESE, _CLAIM, [(7,), (8,)]),
    "steps that wait": (claims._WAITING, {"kind": "extract", "count": 256}, None),
    "due": (leasing._DUE, {"count": 100}, None),
    "expired": (leasing._EXPIRED, {"count": 100}, None),
    "complete": (completions._COMPLETE, {}, [(7, "t", "{}"), (8, "t", "{}")]),
    "release": (releases._RELEASE, {}, [(7, "t", 1, None)]),
    "error": (failures._ERROR, {}, [(7, "t", "it broke", 1.0)]),
    "heartbeat": (leasing._BEAT, {"lease_s": 1.0}, [(i, "t") for i in range(64)]),
    "heartbeat with signs": (leasing._SIGN, {"lease_s": 1.0}, [(i, "t", None, 1, 9.0) for i in range(64)]),
    "slots of a target": (limits._SLOTS, {"name": "azure"}, None),
    "slots that lapsed": (limits._LAPSED, {"name": "azure"}, None),
    "slots of dead workers": (limits.FREE, {}, [("w1",), ("w2",)]),
    "bought answers": (answers._FIND, {"owner": "anna", "touch_s": 1.0}, [("d1",), ("d2",)]),
    "an operation": (answers._OPERATION, {"owner": "anna", "digest": "d1"}, None),
    "the pace of a target": (limits._LOOK, {"name": "azure"}, None),
    "slots that are given back": (limits._GIVE_BACK, {"name": "azure", "worker": "w"}, None),
    "bought answers that were used": (answers._TOUCH, {}, [(1,), (2,)]),
    "operations that ended": (answers._END, {"owner": "anna"}, _DIGESTS),
    "bought answers to forget": (answers._FORGET, {"owner": "anna"}, _DIGESTS),
    "segments without answers": (answers.EMPTY, {}, [(1,), (2,)]),
    "answers of segments": (evictions._TAKE_OUT, {}, [(1,), (2,)]),
    "small blobs": (small_blobs._GET, {}, [("k1",), ("k2",)]),
    "sizes of small blobs": (small_blobs._SIZES, {}, [("k1",), ("k2",)]),
    "small blobs to delete": (small_blobs._DELETE, {}, [("k1",), ("k2",)]),
    "a page of small blobs": (small_blobs._LIST, {"after": "k1", "until": "k2", "count": 9}, None),
    "steps that a target holds": (refusals._GO_ON, {"name": "azure"}, None),
    "steps that failed at a target": (refusals._FAILED_HERE, {"name": "azure"}, None),
    "the parent of children": (children._HOLD, {"owner": "anna"}, _DOCUMENTS),
    "the lease of a parent": (children._LEASED, {"step": 7, "token": "t"}, None),
    "children to hold": (children._CHILDREN, {"owner": "anna"}, _DOCUMENTS),
    "children that are gone": (children._GONE, {**_PARENT, "generation": 7, "count": 9}, None),
    "children to adopt": (children._ADOPT, {**_PARENT, "root": "d1", "depth": 1, "generation": 7}, _DOCUMENTS),
    "children of a level": (children._LEVEL, {"owner": "anna"}, _DOCUMENTS),
    "children of new runs": (children._WORKED_ON, {"owner": "anna"}, _DOCUMENTS),
    "children that have not ended": (children._UNFINISHED, {"owner": "anna"}, _DOCUMENTS),
    "children by status": (children._COUNTS, _PARENT, None),
    "what children inherit": (children._ORIGIN, {"owner": "anna", "run": "r1"}, None),
    "the newest of a collection": (collections._NEWEST, _PLACE, None),
    "the rest of a collection": (collections._LEFT, {**_PLACE, "upto": "d7", "count": 9}, None),
    "documents by path": (documents._SOURCED[False], {"owner": "anna", **_RANGE}, None),
    "documents of a collection by path": (documents._SOURCED[True], {**_PLACE, **_RANGE}, None),
    "documents below a folder": (documents._UNDER, {**_PLACE, "low": "s1", "high": "s2"}, None),
    "versions of a collection": (index_versions._CURRENT, _PLACE, None),
    "revisions": (revisions._OF, _PLACE, [("s1",), ("s2",)]),
    "new revisions": (revisions._REVISE, {"owner": "anna"}, [("d1", "h", "etag")]),
    "sources to remember": (forgotten._REMEMBER, {**_PLACE, "source": "s1"}, None),
    "sources that were deleted": (forgotten._DELETED, _PLACE, [("s1",), ("s2",)]),
    "steps at rest": (leasing._AT_REST, {}, [(i,) for i in range(64)]),
    "steps still ours": (leasing._STILL_OURS, {}, [(i, "t") for i in range(64)]),
    "overdue": (leasing._OVERDUE, {"count": 100}, None),
    "checkpoint": (checkpoints._FORGIVE, {"lease_s": 1.0, "limit": 9}, [(7, "t", None, 1)]),
}
_NEW = {
    "owner": "anna", "collection": "default", "snapshot": "s", "body": "{}", "settings": "s", "settings_body": "s:",
    "priority": 0,
    "batch": None, "step": "one", "kind": "extract", "pool": None, "key": None, "family": "g", "workflow": "w",
    "params": None, "tells_end": 0, "sealed": 1, "submit_s": 300.0, "notifies": False,
    "entry": "PENDING", "run_status": "OPEN",
}  # fmt: skip
SINGLE: Verbs = {
    "complete and chain": (
        postgres_statements.complete(True, True, True, True),
        {"lease_s": 1.0, "worker": "w"},
        [(7, "t", "{}", 1, "n", "chunk", None, "k", None, "CHUNKING", "text/plain", 1, "{}", 2, 1, "{}")],
    ),
    "claim in a single statement": (postgres_statements.claim(3), {**_CLAIM, **_KINDS}, None),
    "enter": (
        postgres_statements.submit(True, True, True, False),
        _NEW,
        [("r", "d", "k", 1, "h", "g", b"x", "/a", "a", "{}")],
    ),
    "enter held": (
        postgres_statements.submit(True, False, False, True),
        {**_NEW, "entry": "HELD", "run_status": "HELD"},
        [("r", "d", "k", 1, "h", None, "/a", "a", "{}")],
    ),
    "begin": (postgres_statements.submit(False, False, False, False), _NEW, [("r", "d", "k", 1, "h", None)]),
}
"""Those of PostgreSQL alone."""
_READ = (
    "bought answers", "an operation", "small blobs", "sizes of small blobs", "a page of small blobs",
    "children of a level", "children of new runs", "children that have not ended", "children by status",
    "what children inherit", "the rest of a collection", "revisions", "sources that were deleted",
    "documents by path", "documents of a collection by path", "documents below a folder",
)  # fmt: skip
"""Those that are also read outside of the writer's connection, which plans by statistics."""
_BY_OWNER = re.compile(r"INDEX \w+ \(owner=\?(?: AND status=\?)?\)|Index Cond: \(+owner = [^)]*\)+(?! AND)")
"""An index of which all entries of an owner are read."""


def explain(connection: Connection, statement: Statement, params: dict[str, Any], rows: Any = None) -> str:
    word = "EXPLAIN QUERY PLAN " if connection.dialect == "sqlite" else "EXPLAIN "
    more = ",".join(f"{name} {kind}" for name, kind in statement.more)
    columns = ",".join(f"{name} {kind}" for name, kind in statement.columns)
    lines = connection.run(Statement(word + statement.text, columns, more), rows, [] if more else None, **params)
    return "\n".join(str(line[-1]) for line in lines)


def scans(statement: Statement, plan: str) -> list[str]:
    """The tables that a statement reads whole, by name or alias, and the indexes that it reads for all of an owner."""
    tables = "|".join(TABLES)
    aliases = {alias for _, alias in re.findall(rf"\b({tables})(?: AS)? (\w+)", statement.text)}
    whole = {found for found in re.findall(r"SCAN (\w+)(?! CONSTANT)", plan) if found in {*TABLES, *aliases}}
    whole |= {found for found in re.findall(r"Seq Scan on (\w+)", plan) if found in TABLES}
    return [*whole, *_BY_OWNER.findall(plan)]


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
    connection.script("INSERT INTO placements (generation_id, version, state) SELECT id, 1, 'READY' FROM generations")


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
        fill(connection, MANY, "COMPLETED")
        fill(connection, MANY, kind="embed")
        connection.commit()
        connection.script("ANALYZE")
    for name, (statement, params, rows) in HOT.items():
        plan = explain(connection, statement, params, rows)
        assert not scans(statement, plan), f"{name}:\n{plan}"
    assert "USING INDEX steps_claim (" in explain(connection, *HOT["claim of one kind"])
    three = explain(connection, *HOT["claim of three kinds"])
    assert three.count("INDEX steps_claim (") == 3, three
    assert "INDEX steps_claim_keyed (resource_key=?)" in explain(connection, *HOT["claim behind a key"])
    assert "steps_backed_off" in explain(connection, *HOT["due"])


def _never_analysed(connection: Connection) -> None:
    fill(connection, MANY, "COMPLETED")
    fill(connection, MANY, kind="embed")


def _analysed(connection: Connection) -> None:
    _never_analysed(connection)
    fill(connection, 1000, "ERROR", not_before="1e12")
    connection.script("ANALYZE")


def _analysed_while_small(connection: Connection) -> None:
    fill(connection, 5, "COMPLETED", first=MANY)
    connection.script("ANALYZE")
    fill(connection, MANY, "COMPLETED")


def _empty(connection: Connection) -> None:
    """As a worker finds it that plans before the first document comes."""


@pytest.mark.parametrize("prepare", [_never_analysed, _analysed, _analysed_while_small, _empty])
def test_i11_on_postgres_no_hot_statement_scans(
    fresh_postgres: str, connect: Connect, prepare: Callable[[Connection], None]
) -> None:
    connection = connect(fresh_postgres)
    prepare(connection)
    for name, (statement, params, rows) in (HOT | SINGLE).items():
        plan = explain(connection, statement, params, rows)
        assert not scans(statement, plan), f"{name}:\n{plan}"
    one = explain(connection, *HOT["claim of one kind"])
    assert "using steps_claim on steps" in one, one
    assert "using steps_claim_keyed on steps" in explain(connection, *HOT["claim behind a key"])
    # An index that is only filtered is read to its end.
    assert "Index Cond: (not_before <=" in explain(connection, *HOT["due"])
    assert "Index Cond: (lease_until <" in explain(connection, *HOT["expired"])


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
    wanted = {"owner": "anna", "collection": "default", "version": 1}
    assert "generations_hidden" in explain(connection, generations._HIDDEN, wanted)
    assert len(generations.hidden(Owner("anna"), connection, "default", 1)) == 20


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_i11_what_is_looked_up_by_a_key_is_found_by_an_index(
    dialect: str, tmp_path: Path, connect: Connect, request: pytest.FixtureRequest, analysed: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'l.db'}" if dialect == "sqlite" else request.getfixturevalue("fresh_postgres")
    connection = connect(url, hot=False)
    connection.begin()
    load_generations(connection, MANY // 5, hidden=0)
    connection.script(
        "UPDATE documents SET parent_id = 'd' || substr(id, 1, 3), status = 'PENDING' WHERE id LIKE 'd%7'"
    )
    for text in (
        "INSERT INTO snapshots (hash, body, added_at) VALUES ('s', '{}', 0)",
        "INSERT INTO run_settings (fingerprint, body) SELECT id, 'x' FROM documents",
        "INSERT INTO runs (id, document_id, generation_id, owner, snapshot, settings, status, priority, rank, "
        "created_at) SELECT 'r' || id, document_id, id, owner, 's', 's', 'COMPLETED', 0, id, 0 FROM generations",
        "INSERT INTO small_blobs (key, data, added_at) SELECT id, 'x', 0 FROM documents",
        "INSERT INTO answer_segments (owner, key, sha256, size, used_at) SELECT owner, id, 'h', 1, 0 FROM documents",
        "INSERT INTO answers (owner, digest, segment_id, position, size) SELECT owner, key, id, 0, 1 "
        "FROM answer_segments",
        "INSERT INTO operations (owner, digest, operation, started_at) SELECT owner, id, 'o', 0 FROM documents",
    ):
        connection.script(text)
    connection.commit()
    if analysed:
        connection.script("ANALYZE")
    for name in _READ:
        statement, params, rows = HOT[name]
        plan = explain(connection, statement, params, rows)
        assert not scans(statement, plan), f"{name}:\n{plan}"


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


CROWD = 20_000


def all_crowds(connection: Connection, count: int) -> None:
    for crowd, _ in flat.CROWDS.values():
        crowd(connection, count)


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_i11_a_verb_costs_the_same_beside_a_crowd(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """`make bench ARGS=flat` made short; what is not flat costs ten times as much already here, each time that it is
    measured. A busy machine disturbs one measurement."""

    def make(name: str) -> str:
        made: str = request.getfixturevalue("make_postgres")() if dialect == "postgres" else ""
        return made or f"sqlite:///{tmp_path / name}.db"

    for measurement in range(3):
        few, many = make(f"few{measurement}"), make(f"many{measurement}")
        found = flat.compare(flat.make(few), flat.make(many), all_crowds, CROWD, calls=30, warm_up=5)
        medians = {verb: [statistics.median(side) for side in (times.few, times.many)] for verb, times in found.items()}
        slower = {verb: times for verb, times in medians.items() if times[1] >= 3 * times[0] + 0.001}
        if not slower:
            return
    raise AssertionError(f"seconds beside few and many others: {slower}")


def test_the_kit_names_every_table_of_the_ledger(tmp_path: Path, connect: Connect) -> None:
    connection = connect(f"sqlite:///{tmp_path / 'l.db'}")
    names = connection.script("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    assert {row[0] for row in names} == {*TABLES, "snapshots", "positions"}


def _many_steps(connection: Connection) -> None:
    """As after a long time: all have ended, but for a few."""
    load_generations(connection, MANY, hidden=0)
    for status in ("PENDING", "FAILED"):
        connection.script(f"UPDATE documents SET status = '{status}' WHERE id IN ('d7', 'd70', 'd700')")
    fill(connection, MANY, "COMPLETED")


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_i11_what_a_person_looks_at_is_found_by_its_own_index(
    dialect: str, tmp_path: Path, connect: Connect, request: pytest.FixtureRequest, analysed: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'l.db'}" if dialect == "sqlite" else request.getfixturevalue("fresh_postgres")
    connection = connect(url, hot=False)
    connection.begin()
    _many_steps(connection)
    connection.commit()
    if analysed:
        connection.script("ANALYZE")
    steps = explain(connection, stats._STEPS, {"owner": "anna"})
    # What runs and what is backed off have an index of their own, which may be read whole.
    assert not re.search(r"SCAN (steps|documents)(?! USING)|Seq Scan on (steps|documents)", steps), steps
    ended = explain(connection, stats._FAILED_STEPS, {"owner": "anna"})
    assert "steps_failed" in ended, ended
    failed = {"owner": "anna", "status": "FAILED", "count": 100}
    for goes_on in (False, True):
        before = {"before": "d8"} if goes_on else {}
        plan = explain(connection, documents._LISTS[True, False, goes_on], failed | before)
        # PostgreSQL analyses by itself, soon after much has changed.
        assert "documents_status" in plan or (dialect == "postgres" and not analysed), plan
        if dialect == "sqlite":
            assert "TEMP B-TREE" not in plan, plan
    listed = documents.newest(Owner("anna"), connection, status="FAILED", collection="", before="d700", count=1)
    assert [one.document.id for one in listed] == ["d70"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_new_snapshots_are_found_by_when_they_came(
    dialect: str, tmp_path: Path, connect: Connect, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'l.db'}" if dialect == "sqlite" else request.getfixturevalue("fresh_postgres")
    connection = connect(url, hot=False)
    connection.begin()
    for i in range(3000):
        connection.script(f"INSERT INTO snapshots (hash, body, added_at) VALUES ('h{i}', '{{}}', {1000 * i})")
    connection.commit()
    connection.script("ANALYZE")
    found, until = work.snapshots(connection, 0.0)
    assert (len(found), until) == (3000, 2_999_000.0 - work.COMMITTED_S)
    assert "snapshots_added" in explain(connection, work._ADDED, {"since": until})
    connection.script(f"INSERT INTO snapshots (hash, body, added_at) VALUES ('late', '{{}}', {until + 1})")
    assert set(work.snapshots(connection, until)[0]) == {"h2999", "late"}
    assert work.snapshots(connection, 1e12) == ({}, 1e12)
