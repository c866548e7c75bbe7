"""What a message says about objects: events of an upload service, and notifications of object stores.

One parser for all ways on which a message arrives (Kafka, SQS, Lambda, webhook). It accepts

- `{"event": "file_uploaded", "s3_path": "s3://bucket/key", "file_id": …, "owner_id": …, "timestamp": …}`;
- notifications of S3 and of servers that speak as S3 does (`Records`), also inside SNS and SQS;
- events of EventBridge (`"source": "aws.s3"`);
- notifications of seaweedfs by webhook;
- our own dead letters, which contain the message that failed.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from penstock.errors import Permanent

DEPTH = 5
"""Messages in messages, such as S3 in SNS in SQS."""
BAD_EVENT = "bad_event"
"""The reason of a dead letter."""
_BUCKETS = "/buckets/"
_HIDDEN = (".uploads/", ".system/", ".versions/")
"""Folders of a bucket in which seaweedfs keeps parts of its own."""
_KEPT = ("file_id", "file_type", "timestamp")


class ObjectEvent(msgspec.Struct, frozen=True):
    """An object was written or removed."""

    uri: str
    """`s3://BUCKET/KEY` with the key as it is in the bucket, or another URL."""
    removed: bool = False
    literal: str | None = None
    """The URI with the key as the message has it, if that differs. Most servers encode keys (`in%2Fa+b.pdf` or
    `in/a+b.pdf` for `in/a b.pdf`), some do not: if there is no object at `uri`, it is this one."""
    etag: str = ""
    """Of the object that was written, without quotes. Empty: the message does not say."""
    order: str = ""
    """Compares events of the same object: a later one has a greater value. Empty: the message does not say."""
    owner: str | None = None
    """The owner that the message names."""
    metadata: dict[str, Any] = {}
    required: bool = False
    """The sender says that the object is there: it is an error if it is not. A notification may come after its object
    was removed."""


def parse(body: bytes | str) -> list[ObjectEvent]:
    """The events of a message, oldest first; none for a message that is only a test. Raises Permanent (`bad_event`)
    with a sentence for people."""
    return list(_events(_decoded(body), DEPTH))


def newest(events: Iterable[ObjectEvent]) -> list[ObjectEvent]:
    """The newest event of each object. Of events that cannot be compared, it is the last one."""
    found: dict[tuple[str | None, str], ObjectEvent] = {}
    for event in events:
        key = (event.owner, event.uri)
        before = found.get(key)
        if before is None or not is_older(event, before):
            found[key] = event
    return list(found.values())


def is_older(event: ObjectEvent, than: ObjectEvent) -> bool:
    """Whether an event happened before another one of the same object, as far as the messages say."""
    if not event.order or not than.order or event.order[0] != than.order[0]:
        return False
    return event.order < than.order


def _decoded(body: bytes | str) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Permanent("the message is not JSON", reason=BAD_EVENT) from None


def _events(message: Any, depth: int) -> Iterator[ObjectEvent]:
    if not isinstance(message, Mapping) or not depth:
        raise _unknown()
    records, detail = message.get("Records"), message.get("detail")
    if isinstance(records, list):
        for record in records:
            yield from _record(record, depth)
    elif "s3_path" in message or message.get("event") == "file_uploaded":
        yield _upload(message)
    elif message.get("source") == "aws.s3" and isinstance(detail, Mapping):
        yield from _from_event_bridge(message, detail)
    elif isinstance(message.get("event_type"), str) and isinstance(message.get("message"), Mapping):
        yield from _from_seaweedfs(message)
    elif message.get("Event") != "s3:TestEvent":
        yield from _events(_decoded(_wrapped(message)), depth - 1)


def _wrapped(message: Mapping[str, Any]) -> bytes | str:
    """The message that this one contains: of SNS, SQS, or a dead letter of ours."""
    metadata = message.get("metadata")
    if isinstance(metadata, Mapping) and "failure_reason" in metadata:
        if isinstance(text := message.get("event"), Mapping):
            return msgspec.json.encode(text)
        if isinstance(raw := message.get("raw"), str):
            with suppress(ValueError, binascii.Error):
                return base64.b64decode(raw, validate=True)
    for name in ("Message", "body", "Body"):
        if isinstance(inner := message.get(name), str):
            return inner
    raise _unknown()


def _unknown() -> Permanent:
    return Permanent(
        "the message is none of the known events: it needs `s3_path`, or the `Records` of a notification of S3",
        reason=BAD_EVENT,
    )


def _record(record: Any, depth: int) -> Iterator[ObjectEvent]:
    if not isinstance(record, Mapping):
        raise _unknown()
    if isinstance(sns := record.get("Sns"), Mapping):
        yield from _events(_decoded(_wrapped(sns)), depth - 1)
    elif "s3" not in record:
        yield from _events(_decoded(_wrapped(record)), depth - 1)
    else:
        yield from _from_s3(record)


def _from_s3(record: Mapping[str, Any]) -> Iterator[ObjectEvent]:
    name = record.get("eventName")
    kind = name.removeprefix("s3:") if isinstance(name, str) else ""
    bucket, found = _get(record, "s3", "bucket", "name"), _get(record, "s3", "object")
    key = found.get("key") if isinstance(found, Mapping) else None
    if not _is_text(bucket) or not _is_text(key):
        raise Permanent("a record of the message names no bucket or no key", reason=BAD_EVENT)
    removed = kind.startswith(("ObjectRemoved", "LifecycleExpiration"))
    if removed or kind.startswith(("ObjectCreated", "ObjectRestore:Completed")):
        order = _order(found.get("sequencer"), record.get("eventTime"))
        yield from _object(str(bucket), unquote_plus(str(key)), removed, found, order, literal=str(key))


def _from_event_bridge(message: Mapping[str, Any], detail: Mapping[str, Any]) -> Iterator[ObjectEvent]:
    """Its keys are not encoded."""
    bucket, found = _get(detail, "bucket", "name"), detail.get("object")
    key = found.get("key") if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or not _is_text(bucket) or not _is_text(key):
        raise Permanent("the message names no bucket or no key", reason=BAD_EVENT)
    removed = message.get("detail-type") == "Object Deleted"
    if removed or message.get("detail-type") in ("Object Created", "Object Restore Completed"):
        order = _order(found.get("sequencer"), message.get("time"))
        yield from _object(str(bucket), str(key), removed, found, order)


def _object(
    bucket: str, key: str, removed: bool, found: Mapping[str, Any], order: str, literal: str | None = None
) -> Iterator[ObjectEvent]:
    if key.endswith("/") and not found.get("size"):
        # It marks a folder.
        return
    etag = next((str(found[name]).strip('"') for name in ("eTag", "etag") if found.get(name)), "")
    other = f"s3://{bucket}/{literal}" if literal is not None and literal != key else None
    yield ObjectEvent(f"s3://{bucket}/{key}", removed, other, "" if removed else etag, order)


def _from_seaweedfs(message: Mapping[str, Any]) -> Iterator[ObjectEvent]:
    inner, path = message["message"], message.get("key")
    old, new = inner.get("old_entry"), inner.get("new_entry")
    if not isinstance(path, str):
        raise Permanent("the message names no key", reason=BAD_EVENT)
    parent, name = inner.get("new_parent_path"), new.get("name") if isinstance(new, Mapping) else None
    moved = f"{parent}/{name}" if isinstance(parent, str) and isinstance(name, str) else path
    if isinstance(old, Mapping) and (not isinstance(new, Mapping) or moved != path):
        yield from _entry(path, old, removed=True)
    if isinstance(new, Mapping):
        yield from _entry(moved, new, removed=False)


def _entry(path: str, entry: Mapping[str, Any], *, removed: bool) -> Iterator[ObjectEvent]:
    bucket, _, key = path.removeprefix(_BUCKETS).partition("/")
    hidden = bucket.startswith(".") or key.startswith(_HIDDEN)
    if not path.startswith(_BUCKETS) or not key or hidden or entry.get("is_directory"):
        return
    etag = ""
    with suppress(ValueError, TypeError, binascii.Error):
        etag = base64.b64decode(_get(entry, "extended", "Seaweed-X-Amz-ETag"), validate=True).decode()
    chunks = entry.get("chunks")
    times = (
        [one.get("modified_ts_ns") for one in chunks if isinstance(one, Mapping)] if isinstance(chunks, list) else []
    )
    latest = max((time for time in times if isinstance(time, int)), default=0)
    order = f"n{latest:020}" if latest > 0 and not removed else ""
    yield ObjectEvent(f"s3://{bucket}/{key}", removed, None, "" if removed else etag.strip('"'), order)


def _upload(message: Mapping[str, Any]) -> ObjectEvent:
    path, owner, at = message.get("s3_path"), message.get("owner_id"), message.get("timestamp")
    if not _is_text(path):
        raise Permanent("the event has no `s3_path`", reason=BAD_EVENT)
    if owner is not None and not _is_text(owner):
        raise Permanent("the `owner_id` of the event is no text", reason=BAD_EVENT)
    kept = {name: message[name] for name in _KEPT if isinstance(message.get(name), str | int | float)}
    return ObjectEvent(str(path), order=_order(None, at), owner=owner, metadata=kept, required=True)


def _order(sequencer: object, at: object) -> str:
    """Sequencers are hexadecimal numbers without leading zeros, of which the shorter is filled up at its right end.
    Times are compared if both events have only a time."""
    if isinstance(sequencer, str) and sequencer:
        return f"s{sequencer.upper():0<64}"
    return f"t{at}" if isinstance(at, str) and at.endswith("Z") else ""


def _get(within: Any, *names: str) -> Any:
    for name in names:
        within = within.get(name) if isinstance(within, Mapping) else None
    return within


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""
