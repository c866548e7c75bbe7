"""The audit log: who changed what and when, and what was there before. Changes of keys and webhooks write their row in
their own transaction; the verbs that the command line shares with the service write it right after the change."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import Owner


class Change(msgspec.Struct, frozen=True):
    """A change to be recorded."""

    owner: Owner
    actor: str
    action: str
    subject: str
    given: Mapping[str, Any] = {}
    """The arguments of the change."""
    former: Mapping[str, Any] = {}
    """What was there before."""


class AuditEntry(msgspec.Struct, frozen=True):
    id: int
    actor: str
    action: str
    subject: str
    given: dict[str, Any]
    former: dict[str, Any]
    created_at: float


_RECORD = Statement(
    "INSERT INTO audit_log (owner, actor, action, subject, given, former, at) "
    "SELECT r.tenant, r.actor, r.action, r.subject, r.given, r.former, {now} FROM {rows} WHERE true",
    rows="tenant text, actor text, action text, subject text, given text, former text",
)
_ENTRIES = Statement(
    "SELECT id, actor, action, subject, given, former, at FROM audit_log WHERE owner = :owner AND id < :before "
    "AND (:action = '' OR action = :action) ORDER BY id DESC LIMIT :count"
)
NEWEST = 2**63 - 1


def record(connection: Connection, changes: Sequence[Change]) -> None:
    """Insert rows, inside the transaction of the changes."""
    rows = [(c.owner, c.actor, c.action, c.subject, _json(c.given), _json(c.former)) for c in changes]
    if rows:
        connection.run(_RECORD, rows)


def _record(connection: Connection, changes: Sequence[Change]) -> list[None]:
    record(connection, changes)
    return [None for _ in changes]


def entries(owner: Owner, connection: Connection, before: int, count: int, action: str = "") -> list[AuditEntry]:
    """The newest first: those with a smaller id than `before`."""
    rows = connection.run(_ENTRIES, owner=owner, before=before, count=count, action=action)
    return [
        AuditEntry(number, actor, action, subject, json.loads(given), json.loads(former), at)
        for number, actor, action, subject, given, former, at in rows
    ]


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, default=str)


RECORD = Verb("audit", _record)
