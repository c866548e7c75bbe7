"""Results as JSON, for the command line and the API."""

from datetime import UTC, datetime
from typing import Any

TIMES = (
    "created_at", "started_at", "finished_at", "last_checkpoint", "last_progress", "oldest", "since", "until",
    "released_at", "retry_at", "artifacts_dropped_at", "expires_at", "revoked_at", "used_at",
    "failing_since", "held_until",
)  # fmt: skip
"""Fields that the ledger stores in seconds and that JSON shows in ISO 8601."""


def encode(data: object) -> bytes:
    import msgspec

    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        # A lone surrogate, from damaged text or an argument that is not UTF-8.
        import json

        return json.dumps(msgspec.to_builtins(data)).encode()


def when(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_times(data: dict[str, Any]) -> dict[str, Any]:
    """The same fields, with the times as ISO 8601."""
    return {key: when(value) if key in TIMES else value for key, value in data.items()}


def as_data(value: Any) -> Any:
    """A struct as its JSON fields, with the times as ISO 8601; so are structs inside it, but nothing inside a dict."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        return {
            name: when(inner) if name in TIMES else as_data(inner)
            for name, inner in msgspec.structs.asdict(value).items()
        }
    return [as_data(inner) for inner in value] if isinstance(value, list | tuple) else value
