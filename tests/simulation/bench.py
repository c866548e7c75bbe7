"""A ledger for a machine whose rules are not asynchronous."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.ledger.ledger_kit import TABLES, Desk

from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.runtime import Runtime

T = TypeVar("T")


class Bench:
    """A ledger that all examples use in turn."""

    def __init__(self, url: str, kind: type[Database] = Database) -> None:
        self.runtime = Runtime()
        self.ledger = Ledger(kind(url, self.runtime))
        self.desk = Desk(self.ledger)
        self.runner = asyncio.Runner()
        self.run(self.ledger.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def wipe(self) -> None:
        if self.ledger.database.dialect == "postgres":
            self.run(self.desk.rows(f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY CASCADE"))
            return
        first = ("artifact_refs", "segments", "dead_letters", "purges", "idempotency_keys", "runs", "generations")
        for table in (*first, *(table for table in reversed(TABLES) if table not in first)):
            self.run(self.desk.rows(f"DELETE FROM {table}"))

    def close(self) -> None:
        self.run(self.ledger.close())
        self.runner.close()
        self.runtime.close()
