"""What the ledger asks of a connection, whichever the database."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from penstock.ledger.database.statements import DialectName, Rows, Statement

Row = tuple[Any, ...]

Outcome = Literal["committed", "aborted", "in progress"]


class Connection(Protocol):
    dialect: DialectName
    single_statement: bool
    """The next statement is run on its own, without a transaction around it."""
    notifies: bool
    """That statement also sends a notification."""
    receipt: str | None
    """The number of the last transaction, by which another connection can ask for its outcome; None on SQLite, where a
    commit that fails is always rolled back."""
    session: str
    """Identifies this connection, so that another one can ask whether it still runs a statement."""

    @property
    def broken(self) -> bool:
        """The connection is lost. A commit that was sent may have taken effect or not."""

    def run(
        self, statement: Statement, rows: Rows | None = None, more: Rows | None = None, /, **params: Any
    ) -> list[Row]:
        """All rows that the statement returns."""

    def query(self, text: str, values: Sequence[Any]) -> list[Row]:
        """A read of one dialect, within a transaction: of an index in the same database."""

    def script(self, text: str) -> list[Row]:
        """A statement of one dialect, for migrations and pragmas."""

    def begin(self) -> None: ...

    def begin_read(self) -> None:
        """A transaction whose reads all see the same snapshot."""

    def commit(self, notify: bool = False) -> None:
        """`notify`: also notify the listeners. On SQLite they notice every commit."""

    def count(self) -> None:
        """Count this transaction, if it changed anything. The number reveals an older copy of an embedded ledger."""

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def is_busy(self, error: Exception) -> bool:
        """Whether the error comes from a conflict with another transaction: the same group may be run again."""

    def outcome(self, receipt: str) -> Outcome:
        """The outcome of a transaction of another connection, which is lost."""

    def works(self, session: str) -> bool:
        """Whether a connection that we lost still runs its last statement on the server."""
