"""API keys, and the browser sessions that are made from them. The ledger has the SHA-256 of a secret, never the
secret. A session is a row with a parent, and is valid only as long as its parent is."""

import json
from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import audit_log
from penstock.model.callers import KeyScope
from penstock.model.nouns import Owner


class ApiKey(msgspec.Struct, frozen=True):
    """A key as it is listed, without anything secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    collections: tuple[str, ...] | None
    created_at: float
    created_by: str
    expires_at: float | None
    revoked_at: float | None
    used_at: float | None
    """About when it was last used."""


class NewKey(msgspec.Struct, frozen=True):
    owner: Owner
    id: str
    name: str
    sha256: str
    signing: str
    """What tenant tokens of this key are signed with."""
    scopes: tuple[str, ...]
    collections: tuple[str, ...] | None
    lasts_s: float | None
    actor: str
    parent: str | None = None
    """For a session: its key."""


class Secret(msgspec.Struct, frozen=True):
    """What is needed to authenticate a caller."""

    id: str
    owner: Owner
    parent: str | None
    sha256: str
    signing: str
    scopes: frozenset[KeyScope]
    collections: tuple[str, ...] | None
    expires_at: float | None
    """By the ledger's clock, the earlier one of itself and its parent."""
    valid: bool
    """Whether neither it nor its parent is revoked or expired."""


_INSERT = Statement(
    "INSERT INTO api_keys (id, owner, name, parent, sha256, signing, scopes, collections, created_at, created_by, "
    "expires_at) VALUES (:id, :owner, :name, :parent, :sha256, :signing, :scopes, :collections, {now}, :actor, "
    "{now} + :lasts_s) RETURNING created_at, expires_at"
)
_TIDY = Statement(
    "DELETE FROM api_keys WHERE parent = :parent AND owner = :owner AND (expires_at <= {now} OR revoked_at IS NOT NULL)"
)


def _create(connection: Connection, keys: Sequence[NewKey]) -> list[ApiKey]:
    answers = []
    for key in keys:
        if key.parent is not None:
            connection.run(_TIDY, parent=key.parent, owner=key.owner)
        collections = None if key.collections is None else json.dumps(key.collections)
        values = {"id": key.id, "owner": key.owner, "name": key.name, "parent": key.parent, "sha256": key.sha256}
        values |= {"signing": key.signing, "scopes": " ".join(key.scopes), "collections": collections}
        [(created, expires)] = connection.run(_INSERT, **values, actor=key.actor, lasts_s=key.lasts_s)
        action = "key.create" if key.parent is None else "session.create"
        given = {"name": key.name, "scopes": key.scopes, "collections": key.collections, "expires_at": expires}
        audit_log.record(connection, [audit_log.Change(key.owner, key.actor, action, key.id, given)])
        answers.append(ApiKey(key.id, key.name, key.scopes, key.collections, created, key.actor, expires, None, None))
    return answers


_LISTED = Statement(
    "SELECT id, name, scopes, collections, created_at, created_by, expires_at, revoked_at, used_at FROM api_keys "
    "WHERE owner = :owner AND parent IS NULL AND id > :after ORDER BY id LIMIT :count"
)
_ONE = Statement(
    "SELECT id, name, scopes, collections, created_at, created_by, expires_at, revoked_at, used_at FROM api_keys "
    "WHERE id = :id AND {owner} AND parent IS NULL"
)
_REVOKE = Statement(
    "UPDATE api_keys SET revoked_at = {now} WHERE id = :id AND {owner} AND revoked_at IS NULL "
    "RETURNING name, scopes, parent"
)


class Revoke(msgspec.Struct, frozen=True):
    owner: Owner
    id: str
    actor: str


def _revoke(connection: Connection, orders: Sequence[Revoke]) -> list[bool]:
    """Whether the key was valid until now. Its tokens and sessions are then not valid any more either."""
    answers = []
    for order in orders:
        rows = connection.run(_REVOKE, id=order.id, owner=order.owner)
        for name, scopes, parent in rows:
            action = "key.revoke" if parent is None else "session.end"
            former = {"name": name, "scopes": scopes.split()}
            audit_log.record(connection, [audit_log.Change(order.owner, order.actor, action, order.id, {}, former)])
        answers.append(bool(rows))
    return answers


def listed(owner: Owner, connection: Connection, after: str, count: int) -> list[ApiKey]:
    return [_key(row) for row in connection.run(_LISTED, owner=owner, after=after, count=count)]


def get(owner: Owner, connection: Connection, key: str) -> ApiKey | None:
    return next((_key(row) for row in connection.run(_ONE, owner=owner, id=key)), None)


def _key(row: tuple[object, ...]) -> ApiKey:
    key, name, scopes, collections, *times = row
    return ApiKey(str(key), str(name), tuple(str(scopes).split()), _collections(collections), *times)  # type: ignore[arg-type]


def _collections(stored: object) -> tuple[str, ...] | None:
    return None if stored is None else tuple(json.loads(str(stored)))


_SECRET = Statement(
    "SELECT k.id, k.owner, k.parent, k.sha256, coalesce(p.signing, k.signing), k.scopes, k.collections, "
    "CASE WHEN p.expires_at < k.expires_at THEN p.expires_at ELSE k.expires_at END, "
    "k.revoked_at IS NULL AND p.revoked_at IS NULL AND coalesce(k.expires_at > {now}, true) "
    "AND coalesce(p.expires_at > {now}, true) AND (k.parent IS NULL) = (p.id IS NULL) "
    "FROM api_keys k LEFT JOIN api_keys p ON p.id = k.parent WHERE k.id = :id"
)
_ANY = Statement("SELECT EXISTS (SELECT 1 FROM api_keys)")
_USED = Statement("UPDATE api_keys SET used_at = {now} WHERE id IN (SELECT r.id FROM {rows})", rows="id text")


def secret(connection: Connection, key: str) -> Secret | None:
    """What a key is compared with, whoever owns it."""
    for name, owner, parent, digest, signing, scopes, collections, expires, valid in connection.run(_SECRET, id=key):
        allowed = frozenset(KeyScope(scope) for scope in scopes.split())
        return Secret(name, owner, parent, digest, signing, allowed, _collections(collections), expires, bool(valid))
    return None


def any_key(connection: Connection) -> bool:
    """Whether there has ever been a key. Then nobody gets in without one, even if all are revoked."""
    return bool(connection.run(_ANY)[0][0])


def _used(connection: Connection, keys: Sequence[str]) -> list[None]:
    connection.run(_USED, [(key,) for key in sorted(set(keys))])
    return [None for _ in keys]


CREATE_KEY = Verb("create_key", _create)
REVOKE_KEY = Verb("revoke_key", _revoke)
USED_KEY = Verb("used_key", _used)
