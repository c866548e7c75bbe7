"""Requests with an idempotency key, and their answers, which are kept for a day. A request is entered before it does
anything, with a lease that it renews. A request whose lease is over was lost with its process: the next one with the
same key does it again, and finds what the lost one accepted."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import Owner, Token

KEPT_S = 86_400.0
TIDY = 20
"""Maximum number of old requests that one entry removes."""


class Enter(msgspec.Struct, frozen=True):
    owner: Owner
    key: str
    fingerprint: str
    """Of everything except the body."""
    token: Token
    lease_s: float


class Stored(msgspec.Struct, frozen=True):
    """A request that was entered before."""

    fingerprint: str
    status: int | None
    """None: it is in flight."""
    headers: str | None
    body: bytes | None


class StoreAnswer(msgspec.Struct, frozen=True):
    owner: Owner
    key: str
    token: Token
    fingerprint: str
    """Of the whole payload."""
    status: int
    headers: str
    body: bytes


Lease = tuple[Owner, str, Token, float]

# A request that is too old is as good as none; so is one whose process was lost.
_ENTER = Statement(
    "INSERT INTO requests (owner, key, fingerprint, token, lease_until, created_at) "
    "VALUES (:owner, :key, :fingerprint, :token, {now} + :lease_s, {now}) ON CONFLICT (owner, key) DO UPDATE SET "
    "fingerprint = excluded.fingerprint, token = excluded.token, lease_until = excluded.lease_until, status = NULL, "
    "headers = NULL, body = NULL, created_at = excluded.created_at "
    "WHERE (requests.created_at <= {now} - :kept_s AND requests.lease_until <= {now}) OR (requests.status IS NULL "
    "AND requests.lease_until <= {now} AND requests.fingerprint = excluded.fingerprint) RETURNING token"
)
_STORED = Statement(
    "SELECT fingerprint, status, headers, body FROM requests WHERE owner = :owner AND key = :key {hold}"
)
_TIDY = Statement(
    "DELETE FROM requests WHERE (owner, key) IN (SELECT owner, key FROM requests WHERE created_at <= {now} - :kept_s "
    "AND lease_until <= {now} ORDER BY created_at LIMIT :count)"
)


def _enter(connection: Connection, requests: Sequence[Enter]) -> list[Literal["entered"] | Stored]:
    """Say for each request whether it may begin, or what is there."""
    answers: list[Literal["entered"] | Stored] = []
    for one in requests:
        values = {"owner": one.owner, "key": one.key, "fingerprint": one.fingerprint, "token": one.token}
        if connection.run(_ENTER, **values, lease_s=one.lease_s, kept_s=KEPT_S):
            answers.append("entered")
            continue
        [(fingerprint, status, headers, body)] = connection.run(_STORED, owner=one.owner, key=one.key)
        answers.append(Stored(fingerprint, status, headers, None if body is None else bytes(body)))
    connection.run(_TIDY, kept_s=KEPT_S, count=TIDY)
    return answers


_RENEW = Statement(
    "UPDATE requests SET lease_until = {now} + :lease_s WHERE owner = :owner AND key = :key AND token = :token "
    "RETURNING key"
)
_STORE = Statement(
    "UPDATE requests SET token = NULL, status = :status, headers = :headers, body = :body, fingerprint = :fingerprint "
    "WHERE owner = :owner AND key = :key AND token = :token RETURNING key"
)
_FORGET = Statement("DELETE FROM requests WHERE owner = :owner AND key = :key AND token = :token RETURNING key")


def _renew(connection: Connection, leases: Sequence[Lease]) -> list[bool]:
    return [
        bool(connection.run(_RENEW, owner=owner, key=key, token=token, lease_s=lease_s))
        for owner, key, token, lease_s in leases
    ]


def _store(connection: Connection, answers: Sequence[StoreAnswer]) -> list[bool]:
    return [bool(connection.run(_STORE, **msgspec.structs.asdict(answer))) for answer in answers]


def _forget(connection: Connection, requests: Sequence[tuple[Owner, str, Token]]) -> list[bool]:
    """Remove requests that have done nothing: the next one with the same key begins anew."""
    return [bool(connection.run(_FORGET, owner=owner, key=key, token=token)) for owner, key, token in requests]


ENTER_REQUEST = Verb("enter_request", _enter)
RENEW_REQUEST = Verb("renew_request", _renew)
STORE_ANSWER = Verb("store_answer", _store)
FORGET_REQUEST = Verb("forget_request", _forget)
