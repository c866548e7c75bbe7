"""Headers of webhooks, signed as Standard Webhooks (standardwebhooks.com) describe it: receivers verify them with a
library of that name."""

import base64
import binascii
import hashlib
import hmac

from penstock.runtime import Runtime

PREFIX = "whsec_"


def new_secret(runtime: Runtime) -> str:
    return PREFIX + base64.b64encode(bytes.fromhex(runtime.secret())).decode()


def _key(secret: str) -> bytes:
    """A secret that begins with `whsec_` is base64, as receivers expect. Any other is taken as it is."""
    if secret.startswith(PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def signature(secret: str, message: str, at: int, body: bytes) -> str:
    signed = hmac.new(_key(secret), f"{message}.{at}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(signed).decode()}"


def headers(secret: str, message: str, kind: str, attempt: int, at: int, body: bytes) -> dict[str, str]:
    """`message`: the id of the event, the same for every attempt; `attempt`: 1 for the first."""
    return {
        "Content-Type": "application/json",
        "Webhook-Id": message,
        "Webhook-Timestamp": str(at),
        "Webhook-Signature": signature(secret, message, at, body),
        "Penstock-Event": kind,
        "Penstock-Delivery-Attempt": str(attempt),
    }
