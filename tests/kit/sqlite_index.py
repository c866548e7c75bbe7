"""A second index adapter, for tests: one SQLite file, many writers, vectors and text, no upkeep of ours.

It stands for a vector server: rows are replaced by id, several processes write at once, and the file is its own
database. It proves that the port holds for more than Lance."""

import json
import math
import re
import sqlite3
import unicodedata
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from penstock.errors import Permanent, Transient, UsageError
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
    Traits,
    VectorQuery,
    row_digest,
)
from penstock.model.items import Chunk, Vectors
from penstock.runtime import Runtime, ThreadPool

T = TypeVar("T")

TRAITS = Traits(single_writer=False)
# Without `only`: a search excludes what a filter rejects.
BATCH = 500
QUERY_WORDS = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]*")
_WORD = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W_\u3040-\u30ff\u4e00-\u9fff]+")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tables (name TEXT PRIMARY KEY, dimensions INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS chunks (name TEXT, generation INTEGER, ordinal INTEGER, epoch INTEGER, document TEXT,
  chunk TEXT, vector BLOB, words INTEGER, PRIMARY KEY (name, generation, ordinal));
CREATE TABLE IF NOT EXISTS terms (name TEXT, term TEXT, generation INTEGER, ordinal INTEGER, times INTEGER,
  PRIMARY KEY (name, term, generation, ordinal));
CREATE INDEX IF NOT EXISTS terms_row ON terms (name, generation, ordinal);
"""


def words_of(text: str) -> list[str]:
    """Folded to plain letters, cut into words, Chinese and Japanese into characters, English endings cut off."""
    plain = unicodedata.normalize("NFKD", text.encode("utf-8", "replace").decode().casefold())
    plain = unicodedata.normalize("NFC", "".join(one for one in plain if not unicodedata.combining(one)))
    return [_stem(word) for word in _WORD.findall(plain)]


def _stem(word: str) -> str:
    if word.isascii() and len(word) > 4:
        word = re.sub(r"(.)\1$", r"\1", word.removesuffix("ing")) if word.endswith("ing") else word
        word = word.rstrip("sx") or word
    return word


class SqliteTable:
    def __init__(self, index: "SqliteIndex", table: TableId, dimensions: int) -> None:
        self._index = index
        self._name = "/".join(map(str, table))
        self.dimensions = dimensions

    async def put(self, rows: Sequence[IndexRows], fence: Fence, *, fresh: bool) -> None:
        new = [part for part in rows if part.chunks]
        if not new:
            return
        for part in new:
            self._check(part.vectors.shape[1])
        await fence()
        await self._index.run("index", lambda connection: self._put(connection, new))

    async def delete(self, generations: Sequence[int], fence: Fence) -> None:
        await fence()
        where = (self._name, json.dumps([int(one) for one in generations]))

        def delete(connection: sqlite3.Connection) -> None:
            for table in ("chunks", "terms"):
                among = "generation IN (SELECT value FROM json_each(?))"
                connection.execute(f"DELETE FROM {table} WHERE name = ? AND {among}", where)

        await self._index.run("index", delete)

    async def fill(self, hits: Sequence[IndexHit]) -> list[IndexHit]:
        return list(hits)

    async def search(self, query: Query, k: int, where: Filter = EVERYTHING, *, whole: bool = True) -> list[IndexHit]:
        hidden = json.dumps([int(one) for one in where.hidden] if "generation" in self._index.traits.filters else [])
        k = min(k, self._index.traits.max_hits or k)
        if isinstance(query, VectorQuery):
            vector = np.asarray(query.vector, np.float32)
            self._check(vector.shape[-1])
            return await self._index.run("read", lambda connection: self._nearest(connection, vector, k, hidden))
        return await self._index.run("read", lambda connection: self._match(connection, query.text, k, hidden))

    async def rows(self, spans: Sequence[RowSpan]) -> list[IndexHit]:
        def read(connection: sqlite3.Connection) -> list[IndexHit]:
            statement = "SELECT ordinal FROM chunks WHERE name = ? AND generation = ? AND ordinal BETWEEN ? AND ?"
            found = {
                (span.generation, row[0], 0.0)
                for span in spans
                for row in connection.execute(statement, (self._name, *span)).fetchall()
            }
            return self._hits(connection, sorted(found))

        return await self._index.run("read", read)

    async def scan(self) -> AsyncIterator[list[StoredRow]]:
        last = (-1, -1)
        while batch := await self._index.run("read", partial(self._page, last=last)):
            yield batch
            last = batch[-1][:2]

    async def count(self) -> int:
        statement = "SELECT count(*) FROM chunks WHERE name = ?"
        return await self._index.run("read", lambda one: int(one.execute(statement, [self._name]).fetchone()[0]))

    def _check(self, width: int) -> None:
        if width != self.dimensions:
            raise _mismatch(self.dimensions, width)

    def _put(self, connection: sqlite3.Connection, new: Sequence[IndexRows]) -> None:
        if not connection.execute("SELECT 1 FROM tables WHERE name = ?", [self._name]).fetchone():
            raise Transient(f"the index table {self._name} is gone", reason="table_gone")
        for part in new:
            for chunk, vector in zip(part.chunks, np.asarray(part.vectors, np.float32), strict=True):
                key = (self._name, part.generation, chunk.ordinal)
                found = Counter(words_of(chunk.text))
                seen = (chunk.text, chunk.page, chunk.page_end, chunk.start, chunk.end, chunk.headings)
                row = (part.epoch, part.document_id, json.dumps(seen), vector.tobytes(), sum(found.values()))
                connection.execute("DELETE FROM terms WHERE name = ? AND generation = ? AND ordinal = ?", key)
                connection.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*key, *row))
                terms = [(self._name, term, *key[1:], times) for term, times in found.items()]
                connection.executemany("INSERT INTO terms VALUES (?, ?, ?, ?, ?)", terms)

    def _nearest(self, connection: sqlite3.Connection, vector: Vectors, k: int, hidden: str) -> list[IndexHit]:
        statement = (
            "SELECT generation, ordinal, vector FROM chunks WHERE name = ? "
            "AND generation NOT IN (SELECT value FROM json_each(?))"
        )
        rows = connection.execute(statement, (self._name, hidden)).fetchall()
        if not rows or k < 1:
            return []
        scores = np.stack([np.frombuffer(row[2], np.float32) for row in rows]) @ vector
        best = np.argsort(-scores, kind="stable")[:k].tolist()
        return self._hits(connection, [(rows[at][0], rows[at][1], float(scores[at])) for at in best])

    def _match(self, connection: sqlite3.Connection, text: str, k: int, hidden: str) -> list[IndexHit]:
        """BM25, with its usual constants."""
        statement = "SELECT count(*), coalesce(avg(words), 1) FROM chunks WHERE name = ?"
        total, mean = connection.execute(statement, [self._name]).fetchone()
        statement = (
            "SELECT t.generation, t.ordinal, t.times, c.words FROM terms t JOIN chunks c ON c.name = t.name "
            "AND c.generation = t.generation AND c.ordinal = t.ordinal WHERE t.name = ? AND t.term = ?"
        )
        left_out = set(json.loads(hidden))
        scores: dict[tuple[int, int], float] = defaultdict(float)
        for term in list(dict.fromkeys(words_of(text)))[:QUERY_WORDS]:
            found = connection.execute(statement, (self._name, term)).fetchall()
            rarity = math.log(1 + (total - len(found) + 0.5) / (len(found) + 0.5))
            for generation, ordinal, times, words in found:
                weight = rarity * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * words / (mean or 1)))
                scores[generation, ordinal] += weight
        best = [(key, score) for key, score in scores.items() if key[0] not in left_out]
        best.sort(key=lambda one: (-one[1], one[0]))
        return self._hits(connection, [(*key, float(score)) for key, score in best[:k]])

    def _hits(self, connection: sqlite3.Connection, best: Sequence[tuple[int, int, float]]) -> list[IndexHit]:
        statement = "SELECT document, chunk FROM chunks WHERE name = ? AND generation = ? AND ordinal = ?"
        hits = []
        for generation, ordinal, score in best:
            document, chunk = connection.execute(statement, (self._name, generation, ordinal)).fetchone()
            *seen, headings = json.loads(chunk)
            hits.append(IndexHit._make([generation, ordinal, document, score, *seen, tuple(headings), None]))
        return hits

    def _page(self, connection: sqlite3.Connection, last: tuple[int, int]) -> list[StoredRow]:
        statement = (
            "SELECT generation, ordinal, epoch, chunk FROM chunks WHERE name = ? AND (generation, ordinal) > (?, ?) "
            "ORDER BY generation, ordinal LIMIT ?"
        )
        found = []
        for generation, ordinal, epoch, chunk in connection.execute(statement, (self._name, *last, BATCH)):
            made = msgspec.convert([ordinal, *json.loads(chunk)], Chunk)
            found.append(StoredRow(generation, ordinal, epoch, row_digest(made)))
        return found


class SqliteIndex:
    fingerprint = "sqlite-test/1"

    def __init__(self, root: Path, runtime: Runtime, traits: Traits = TRAITS) -> None:
        self._path = root / "index.db"
        self._runtime = runtime
        self.traits = traits

    async def open(self, table: TableId) -> SqliteTable | None:
        name = _named(table)

        def dimensions(connection: sqlite3.Connection) -> int | None:
            found = connection.execute("SELECT dimensions FROM tables WHERE name = ?", [name]).fetchone()
            return found[0] if found else None

        found = await self.run("read", dimensions)
        return SqliteTable(self, table, found) if found is not None else None

    async def create(self, table: TableId, dimensions: int) -> SqliteTable:
        name = _named(table)

        def create(connection: sqlite3.Connection) -> int:
            connection.execute("INSERT INTO tables VALUES (?, ?) ON CONFLICT DO NOTHING", (name, dimensions))
            return int(connection.execute("SELECT dimensions FROM tables WHERE name = ?", [name]).fetchone()[0])

        present = await self.run("index", create)
        if present != dimensions:
            raise _mismatch(present, dimensions)
        return SqliteTable(self, table, dimensions)

    async def warm_up(self) -> None:
        await self.run("index", lambda connection: None)

    async def tables(self) -> list[TableId]:
        names = await self.run("read", lambda one: [row[0] for row in one.execute("SELECT name FROM tables")])
        parts = [name.split("/") for name in names]
        return sorted(TableId(owner, collection, int(version)) for owner, collection, version in parts)

    async def drop(self, table: TableId) -> None:
        name = _named(table)

        def drop(connection: sqlite3.Connection) -> None:
            for one in ("tables", "chunks", "terms"):
                connection.execute(f"DELETE FROM {one} WHERE name = ?", [name])

        await self.run("index", drop)

    async def run(self, queue: ThreadPool, action: Callable[[sqlite3.Connection], T]) -> T:
        """In one transaction."""

        def act() -> T:
            with self._connected() as connection:
                if queue == "index":
                    connection.execute("BEGIN IMMEDIATE")
                return action(connection)

        return await self._runtime.run_blocking(queue, act)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, timeout=30.0)) as connection:
            connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _SCHEMA)
            with connection:
                yield connection


def _named(table: TableId) -> str:
    for name in (table.owner, table.collection):
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name of an owner or collection")
    return "/".join(map(str, table))


def _mismatch(present: int, wanted: int) -> Permanent:
    return Permanent(
        f"the index holds vectors of {present} dimensions, not {wanted}: `penstock reindex`",
        reason="dimension_mismatch",
    )
