"""Who calls the service, and what it may do."""

import msgspec

from penstock.model.nouns import Json, Owner
from penstock.model.scopes import KeyScope as KeyScope

LOCAL = "local"
"""The actor of the command line, of a program that uses the library, and of a server without keys."""

READING = frozenset({KeyScope.SEARCH, KeyScope.READ})
"""The scopes that a tenant token may have."""


class Caller(msgspec.Struct, frozen=True):
    """A caller that was authenticated. The owner comes from its key, never from the request."""

    owner: Owner
    scopes: frozenset[KeyScope]
    actor: str = LOCAL
    """Who the audit log names: `key:ID`, `token:ID` of its parent key, `session:ID`, or `local`."""
    key: str | None = None
    """The id of the key; for a token or a session, of its parent key."""
    collections: tuple[str, ...] | None = None
    """The collections that it may use; None: all of the owner."""
    filter: Json | None = None
    """A metadata filter that everything it sees must match."""
    expires_at: float | None = None
    csrf: str | None = None
    """For a browser session: what requests that change something must repeat in `X-CSRF-Token`."""

    def has(self, scope: KeyScope) -> bool:
        return scope in self.scopes or KeyScope.ADMIN in self.scopes

    def sees(self, collection: str) -> bool:
        return self.collections is None or collection in self.collections
