"""The API keys of an owner, the tenant tokens that are made from them, and the audit log."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from penstock.config import check_name
from penstock.errors import Forbidden, NotFound, UsageError
from penstock.ledger.engine import api_keys, audit_log
from penstock.ledger.engine.api_keys import ApiKey
from penstock.ledger.engine.audit_log import AuditEntry
from penstock.model.callers import READING, KeyScope
from penstock.search.filters import compiled
from penstock.verbs import arguments, key_texts
from penstock.verbs.scope import Scope, record

LONGEST_TOKEN_S = 86_400.0
SESSION_S = 12 * 3600.0
MOST_COLLECTIONS = 100


class CreatedKey(msgspec.Struct, frozen=True):
    key: ApiKey
    secret: str
    """The whole key. It cannot be shown again."""


class Token(msgspec.Struct, frozen=True):
    token: str
    expires_at: float


async def create_key(
    scope: Scope,
    *,
    scopes: Iterable[str] = ("search", "read"),
    name: str = "",
    collections: Iterable[str] | None = None,
    expires_s: float | None = None,
) -> CreatedKey:
    """Create an API key of this owner. The result is the only place where the whole key appears: the ledger stores its
    hash. `collections`: the only ones that it may use. `expires_s`: seconds until it expires."""
    text = key_texts.make(scope.runtime)
    new = api_keys.NewKey(
        scope.owner,
        text.id,
        arguments.text("name", name),
        text.sha256,
        scope.runtime.secret(),
        tuple(sorted(_scopes(scopes))),
        _collections(collections),
        _lasting(expires_s),
        scope.actor,
    )
    made = CreatedKey(await scope.ledger.write(api_keys.CREATE_KEY, new), text.whole)
    scope.resources.key_changes += 1
    return made


async def list_keys(scope: Scope, *, after: str = "", limit: int = 100) -> list[ApiKey]:
    """Return the keys in the order of their ids, those that were revoked too."""
    most = arguments.count("limit", limit)
    return await scope.ledger.read(partial(api_keys.listed, scope.owner), arguments.text("after", after), most)


async def revoke_key(scope: Scope, key: str) -> ApiKey:
    """Revoke a key, with its tokens and sessions. Every process refuses them within a second. A key that is revoked
    already stays as it is."""
    wanted = arguments.text("key", key)
    await scope.ledger.write(api_keys.REVOKE_KEY, api_keys.Revoke(scope.owner, wanted, scope.actor))
    scope.resources.key_changes += 1
    found = await scope.ledger.read(partial(api_keys.get, scope.owner), wanted)
    if found is None:
        raise NotFound(f"no key {wanted!r}: `penstock key list` shows them")
    return found


async def create_token(
    scope: Scope,
    key: str,
    *,
    scopes: Iterable[str] = ("search", "read"),
    collections: Iterable[str] | None = None,
    filter: Mapping[str, Any] | None = None,
    expires_s: float = 3600.0,
) -> Token:
    """Create a tenant token from a key: a JWT (HS256) that only reads, at most for 24 hours, in some collections and
    only documents that match a metadata filter. It is not stored, and is refused as soon as its key is."""
    jwt = load_jwt()
    parent = await scope.ledger.read(api_keys.secret, arguments.text("key", key))
    if parent is None or parent.owner != scope.owner or parent.parent is not None or not parent.valid:
        raise NotFound(f"no valid key {key!r}: `penstock key list` shows them")
    chosen, places = _scopes(scopes), _collections(collections)
    if not chosen <= READING:
        raise UsageError(f"a token has only the scopes {', '.join(sorted(READING))}")
    if KeyScope.ADMIN not in parent.scopes and (missing := chosen - parent.scopes):
        raise Forbidden(f"the key has not the scope {', '.join(sorted(missing))}")
    if parent.collections is not None:
        places = parent.collections if places is None else places
        if beyond := set(places) - set(parent.collections):
            raise Forbidden(f"the key may not use the collection {', '.join(sorted(beyond))}")
    if filter is not None:
        compiled(filter)
    lasts = arguments.seconds("expires_s", expires_s)
    if lasts is None or not 1 <= lasts <= LONGEST_TOKEN_S:
        raise UsageError(f"expires_s {expires_s!r}: use 1 to {LONGEST_TOKEN_S:,.0f} seconds")
    now = scope.runtime.now()
    claims = {"iat": int(now), "exp": int(now + lasts), "scopes": sorted(chosen), "collections": places}
    made = jwt.encode({**claims, "filter": filter}, parent.signing, algorithm="HS256", headers={"kid": parent.id})
    if len(made) > key_texts.LONGEST:
        raise UsageError(f"a token has at most {key_texts.LONGEST:,} characters: use a shorter filter")
    given = {"expires_at": claims["exp"], "scopes": claims["scopes"], "collections": places, "filter": filter}
    await record(scope, "token.create", parent.id, given)
    return Token(made, float(int(now + lasts)))


async def list_audit(
    scope: Scope, *, before: int = audit_log.NEWEST, limit: int = 100, action: str = ""
) -> list[AuditEntry]:
    """Return the changes of this owner's data, the newest first: those with a smaller id than `before`."""
    count, start = arguments.count("limit", limit), arguments.number("before", before)
    return await scope.ledger.read(
        partial(audit_log.entries, scope.owner), start, count, arguments.text("action", action)
    )


def _scopes(given: Iterable[str]) -> frozenset[KeyScope]:
    names = arguments.texts("scopes", given)
    if not names or (wrong := [name for name in names if name not in list(KeyScope)]):
        raise UsageError(f"scopes {wrong if names else names!r}: use some of {', '.join(KeyScope)}")
    return frozenset(map(KeyScope, names))


def _collections(given: Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    found = tuple(dict.fromkeys(check_name("collection", name) for name in arguments.texts("collections", given)))
    if not 1 <= len(found) <= MOST_COLLECTIONS:
        raise UsageError(f"collections: name 1 to {MOST_COLLECTIONS} of them, or none to allow all")
    return found


def _lasting(expires_s: float | None) -> float | None:
    lasts = arguments.seconds("expires_s", expires_s)
    if lasts is not None and lasts <= 0:
        raise UsageError(f"expires_s {expires_s!r}: expected more than 0 seconds")
    return lasts


def load_jwt() -> Any:
    try:
        import jwt
    except ImportError:
        raise UsageError("tokens need the extra `serve`: pip install 'penstock-rag[serve]'") from None
    return jwt
