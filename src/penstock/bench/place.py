"""A temporary place on a database: a schema, or a folder beside the SQLite file. It is removed afterwards."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from penstock.errors import StorageError
from penstock.ledger.database.database import Database
from penstock.ledger.database.postgres import refusal
from penstock.redaction import masked
from penstock.runtime import Runtime


@dataclass(frozen=True)
class Place:
    url: str
    """URL of the temporary ledger."""
    folder: Path
    schema: str | None = None
    """The schema on PostgreSQL, which `url` selects."""


@asynccontextmanager
async def open_place(url: str, runtime: Runtime) -> AsyncIterator[Place]:
    """Create the place and remove it afterwards, also after an interruption. Existing data is not touched."""
    database = Database(url, runtime)
    if database.dialect == "sqlite":
        # On the same disk, because the result depends mostly on its flush time.
        above = next(folder for folder in database.path.absolute().parents if folder.is_dir())
        with _folder(above) as folder:
            yield Place(f"sqlite:///{folder}/ledger.db", Path(folder))
        return
    schema = f"penstock_bench_{runtime.token()}"
    with _folder(None) as folder:
        try:
            await _run(url, runtime, f'CREATE SCHEMA "{schema}"')
            yield Place(_into(url, schema), Path(folder), schema)
        finally:
            await asyncio.shield(_run(url, runtime, f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))


def _folder(above: Path | None) -> "tempfile.TemporaryDirectory[str]":
    try:
        return tempfile.TemporaryDirectory(prefix=".penstock-bench-", dir=above, ignore_cleanup_errors=True)
    except OSError as error:
        raise StorageError(f"cannot create a folder in {above or tempfile.gettempdir()}: {error.strerror}") from error


async def _run(url: str, runtime: Runtime, text: str) -> None:
    def run() -> None:
        connection = Database(url, runtime).connect()
        try:
            connection.script(text)
        except Exception as error:
            said = refusal(url, error)
            raise StorageError(
                f"PostgreSQL at {masked(url)} refused: {said}. The benchmark needs the right to create a schema"
            ) from error
        finally:
            connection.close()

    # A pool with one thread: an interrupted CREATE ends before the DROP starts.
    await runtime.run_blocking("cpu", run)


def _into(url: str, schema: str) -> str:
    """The same URL with the schema as its search path."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    query["options"] = f"{query.get('options', '')} -csearch_path={schema}".strip()
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
