"""Fingerprints identify artifacts by their inputs. Equal fingerprints of one owner mean the same artifact."""

import hashlib
import json
from typing import Any


def fingerprint(*parts: Any) -> str:
    """A hash of JSON values that is the same on every machine."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:40]
