"""The texts of keys and sessions: `pk_ID_SECRET` and `ps_ID_SECRET`. A checksum ends the secret, so that a mistyped key
is refused without a look into the ledger, and scanners can recognise a key that was published by mistake."""

import hashlib
import hmac
import re
import zlib
from typing import NamedTuple

from penstock.runtime import Runtime

KEY, SESSION = "pk", "ps"
_TEXT = re.compile(r"(pk|ps)_([0-9a-f]{16})_([0-9a-f]{64})([0-9a-f]{8})")
LONGEST = 2_000
"""No key, session or token is longer."""


class KeyText(NamedTuple):
    kind: str
    id: str
    whole: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.whole.encode()).hexdigest()

    def matches(self, sha256: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self.sha256, sha256)

    @property
    def csrf(self) -> str:
        """What a page of the session repeats in requests. The cookie cannot be made from it."""
        return hmac.new(self.whole.encode(), b"csrf", hashlib.sha256).hexdigest()


def make(runtime: Runtime, kind: str = KEY) -> KeyText:
    key, secret = runtime.secret(64), runtime.secret()
    return KeyText(kind, key, f"{kind}_{key}_{secret}{_checksum(kind, key, secret)}")


def parse(text: str) -> KeyText | None:
    """Return None for a text that cannot be a key."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    kind, key, secret, checksum = found.groups()
    return KeyText(kind, key, text) if checksum == _checksum(kind, key, secret) else None


def _checksum(kind: str, key: str, secret: str) -> str:
    return f"{zlib.crc32(f'{kind}_{key}_{secret}'.encode()):08x}"
