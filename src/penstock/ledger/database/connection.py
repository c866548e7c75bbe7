"""What the ledger asks of a connection, whichever the database."""

from typing import Any, Literal, Protocol

from penstock.ledger.database.statements import DialectName, Rows, Statement

Row = tuple[Any, ...]

Outcome = Literal["committed", "aborted", "in progress"]


class Connection(Protocol):
    dialect: DialectName
    single_statement: bool
    """The next statement is a whole transaction."""
    notifies: bool
    """And it is to wake whoever listens."""
    receipt: str | None
    """By which another connection can ask what became of the transaction that is open, or was; None: one that fails
    to commit is rolled back, without a doubt (SQLite)."""
    session: str
    """By which another connection can ask whether this one still works on something."""

    @property
    def broken(self) -> bool:
        """The connection is gone: what it was about to commit may have been committed, or not."""

    def run(
        self, statement: Statement, rows: Rows | None = None, more: Rows | None = None, /, **params: Any
    ) -> list[Row]:
        """All rows that the statement returns."""

    def script(self, text: str) -> list[Row]:
        """A statement of one dialect, for migrations and pragmas."""

    def begin(self) -> None: ...

    def begin_read(self) -> None:
        """A transaction whose reads all see one moment."""

    def commit(self, notify: bool = False) -> None:
        """`notify`: and wake whoever listens (SQLite's listeners hear every commit)."""

    def count(self) -> None:
        """Count this transaction, if it changed anything: a user is told that it is done. An older copy of an embedded
        ledger is known by that."""

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def is_busy(self, error: Exception) -> bool:
        """The error says only that somebody else was quicker: the same group may be run again."""

    def outcome(self, receipt: str) -> Outcome:
        """What became of a transaction of another connection, which is gone."""

    def works(self, session: str) -> bool:
        """Whether a connection that is gone for us still works on its last statement."""
