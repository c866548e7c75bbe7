"""The index in PostgreSQL with the extension pgvector: one table per (owner, collection, version) in the schema
`penstock_index`.

PostgreSQL allows many writers and replaces rows by id, so no lock is needed. If the ledger is in the same database, a
search reads both in one snapshot: its statement joins the active generations (`Filter.joined`).

A table is searched without an approximate index until it has HNSW_ROWS rows. Then it gets an HNSW index, which the
server maintains. A filter does not make it miss rows, because the scan of the index continues until it has enough."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from threading import Event
from typing import Any, TypeVar

import numpy as np

from penstock.errors import ConfigError, UsageError
from penstock.indexes import pg_text
from penstock.indexes.base import (
    EVERYTHING,
    Fence,
    Filter,
    IndexHit,
    IndexRows,
    Query,
    RowSpan,
    StoredRow,
    TableId,
    TextField,
    Traits,
    VectorQuery,
)
from penstock.indexes.checks import TableGone, check_names, check_width, mismatch
from penstock.indexes.pg_connections import Connections, Missing, Row
from penstock.indexes.pg_rows import COLUMNS, HIT, SCAN, definition, encoded, hit, stored
from penstock.runtime import Runtime, ThreadPool

T = TypeVar("T")

SCHEMA = "penstock_index"
HNSW_ROWS = 10_000
MOST_VECTOR, MOST_HALF = 2_000, 4_000
"""Dimensions that an HNSW index supports, with full and with half precision. Tables with more have none."""
EXPLORED = 800
"""How many rows a search by vectors looks at in the HNSW index. Of 100,000 rows the recall@10 was 0.87 in 17 ms with
800, 0.79 in 10 ms with 400, and 0.56 in 4 ms with 100."""
SCANNED = 2_000
OLDEST = (0, 8)
KNOWN_S = 60.0
"""How long the frequencies of lexemes are used before they are read again."""
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_FREQUENCIES = (
    "SELECT c.reltuples, s.most_common_elems::text::text[], s.most_common_elem_freqs FROM pg_class c "
    "LEFT JOIN pg_stats s ON s.schemaname = $1 AND s.tablename = $2 AND s.attname = $3 "
    "WHERE c.oid = to_regclass($1 || '.' || $2)"
)


class PgTable:
    def __init__(self, index: "PgIndex", table: TableId, dimensions: int) -> None:
        self._index = index
        self._table = table
        self._named = table_name(table)
        self._name = f"{index.schema}.{self._named}"
        self.dimensions = dimensions
        self._indexed = False
        """Whether the table is known to have an HNSW index."""
        self._known: dict[TextField, tuple[float, pg_text.Frequencies]] = {}

    async def put(self, rows: Sequence[IndexRows], fence: Fence, *, fresh: bool) -> None:
        new = [part for part in rows if part.chunks]
        if not new:
            return
        check_width(new, self.dimensions)
        kind = "append" if fresh else "merge"
        await self._change(kind, lambda connection: self._put(connection, new, fresh), fence)
        await self._index_vectors()

    def _put(self, connection: Any, rows: Sequence[IndexRows], fresh: bool) -> None:
        errors = self._index.connections.psycopg.errors
        if fresh:
            connection.execute("SAVEPOINT fresh")
            try:
                self._copy(connection, self._name, rows)
                return
            except errors.UniqueViolation:
                # An attempt of which the ledger knows nothing has written some of them.
                connection.execute("ROLLBACK TO SAVEPOINT fresh")
        connection.execute(f"CREATE TEMP TABLE staged (LIKE {self._name}) ON COMMIT DROP")
        self._copy(connection, "staged", rows)
        changed = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS.split(", ")[2:])
        # Rows of a later attempt stay. In the order of their ids, so that two writers do not wait for each other.
        connection.execute(
            f"INSERT INTO {self._name} AS c ({COLUMNS}) SELECT {COLUMNS} FROM staged ORDER BY generation, ordinal "
            f"ON CONFLICT (generation, ordinal) DO UPDATE SET {changed} WHERE c.epoch <= excluded.epoch"
        )

    def _copy(self, connection: Any, table: str, rows: Sequence[IndexRows]) -> None:
        with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({COLUMNS}) FROM STDIN (FORMAT BINARY)") as copy:
            for piece in encoded(rows):
                copy.write(piece)

    async def delete(self, generations: Sequence[int], fence: Fence) -> None:
        if generations:
            ids = [int(one) for one in generations]
            text = f"DELETE FROM {self._name} WHERE generation = ANY($1)"
            try:
                await self._change("delete", lambda connection: connection.execute(text, [ids]), fence)
            except TableGone:
                return

    async def fill(self, hits: Sequence[IndexHit]) -> list[IndexHit]:
        return list(hits)

    async def search(self, query: Query, k: int, where: Filter = EVERYTHING, *, whole: bool = True) -> list[IndexHit]:
        if isinstance(query, VectorQuery):
            vector = np.asarray(query.vector, np.float32)
            if vector.shape[-1] != self.dimensions:
                raise mismatch(self.dimensions, int(vector.shape[-1]))
            return await self._nearest(vector, k, where) if k > 0 else []
        return await self._matching(query.text, query.field, k, where) if k > 0 else []

    async def _nearest(self, vector: Any, k: int, where: Filter) -> list[IndexHit]:
        compared = "c.vector <#> $3::vector"
        order = compared
        if self.dimensions > MOST_VECTOR:
            half = f"halfvec({self.dimensions})"
            order = f"c.vector::{half} <#> $3::{half}"
        text = f"SELECT {HIT}, -({compared}) FROM {self._name} c WHERE {_condition(where)} ORDER BY {order} LIMIT $4"
        settings = {
            "hnsw.ef_search": str(min(1000, max(EXPLORED, 2 * k))),
            "hnsw.iterative_scan": "strict_order",
            "hnsw.max_scan_tuples": "200000",
        }
        given = "[" + ",".join(map(str, vector.tolist())) + "]"
        rows = await self._read(text, [*_ids(where), given, k], where, settings)
        return sorted(map(hit, rows), key=lambda one: (-one.score, one.generation, one.ordinal))

    async def _matching(self, asked: str, field: TextField, k: int, where: Filter) -> list[IndexHit]:
        known = await self._frequencies(field)
        for complete in (False, True):
            how = pg_text.plan(field, asked, known, complete=complete)
            if not how.found_by:
                return []
            text, values = pg_text.statement(field, self._name, HIT, f" AND {_condition(where)}", how, known, k)
            hits = [hit(row) for row in await self._read(text, [*_ids(where), *values], where, {})]
            if how.complete or len(hits) >= k:
                break
        return hits

    async def _frequencies(self, field: TextField) -> pg_text.Frequencies:
        now = self._index.runtime.clock()
        read_at, known = self._known.get(field, (-KNOWN_S, pg_text.UNKNOWN))
        if now - read_at >= KNOWN_S:
            rows = await self._index.read(_FREQUENCIES, [self._index.schema, self._named, field])
            known = _understood(rows[0]) if rows else pg_text.UNKNOWN
            self._known[field] = now, known
        return known

    async def rows(self, spans: Sequence[RowSpan]) -> list[IndexHit]:
        if not spans:
            return []
        text = (
            f"SELECT DISTINCT ON (c.generation, c.ordinal) {HIT}, 0 FROM {self._name} c JOIN unnest($1::bigint[], "
            "$2::int[], $3::int[]) AS s (generation, first, last) ON c.generation = s.generation "
            "AND c.ordinal BETWEEN s.first AND s.last ORDER BY c.generation, c.ordinal"
        )
        given = [[int(span[at]) for span in spans] for at in range(3)]
        return [hit(row) for row in await self._index.read(text, given)]

    async def scan(self) -> AsyncIterator[list[StoredRow]]:
        text = (
            f"SELECT {SCAN} FROM {self._name} c WHERE (c.generation, c.ordinal) > ($1, $2) "
            f"ORDER BY c.generation, c.ordinal LIMIT {SCANNED}"
        )
        last: list[int] = [-1, -1]
        while page := await self._index.read(text, last):
            yield [stored(row) for row in page]
            last = [page[-1][0], page[-1][1]]

    async def count(self) -> int:
        rows = await self._index.read(f"SELECT count(*) FROM {self._name}")
        return int(rows[0][0]) if rows else 0

    async def _read(self, text: str, values: Sequence[Any], where: Filter, settings: dict[str, str]) -> list[Row]:
        if where.joined is None:
            return await self._index.read(text, values, list(settings.items()))
        if settings:
            calls = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
            await where.joined.execute(f"SELECT {calls}", [])
        return await where.joined.execute(text, values)

    async def _change(self, kind: str, work: Callable[[Any], object], fence: Fence) -> None:
        """Change the table in one transaction. The fence is awaited right before the commit."""
        try:
            await self._index.fenced(kind, work, fence)
        except Missing as error:
            raise TableGone(f"the index table {self._name} was dropped: {error}") from None

    async def _index_vectors(self) -> None:
        """Create the HNSW index when the table has grown enough. Other writers wait meanwhile; readers do not."""
        if self._indexed or self.dimensions > MOST_HALF:
            return
        enough = f"SELECT count(*) FROM (SELECT 1 FROM {self._name} LIMIT {HNSW_ROWS}) AS first"
        rows = await self._index.read(enough)
        if not rows or rows[0][0] < HNSW_ROWS:
            return
        column, kind = "vector", "vector"
        if self.dimensions > MOST_VECTOR:
            column, kind = f"(vector::halfvec({self.dimensions}))", "halfvec"
        text = (
            f"CREATE INDEX IF NOT EXISTS {self._named}_hnsw ON {self._name} USING hnsw ({column} {kind}_ip_ops) "
            "WITH (m = 16, ef_construction = 64)"
        )
        await self._index.write(text, f"ANALYZE {self._name}")
        self._indexed = True


def _condition(where: Filter) -> str:
    """With the parameters of `_ids`."""
    terms = ["NOT (c.generation = ANY($1::bigint[]))", "($2::bigint[] IS NULL OR c.generation = ANY($2::bigint[]))"]
    if where.joined is not None:
        terms.append(where.joined.condition)
    return " AND ".join(terms)


def _ids(where: Filter) -> list[Any]:
    return [
        [int(one) for one in where.hidden],
        None if where.only is None else [int(one) for one in where.only],
    ]


def _understood(row: Row) -> pg_text.Frequencies:
    rows, elements, shares = row
    if not elements or not shares:
        return pg_text.UNKNOWN
    known = dict(zip(elements, shares, strict=False))
    return pg_text.Frequencies(max(float(rows), 0.0), known, min(known.values()))


class PgIndex:
    fingerprint = "pgvector/1"

    def __init__(self, url: str, runtime: Runtime, *, shared: bool = False, schema: str = SCHEMA) -> None:
        """`shared`: the database is that of the ledger."""
        if not _SCHEMA_NAME.fullmatch(schema):
            raise UsageError(f"{schema!r} is not the name of a schema")
        self.schema = schema
        self.runtime = runtime
        self.connections = Connections(url, runtime)
        filters = {"generation", "only", "active"} if shared else {"generation", "only"}
        self.traits = Traits(single_writer=False, filters=frozenset(filters), text_fields=frozenset({"words", "grams"}))
        self._open: dict[TableId, PgTable] = {}

    async def open(self, table: TableId) -> PgTable | None:
        check_names(table)
        rows = await self.read(
            f"SELECT dimensions FROM {self.schema}.tables WHERE owner = $1 AND collection = $2 AND version = $3",
            list(table),
        )
        if not rows:
            return None
        known = self._open.get(table)
        if known is None or known.dimensions != rows[0][0]:
            known = self._open[table] = PgTable(self, table, rows[0][0])
        return known

    async def create(self, table: TableId, dimensions: int) -> PgTable:
        check_names(table)
        if (found := await self.open(table)) is None:
            await self._in_transaction(lambda connection: self._create(connection, table, dimensions))
            self.hit("index.create.after")
            found = await self.open(table)
        if found is None:
            raise TableGone(f"the index table of {table} was dropped while it was created")
        if found.dimensions != dimensions:
            raise mismatch(found.dimensions, dimensions)
        return found

    def _create(self, connection: Any, table: TableId, dimensions: int) -> None:
        # Two processes that create the same schema or table at once would fail.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", [self.schema])
        self._prepare(connection)
        rows = connection.execute(
            f"INSERT INTO {self.schema}.tables (owner, collection, version, dimensions) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (owner, collection, version) DO NOTHING RETURNING version",
            [*table, dimensions],
        ).fetchall()
        if not rows:
            return
        name = table_name(table)
        connection.execute(f"CREATE TABLE {self.schema}.{name} ({definition(dimensions)})")
        for field in ("words", "grams"):
            connection.execute(f"CREATE INDEX {name}_{field} ON {self.schema}.{name} USING gin ({field})")
        self.hit("index.create.before")

    def _prepare(self, connection: Any) -> None:
        found = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchall()
        if not found:
            try:
                connection.execute("CREATE EXTENSION vector")
            except self.connections.psycopg.Error as error:
                raise ConfigError(
                    "the extension pgvector is not there: install it on the server, then run `CREATE EXTENSION "
                    f"vector` in the database as a user who may ({str(error).splitlines()[0]})"
                ) from None
            found = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchall()
        version = found[0][0]
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
            raise ConfigError(f"pgvector {version} is too old: install version 0.8 or newer (ALTER EXTENSION … UPDATE)")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.schema}.tables ("
            "owner text NOT NULL, collection text NOT NULL, version int NOT NULL, dimensions int NOT NULL, "
            "PRIMARY KEY (owner, collection, version))"
        )

    async def warm_up(self) -> None:
        await self.read("SELECT 1")

    async def tables(self) -> list[TableId]:
        rows = await self.read(f"SELECT owner, collection, version FROM {self.schema}.tables")
        return sorted(TableId(*row) for row in rows)

    async def drop(self, table: TableId) -> None:
        check_names(table)

        def drop(connection: Any) -> None:
            connection.execute(
                f"DELETE FROM {self.schema}.tables WHERE owner = $1 AND collection = $2 AND version = $3",
                list(table),
            )
            connection.execute(f"DROP TABLE IF EXISTS {self.schema}.{table_name(table)}")

        self._open.pop(table, None)
        try:
            await self._in_transaction(drop)
        except Missing:
            return

    async def read(self, text: str, values: Sequence[Any] = (), settings: Sequence[tuple[str, str]] = ()) -> list[Row]:
        """The rows of a statement; none if its table does not exist."""
        try:
            return await self.run("read", self.connections.read, text, values, settings)
        except Missing:
            return []

    async def write(self, *texts: str) -> None:
        def work(connection: Any) -> None:
            for text in texts:
                connection.execute(text)

        try:
            await self._in_transaction(work)
        except Missing:
            return

    async def _in_transaction(self, work: Callable[[Any], object]) -> None:
        def act() -> None:
            with self.connections.transaction() as connection:
                work(connection)

        await self.run("index", act)

    async def fenced(self, kind: str, work: Callable[[Any], object], fence: Fence) -> None:
        """Change a table in one transaction. One thread executes all of it and waits for the fence: if it was given
        back meanwhile, a writer of the same rows could take it, and both would wait for ever."""
        loop, fences, unwanted = asyncio.get_running_loop(), list[Future[None]](), Event()

        async def wait() -> None:
            await fence()

        def act() -> None:
            with self.connections.transaction() as connection:
                work(connection)
                fences.append(asyncio.run_coroutine_threadsafe(wait(), loop))
                if unwanted.is_set():
                    fences[0].cancel()
                fences[0].result()
                self.hit(f"index.{kind}.before")
            self.hit(f"index.{kind}.after")

        changing = asyncio.ensure_future(self.run("index", act))
        try:
            await asyncio.shield(changing)
        except asyncio.CancelledError:
            unwanted.set()
            for one in fences:
                one.cancel()
            await asyncio.gather(changing, return_exceptions=True)
            raise

    async def run(self, pool: ThreadPool, function: Callable[..., T], *values: Any) -> T:
        return await self.runtime.run_blocking(pool, function, *values)

    def hit(self, failpoint: str) -> None:
        if self.runtime.failpoints.armed:
            self.runtime.failpoints.hit(failpoint)


def table_name(table: TableId) -> str:
    """Names of owners and collections may be longer than those of tables."""
    return f"rows_{hashlib.sha256('/'.join(map(str, table)).encode()).hexdigest()[:24]}"
