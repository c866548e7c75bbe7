"""What an owner may bring in: pauses of the intake, quotas, and how much there is already.

Triggers of the schema count documents and bytes (m0034). The transaction that accepts documents looks at the counts
after it has changed them, so only transactions that are under way at the same time can exceed a quota together."""

from collections.abc import Sequence

import msgspec

from penstock.errors import QuotaExceeded
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import audit_log
from penstock.model.nouns import Owner

EVERYONE = "*"
"""Stands for all owners in the table of pauses. No owner has this name."""
NO_LIMIT = -1
MEGABYTE = 1 << 20


class Pause(msgspec.Struct, frozen=True):
    """New documents are not accepted. What was accepted is processed."""

    everyone: bool
    """Of all owners, or of this one."""
    reason: str
    since: float
    by: str


class Override(msgspec.Struct, frozen=True):
    """Limits of one owner that take the place of those of the settings; None: as in the settings; -1: no limit."""

    documents: int | None = None
    bytes: int | None = None
    requests_per_s: float | None = None


class Quota(msgspec.Struct, frozen=True):
    """Limits of one owner; None: no limit."""

    documents: int | None = None
    bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.documents is not None or self.bytes is not None


class Holdings(msgspec.Struct, frozen=True):
    """How much an owner has."""

    documents: int
    bytes: int
    """Of the present raw bytes of these documents."""
    rows: int
    """How many rows were added up."""


class Admission(msgspec.Struct, frozen=True):
    pause: Pause | None
    override: Override
    holdings: Holdings


_PAUSES = Statement(
    "SELECT owner, reason, paused_at, paused_by FROM intake_pauses WHERE owner = :owner OR owner = '*' ORDER BY owner"
)
_OVERRIDE = Statement("SELECT documents, bytes, requests_per_s FROM quotas WHERE owner = :owner")
_HOLDINGS = Statement(
    "SELECT coalesce(sum(documents), 0), coalesce(sum(bytes), 0), count(*) FROM holdings WHERE owner = :owner"
)


def pause(owner: Owner, connection: Connection) -> Pause | None:
    """The pause of this owner, or of all owners, which comes first."""
    rows = connection.run(_PAUSES, owner=owner)
    return Pause(rows[0][0] == EVERYONE, *rows[0][1:]) if rows else None


def holdings(owner: Owner, connection: Connection) -> Holdings:
    documents, size, rows = connection.run(_HOLDINGS, owner=owner)[0]
    return Holdings(int(documents), int(size), rows)


def state(owner: Owner, connection: Connection) -> Admission:
    rows = connection.run(_OVERRIDE, owner=owner)
    override = Override(*rows[0]) if rows else Override()
    return Admission(pause(owner, connection), override, holdings(owner, connection))


def check(owner: Owner, connection: Connection, quota: Quota, before: Holdings) -> None:
    """Raise QuotaExceeded if the owner has more than before, and more than the quota allows."""
    now = holdings(owner, connection)
    documents = now.documents if now.documents > before.documents else 0
    refuse_above(owner, quota, documents, now.bytes if now.bytes > before.bytes else 0)


def refuse_above(owner: Owner, quota: Quota, documents: int, size: int) -> None:
    """Raise QuotaExceeded if these are more than the quota allows."""
    said = None
    if quota.documents is not None and documents > quota.documents:
        said = f"{quota.documents:,} documents"
    elif quota.bytes is not None and size > quota.bytes:
        said = f"{quota.bytes / MEGABYTE:,.0f} MB"
    if said is not None:
        raise QuotaExceeded(
            f"{owner} would have more than its quota of {said}: delete documents, or ask the operator for more "
            "(penstock quota set)"
        )


_SIZE = Statement(
    "SELECT size FROM documents WHERE source = :source AND {owner} AND collection = :collection AND deleted_at IS NULL"
)


def size_of(owner: Owner, connection: Connection, collection: str, source: str) -> int | None:
    """The size of a document; None: there is none with this source."""
    rows = connection.run(_SIZE, owner=owner, collection=collection, source=source)
    return rows[0][0] if rows else None


class PauseIntake(msgspec.Struct, frozen=True):
    owner: Owner
    everyone: bool
    reason: str
    actor: str


_PAUSE = Statement(
    "INSERT INTO intake_pauses (owner, reason, paused_at, paused_by) VALUES (:whom, :reason, {now}, :actor) "
    "ON CONFLICT (owner) DO UPDATE SET reason = excluded.reason"
)
_RESUME = Statement("DELETE FROM intake_pauses WHERE owner = :whom RETURNING reason")


def _pause(connection: Connection, orders: Sequence[PauseIntake]) -> list[None]:
    """Pause, or change the reason of a pause."""
    for order in orders:
        whom = EVERYONE if order.everyone else order.owner
        connection.run(_PAUSE, whom=whom, reason=order.reason, actor=order.actor)
        given = {"reason": order.reason}
        audit_log.record(connection, [audit_log.Change(order.owner, order.actor, "intake.pause", whom, given)])
    return [None for _ in orders]


def _resume(connection: Connection, orders: Sequence[PauseIntake]) -> list[bool]:
    """Whether it was paused."""
    answers = []
    for order in orders:
        whom = EVERYONE if order.everyone else order.owner
        rows = connection.run(_RESUME, whom=whom)
        if rows:
            former = {"reason": rows[0][0]}
            change = audit_log.Change(order.owner, order.actor, "intake.resume", whom, {}, former)
            audit_log.record(connection, [change])
        answers.append(bool(rows))
    return answers


class SetQuota(msgspec.Struct, frozen=True):
    owner: Owner
    override: Override
    actor: str


_SET = Statement(
    "INSERT INTO quotas (owner, documents, bytes, requests_per_s, changed_at, changed_by) VALUES (:owner, "
    ":documents, :bytes, :requests, {now}, :actor) ON CONFLICT (owner) DO UPDATE SET documents = excluded.documents, "
    "bytes = excluded.bytes, requests_per_s = excluded.requests_per_s, changed_at = excluded.changed_at, "
    "changed_by = excluded.changed_by"
)
_CLEAR = Statement("DELETE FROM quotas WHERE owner = :owner")


def _set_quota(connection: Connection, orders: Sequence[SetQuota]) -> list[None]:
    """Replace the limits of an owner. Without any, those of the settings hold."""
    for order in orders:
        former = connection.run(_OVERRIDE, owner=order.owner)
        new = order.override
        if new == Override():
            connection.run(_CLEAR, owner=order.owner)
        else:
            values = {"documents": new.documents, "bytes": new.bytes, "requests": new.requests_per_s}
            connection.run(_SET, owner=order.owner, actor=order.actor, **values)
        old = msgspec.structs.asdict(Override(*former[0])) if former else {}
        given = msgspec.structs.asdict(new)
        change = audit_log.Change(order.owner, order.actor, "quota.set", order.owner, given, old)
        audit_log.record(connection, [change])
    return [None for _ in orders]


# On PostgreSQL each change of a document is a row.
_ADD_UP = Statement(
    "INSERT INTO holdings (owner, documents, bytes) SELECT CAST(:owner AS TEXT), CAST(:documents AS BIGINT), "
    "CAST(:bytes AS BIGINT)"
)
_TAKE_OUT = Statement("DELETE FROM holdings WHERE owner = :owner RETURNING documents, bytes")


def _settle(connection: Connection, owners: Sequence[Owner]) -> list[int]:
    """Replace the rows of each owner by their sum. Returns how many there were."""
    answers = []
    for owner in owners:
        rows = connection.run(_TAKE_OUT, owner=owner)
        if rows:
            documents, size = sum(row[0] for row in rows), sum(row[1] for row in rows)
            connection.run(_ADD_UP, owner=owner, documents=documents, bytes=size)
        answers.append(len(rows))
    return answers


_MANY = Statement("SELECT owner FROM holdings GROUP BY owner HAVING count(*) > :count ORDER BY owner")


def unsettled(connection: Connection, count: int) -> list[Owner]:
    """The owners whose counts have more than so many rows."""
    return [Owner(row[0]) for row in connection.run(_MANY, count=count)]


PAUSE_INTAKE = Verb("pause_intake", _pause)
RESUME_INTAKE = Verb("resume_intake", _resume)
SET_QUOTA = Verb("set_quota", _set_quota)
SETTLE_HOLDINGS = Verb("settle_holdings", _settle)
