"""What schemathesis must know to send to this API."""

import os
from typing import Any

import schemathesis

OWN = os.environ.get("FUZZ_KEY", "").split("_")[1:2]


@schemathesis.serializer("application/offset+octet-stream")
def as_bytes(context: object, value: object) -> bytes:
    """The body of a tus request is bytes."""
    if isinstance(value, bytes):
        return value
    return getattr(value, "data", None) or str(value).encode("utf-8", "replace")


@schemathesis.hook
def filter_case(context: object, case: Any) -> bool:
    """The run must not revoke its own key."""
    return case.path_parameters.get("key_id") not in OWN if case.path_parameters else True
