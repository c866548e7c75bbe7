"""Connections to PostgreSQL that are cut at the door where a group is committed."""

import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.database import Database
from penstock.ledger.database.postgres import PostgresConnection
from penstock.ledger.database.statements import Rows, Statement
from penstock.runtime import Runtime

T = TypeVar("T")
Moment = Literal["before", "during", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "during", "after")


class CutDatabase(Database):
    """`cuts`: what becomes of the next commits of the writer; then (`chance`) of some of those that follow."""

    def __init__(self, url: str, runtime: Runtime) -> None:
        super().__init__(url, runtime)
        self.cuts: deque[Moment] = deque()
        self.chance = 0.0
        self.random = random.Random(7)
        self.made = 0

    def connect(self, *, hot: bool = False) -> Connection:
        return _Cutting(self) if hot else super().connect()

    def next_cut(self) -> Moment | None:
        if self.cuts:
            return self.cuts.popleft()
        return self.random.choice(MOMENTS) if self.chance and self.random.random() < self.chance else None


class _Cutting(PostgresConnection):
    def __init__(self, database: CutDatabase) -> None:
        super().__init__(database.server, hot=True)
        self._database = database

    def commit(self, notify: bool = False) -> None:
        self._pass(lambda: super(_Cutting, self).commit(notify), self._send_commit)

    def _send_commit(self) -> None:
        wire = self._db.pgconn
        wire.send_query(b"COMMIT")
        wire.flush()
        self.cut()
        while wire.get_result() is not None:
            pass

    def run(
        self, statement: Statement, rows: Rows | None = None, more: Rows | None = None, /, **params: Any
    ) -> list[Row]:
        def run() -> list[Row]:
            return super(_Cutting, self).run(statement, rows, more, **params)

        return self._pass(run) if self.single_statement else run()

    def _pass(self, action: Callable[[], T], send: Callable[[], None] | None = None) -> T:
        """`send`: the same, without waiting for the answer. Where there is none, nothing can be read any more, and it
        is a matter of luck whether the server gets all of it."""
        moment = self._database.next_cut()
        if moment is None:
            return action()
        self._database.made += 1
        if moment == "before":
            self.cut()
        elif moment == "during" and send is not None:
            send()
        elif moment == "during":
            self.cut(socket.SHUT_RD)
        answer = action()
        self.cut()
        self._execute("SELECT 1")
        return answer
