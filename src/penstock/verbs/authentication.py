"""Authentication of callers of the service, for all owners: keys, tenant tokens and browser sessions."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.errors import Forbidden, NotAuthenticated, PenstockError
from penstock.ledger.engine import api_keys
from penstock.ledger.engine.api_keys import Secret
from penstock.model.callers import READING, Caller, KeyScope
from penstock.verbs import key_texts
from penstock.verbs.key_texts import KeyText
from penstock.verbs.keys import LONGEST_TOKEN_S, SESSION_S, load_jwt
from penstock.verbs.resources import Resources

FRESH_S = 0.7
"""How long what the ledger says about a key is believed. A revoked key is refused everywhere after this time."""
REMEMBERED = 10_000
"""Maximum number of remembered keys."""
USED_S = 300.0
"""How often the last use of a key is written."""


class Session(msgspec.Struct, frozen=True):
    cookie: str
    """The value of an HttpOnly cookie."""
    csrf: str
    lasts_s: float


class Authenticator:
    """Authenticates callers. One object serves a whole process."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._seen = resources.key_changes
        self._ledger = resources.ledger
        self._runtime = resources.runtime
        self._known: OrderedDict[str, tuple[float, Secret | None]] = OrderedDict()
        self._asked: dict[str, asyncio.Task[Secret | None]] = {}
        self._used: dict[str, float] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._any = False
        self._none = -FRESH_S
        """When the ledger was last found without keys."""

    async def any_key(self) -> bool:
        """Whether there is a key, or was one. Then callers need one."""
        self._notice()
        if not self._any and self._runtime.clock() - self._none >= FRESH_S:
            began = self._runtime.clock()
            seen = self._resources.key_changes
            self._any = await self._ledger.read(api_keys.any_key)
            if seen == self._resources.key_changes:
                self._none = began
        return self._any

    async def authenticate(self, text: str) -> Caller:
        """Return the caller that a key, a token or the cookie of a session stands for. Raise NotAuthenticated if it is
        not valid."""
        if len(text) > key_texts.LONGEST or not text.isascii():
            raise _refusal()
        parsed = key_texts.parse(text)
        if parsed is not None:
            return await self._by_key(parsed)
        if text.count(".") == 2:
            return await self._by_token(text)
        raise _refusal()

    async def open_session(self, text: str, actor_name: str = "browser") -> Session:
        """Exchange a key for a browser session, which ends with the key, or after 12 hours."""
        caller = await self.authenticate(text)
        if caller.key is None or not caller.actor.startswith("key:"):
            raise Forbidden("a session is opened with a key")
        made = key_texts.make(self._runtime, key_texts.SESSION)
        scopes = tuple(sorted(caller.scopes))
        new = api_keys.NewKey(
            caller.owner, made.id, actor_name, made.sha256, "", scopes, caller.collections, SESSION_S, caller.actor,
            caller.key,
        )  # fmt: skip
        await self._ledger.write(api_keys.CREATE_KEY, new)
        return Session(made.whole, made.csrf, SESSION_S)

    async def close_session(self, text: str) -> None:
        """End a session. Nothing happens if it is not valid."""
        parsed = key_texts.parse(text)
        if parsed is None or parsed.kind != key_texts.SESSION:
            return
        found = await self._secret(parsed.id)
        if found is not None and found.parent is not None and parsed.matches(found.sha256):
            order = api_keys.Revoke(found.owner, found.id, f"session:{found.parent}")
            await self._ledger.write(api_keys.REVOKE_KEY, order)
            self._known.pop(parsed.id, None)

    def _notice(self) -> None:
        """Ask the ledger again if a key was changed by this process."""
        if self._seen != self._resources.key_changes:
            self._seen = self._resources.key_changes
            self._known.clear()
            self._none = -FRESH_S

    async def close(self) -> None:
        for task in (*self._writing, *self._asked.values()):
            task.cancel()
        await asyncio.gather(*self._writing, *self._asked.values(), return_exceptions=True)

    async def _by_key(self, text: KeyText) -> Caller:
        found = await self._secret(text.id)
        # Compared even if there is no such key, so that the time does not tell.
        matches = text.matches(found.sha256 if found is not None else "0" * 64)
        is_session = text.kind == key_texts.SESSION
        if found is None or not matches or is_session != (found.parent is not None):
            raise _refusal()
        self._check(found)
        self._note_use(found.parent or found.id)
        return Caller(
            found.owner,
            found.scopes,
            f"session:{found.parent}" if is_session else f"key:{found.id}",
            found.parent or found.id,
            found.collections,
            None,
            found.expires_at,
            text.csrf if is_session else None,
        )

    async def _by_token(self, text: str) -> Caller:
        jwt = load_jwt()
        try:
            kid = jwt.get_unverified_header(text).get("kid")
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _refusal() from None
        found = await self._secret(kid) if isinstance(kid, str) and len(kid) == 16 and kid.isalnum() else None
        if found is None or found.parent is not None:
            raise _refusal()
        try:
            # The times are compared below, with the clock of the runtime.
            options = {"require": ["exp", "iat"], "verify_exp": False, "verify_iat": False, "verify_nbf": False}
            claims = jwt.decode(text, found.signing, algorithms=["HS256"], options=options)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _refusal() from None
        self._check(found)
        return self._token_caller(found, claims)

    def _token_caller(self, found: Secret, claims: Mapping[str, Any]) -> Caller:
        now = self._runtime.now()
        try:
            token = msgspec.convert(claims, _Claims)
            scopes = frozenset(KeyScope(scope) for scope in token.scopes)
        except (msgspec.ValidationError, ValueError):
            raise _refusal() from None
        if not token.iat - 60 <= now < token.exp <= token.iat + LONGEST_TOKEN_S or not scopes <= READING:
            raise _refusal()
        places = found.collections
        if token.collections is not None:
            places = tuple(one for one in token.collections if places is None or one in places)
        # The key may have lost a scope since: keys do not change, so this is for those that are made by hand.
        allowed = scopes if KeyScope.ADMIN in found.scopes else scopes & found.scopes
        self._note_use(found.id)
        return Caller(found.owner, allowed, f"token:{found.id}", found.id, places, token.filter, float(token.exp))

    def _check(self, found: Secret) -> None:
        expired = found.expires_at is not None and found.expires_at <= self._runtime.now()
        if not found.valid or expired:
            raise _refusal()

    async def _secret(self, key: str) -> Secret | None:
        """What the ledger says about a key, at most `FRESH_S` old. Callers that ask at the same time share one read."""
        self._notice()
        remembered = self._known.get(key)
        if remembered is not None and self._runtime.clock() - remembered[0] < FRESH_S:
            return remembered[1]
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(self._look(key))
            task.add_done_callback(lambda done: self._asked.pop(key, None))
        return await asyncio.shield(task)

    async def _look(self, key: str) -> Secret | None:
        # From before the read: what is revoked while it goes on may be seen or not.
        began = self._runtime.clock()
        found = await self._ledger.read(api_keys.secret, key)
        self._known[key] = (began, found)
        self._known.move_to_end(key)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return found

    def _note_use(self, key: str) -> None:
        now = self._runtime.clock()
        if now - self._used.get(key, -USED_S) < USED_S:
            return
        self._used[key] = now
        task = asyncio.create_task(self._write_use(key))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_use(self, key: str) -> None:
        try:
            await self._ledger.write(api_keys.USED_KEY, key)
        except PenstockError:
            # It is for information only: a full disk or a read-only home must not keep callers out.
            self._used.pop(key, None)


class _Claims(msgspec.Struct):
    iat: int
    exp: int
    scopes: tuple[str, ...]
    collections: tuple[str, ...] | None = None
    filter: dict[str, Any] | None = None


def _refusal() -> NotAuthenticated:
    return NotAuthenticated("the key is not valid: it is unknown, revoked or expired")
