"""What clients store here for themselves: batches with a source and a name, and sync states of sources."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import Owner


class NamedBatch(msgspec.Struct, frozen=True):
    """A batch that was created before it has documents."""

    batch: str
    source: str
    name: str
    created_at: float


class SyncState(msgspec.Struct, frozen=True):
    source: str
    body: str
    """JSON of the client."""
    updated_at: float


_BATCHES = Statement(
    "SELECT batch, source, name, created_at FROM batches WHERE owner = :owner ORDER BY batch LIMIT :count"
)
_BATCH = Statement("SELECT batch, source, name, created_at FROM batches WHERE owner = :owner AND batch = :batch")
_CREATE = Statement(
    "INSERT INTO batches (owner, batch, source, name, created_at) VALUES (:owner, :batch, :source, :name, {now}) "
    "ON CONFLICT (owner, batch) DO NOTHING"
)
_STATE = Statement("SELECT source, body, updated_at FROM sync_states WHERE owner = :owner AND source = :source")
_SET = Statement(
    "INSERT INTO sync_states (owner, source, body, updated_at) VALUES (:owner, :source, :body, {now}) "
    "ON CONFLICT (owner, source) DO UPDATE SET body = excluded.body, updated_at = excluded.updated_at"
)
_REMOVE = Statement("DELETE FROM sync_states WHERE owner = :owner AND source = :source RETURNING source")


class NewBatch(msgspec.Struct, frozen=True):
    owner: Owner
    batch: str
    source: str
    name: str


class NewState(msgspec.Struct, frozen=True):
    owner: Owner
    source: str
    body: str | None
    """None: remove it."""


def batches(owner: Owner, connection: Connection, count: int) -> list[NamedBatch]:
    return [NamedBatch(*row) for row in connection.run(_BATCHES, owner=owner, count=count)]


def batch(owner: Owner, connection: Connection, name: str) -> NamedBatch | None:
    return next((NamedBatch(*row) for row in connection.run(_BATCH, owner=owner, batch=name)), None)


def sync_state(owner: Owner, connection: Connection, source: str) -> SyncState | None:
    return next((SyncState(*row) for row in connection.run(_STATE, owner=owner, source=source)), None)


def _create(connection: Connection, new: Sequence[NewBatch]) -> list[None]:
    for one in new:
        connection.run(_CREATE, owner=one.owner, batch=one.batch, source=one.source, name=one.name)
    return [None for _ in new]


def _set(connection: Connection, states: Sequence[NewState]) -> list[bool]:
    """Whether something was stored or removed."""
    answers = []
    for one in states:
        if one.body is None:
            answers.append(bool(connection.run(_REMOVE, owner=one.owner, source=one.source)))
        else:
            connection.run(_SET, owner=one.owner, source=one.source, body=one.body)
            answers.append(True)
    return answers


CREATE_BATCH = Verb("create_batch", _create)
SET_SYNC_STATE = Verb("set_sync_state", _set)
