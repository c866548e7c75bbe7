import base64
import json
from functools import reduce
from typing import Any

import pytest

from penstock.errors import Permanent
from penstock.streams.notifications import ObjectEvent, is_older, newest, parse

UPLOADED = {
    "event": "file_uploaded",
    "file_id": "01H8XK3M5P6Q7R8S9T0V",
    "s3_path": "s3://my-bucket/uploads/user_123/01H8XK3/report.pdf",
    "file_type": "application/pdf",
    "owner_id": "user_123",
    "timestamp": "2025-06-14T09:00:00Z",
}


def record(key: str, kind: str = "s3:ObjectCreated:Put", **fields: Any) -> dict[str, Any]:
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": kind.removeprefix("s3:"),
        "eventTime": "2026-01-01T00:00:00.000Z",
        "s3": {"bucket": {"name": "shelves"}, "object": {"key": key, "size": 5, "eTag": "abc", **fields}},
    }


def read(message: Any) -> list[ObjectEvent]:
    return parse(json.dumps(message))


def test_an_upload_names_its_object_its_owner_and_what_the_service_knows() -> None:
    (event,) = read(UPLOADED)
    assert event.uri == UPLOADED["s3_path"]
    assert event.owner == "user_123"
    assert event.metadata == {name: UPLOADED[name] for name in ("file_id", "file_type", "timestamp")}


@pytest.mark.parametrize("key", ["in%2Fa+b.pdf", "in/a+b.pdf", "in/a%20b.pdf"])
def test_both_encodings_of_a_key_mean_the_same_object(key: str) -> None:
    (event,) = read({"Records": [record(key)]})
    assert event.uri == "s3://shelves/in/a b.pdf"
    assert event.literal == f"s3://shelves/{key}"
    assert event.etag == "abc"


@pytest.mark.parametrize("key", ["in/ü.txt", "in/100%.txt", "plain.txt"])
def test_a_key_that_needs_no_decoding_is_what_it_is(key: str) -> None:
    (event,) = read({"Records": [record(key)]})
    assert (event.uri, event.literal) == (f"s3://shelves/{key}", None)


def test_a_notification_is_found_in_every_wrapping() -> None:
    plain = {"Records": [record("a.txt"), record("b.txt", "s3:ObjectRemoved:Delete")]}
    sns = {"Type": "Notification", "TopicArn": "arn:aws:sns:x", "Message": json.dumps(plain)}
    wrapped = [
        sns,
        {"Records": [{"EventSource": "aws:sns", "Sns": sns}]},
        {"Records": [{"eventSource": "aws:sqs", "body": json.dumps(sns)}]},
        {"MessageId": "1", "Body": json.dumps(plain)},
        {"metadata": {"failure_reason": "object_gone"}, "event": plain},
        {
            "metadata": {"failure_reason": "object_gone"},
            "raw": base64.b64encode(json.dumps(plain).encode()).decode(),
        },
    ]
    wanted = read(plain)
    assert [(event.uri, event.removed) for event in wanted] == [
        ("s3://shelves/a.txt", False),
        ("s3://shelves/b.txt", True),
    ]
    for message in wrapped:
        assert read(message) == wanted


def test_an_event_of_event_bridge_has_its_key_as_it_is() -> None:
    detail = {"bucket": {"name": "shelves"}, "object": {"key": "a+b%20c.txt", "etag": "e", "sequencer": "1"}}
    (made,) = read({"source": "aws.s3", "detail-type": "Object Created", "detail": detail})
    (gone,) = read({"source": "aws.s3", "detail-type": "Object Deleted", "detail": detail})
    assert (made.uri, made.literal, made.etag, made.removed) == ("s3://shelves/a+b%20c.txt", None, "e", False)
    assert gone.removed


def test_notifications_of_seaweedfs_tell_writes_moves_and_removals() -> None:
    def entry(name: str, at: int) -> dict[str, Any]:
        etag = base64.b64encode(b"5d41402abc4b2a76b9719d911017c592").decode()
        return {"name": name, "chunks": [{"modified_ts_ns": at}], "extended": {"Seaweed-X-Amz-ETag": etag}}

    def told(kind: str, key: str, **message: Any) -> list[ObjectEvent]:
        return read({"event_type": kind, "key": key, "message": message})

    path, parent = "/buckets/shelves/in/a b+c.pdf", "/buckets/shelves/in"
    (made,) = told("create", path, new_entry=entry("a b+c.pdf", 5), new_parent_path=parent)
    assert made.uri == "s3://shelves/in/a b+c.pdf"
    assert made.etag == "5d41402abc4b2a76b9719d911017c592"
    (again,) = told(
        "update", path, old_entry=entry("a b+c.pdf", 5), new_entry=entry("a b+c.pdf", 60), new_parent_path=parent
    )
    assert is_older(made, again)
    assert not is_older(again, made)
    (gone,) = told("delete", path, old_entry=entry("a b+c.pdf", 60))
    assert (gone.uri, gone.removed) == (made.uri, True)
    moved = told(
        "rename",
        path,
        old_entry=entry("a b+c.pdf", 60),
        new_entry=entry("d.pdf", 60),
        new_parent_path="/buckets/shelves",
    )
    assert [(one.uri, one.removed) for one in moved] == [(made.uri, True), ("s3://shelves/d.pdf", False)]
    folder = {"name": "in", "is_directory": True}
    assert told("create", "/buckets/shelves/in", new_entry=folder, new_parent_path="/buckets/shelves") == []
    assert told("create", "/buckets/shelves/.uploads/x/1.part", new_entry=entry("1.part", 1)) == []
    assert told("create", "/etc/passwd", new_entry=entry("passwd", 1)) == []


def test_what_names_no_object_is_no_event() -> None:
    assert read({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "shelves"}) == []
    assert read({"Records": []}) == []
    assert read({"Records": [record("in/", size=0)]}) == []
    assert read({"Records": [record("a.txt", "s3:ObjectTagging:Put")]}) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b"3",
        b"[]",
        b"{}",
        b'{"event": "file_uploaded"}',
        b'{"s3_path": 3}',
        b'{"s3_path": "s3://b/k", "owner_id": ["x"]}',
        b'{"Records": [3]}',
        b'{"Records": [{"s3": {}}]}',
        b'{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": 3}}}]}',
        b'{"Message": "{"}',
        b'{"source": "aws.s3", "detail": {}}',
        b'{"event_type": "create", "message": {}}',
        b'{"metadata": {"failure_reason": "x"}, "raw": "%%%"}',
        reduce(lambda inner, _: json.dumps({"Message": inner}), range(9), json.dumps(UPLOADED)).encode(),
    ],
)
def test_anything_else_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(Permanent) as refused:
        parse(body)
    assert refused.value.reason == "bad_event"


def test_the_newest_event_of_an_object_is_known_by_its_sequencer() -> None:
    # Sequencers may have different lengths: the shorter one is filled up with zeros.
    late, early = (
        read({"Records": [record("a.txt", sequencer=one, eTag=one)]})[0]
        for one in ("0055AED6DCD90281E6", "0055AED6DCD90281E5FF")
    )
    other = read({"Records": [record("b.txt")]})[0]
    assert is_older(early, late)
    assert newest([late, early, other]) == [late, other]
    assert newest([early, late]) == [late]
    nameless = ObjectEvent(late.uri)
    assert newest([late, nameless]) == [nameless]
