# ruff: noqa: F401, F811
"""`consume` when messages, streams and object stores misbehave."""

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration.test_streams import drained, kafka, shelf, sources, topic
from tests.kit import s3, streams
from tests.kit.streams import Topic, uploaded

from penstock.errors import Away
from penstock.runtime import Runtime
from penstock.sources.base import Found
from penstock.sources.bucket import BucketSource
from penstock.streams.base import Message
from penstock.streams.kafka import KafkaStream
from penstock.streams.notifications import BAD_EVENT
from penstock.streams.sqs import SqsStream
from penstock.verbs.message_letters import LONGEST, letter_body, stored_body, worst
from penstock.verbs.object_events import Outcome


class Away1:
    """Fails the first times that it is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *failing: int) -> None:
        self.calls = 0
        real = getattr(KafkaStream, name)

        async def method(stream: KafkaStream, *args: Any) -> Any:
            self.calls += 1
            if self.calls in failing:
                raise Away("the broker is away")
            return await real(stream, *args)

        monkeypatch.setattr(KafkaStream, name, method)


async def test_i1_messages_are_not_lost_if_the_lag_cannot_be_asked(
    start_app: StartApp,
    shelf: s3.Prefix,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = await start_app()
    took: list[int] = []
    failed: list[int] = []
    take, lag = KafkaStream.take, KafkaStream.lag

    async def taking(stream: KafkaStream, most: int, wait_s: float) -> list[Message]:
        found = await take(stream, most, wait_s)
        took.append(len(found))
        return found

    async def asking(stream: KafkaStream) -> int | None:
        if took[-1] and not failed:
            failed.append(1)
            raise Away("the broker is away")
        return await lag(stream)

    monkeypatch.setattr(KafkaStream, "take", taking)
    monkeypatch.setattr(KafkaStream, "lag", asking)
    monkeypatch.setattr("penstock.verbs.consuming.LAG_S", 0.0)
    topic.send(uploaded(shelf.put("a.txt", b"one")))
    async with asyncio.timeout(100):
        done = await drained(app, topic)
    assert (done.messages, done.accepted, done.lag, failed) == (1, 1, 0, [1])
    assert await sources(app) == {f"{shelf.url}/a.txt"}


async def test_i9_messages_of_unusual_kinds_stop_nothing(
    start_app: StartApp,
    shelf: s3.Prefix,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    app = await start_app()
    nested = b'{"a":' * 980 + b"1" + b"}" * 980
    letter = b'{"metadata":{"failure_reason":"x"},"event":' + nested + b"}"
    bad = [b"\xff" * 900_000, nested, letter, json.dumps(uploaded("az://not-set-up/a.txt")).encode(),
           b'{"s3_path":"s3://a..b/x\\u0000"}']  # fmt: skip
    topic.send(*bad, uploaded(shelf.put("good.txt", b"good")))
    done = await drained(app, topic)
    assert (done.messages, done.accepted, done.refused) == (6, 1, 5)
    assert await sources(app) == {f"{shelf.url}/good.txt"}
    assert (await app.replay()).messages == 0
    assert (await app.list_dead_letters()).by_reason == {BAD_EVENT: 5}


async def test_a_letter_is_sent_once_although_others_have_to_wait(
    start_app: StartApp,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = await start_app()
    reject = Away1(monkeypatch, "reject", 2, 3)
    topic.send(b"one", b"two")
    done = await drained(app, topic)
    assert (done.messages, done.refused, reject.calls) == (2, 2, 4)


async def test_a_topic_that_is_read_from_its_end_has_no_more_messages(
    start_app: StartApp,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_AUTO_OFFSET_RESET", "latest")
    topic.send(b"one", b"two")
    done = await drained(await start_app(), topic)
    assert (done.messages, done.lag) == (0, 0)


class Records:
    """A consumer whose answers are given."""

    def __init__(self, *records: Any) -> None:
        self.records = list(records)
        self.paused = 0

    def consume(self, most: int, wait_s: float) -> list[Any]:
        records, self.records = self.records, []
        return records

    def assignment(self) -> list[str]:
        return ["t/0"]

    def pause(self, partitions: Sequence[str]) -> None:
        self.paused += 1


class Record:
    def __init__(self, offset: int, error: Any = None) -> None:
        self._offset, self._error = offset, error

    def error(self) -> Any:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return b"x"


async def test_i1_messages_that_come_with_an_error_are_not_lost() -> None:
    from confluent_kafka import KafkaError

    stream = KafkaStream("host:1/t", Runtime(), {})
    stream._consumer = Records(Record(0), Record(1, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), Record(2))  # type: ignore[assignment]
    with pytest.raises(Away):
        await stream.take(10, 0.0)
    assert [one.handle[2] for one in await stream.take(10, 0.0)] == [0, 2]


async def test_partitions_that_come_while_all_are_paused_are_paused_too() -> None:
    stream = KafkaStream("host:1/t", Runtime(), {})
    consumer = Records()
    stream._consumer = consumer  # type: ignore[assignment]
    await stream.keep(())
    await stream.keep(())
    assert consumer.paused == 2


async def test_messages_of_sqs_that_are_gone_need_no_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with streams.sqs() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", endpoint)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("sqs")
        client.create_queue(QueueName="uploads")
        stream = SqsStream("uploads", Runtime())
        await stream.confirm([Message(b"", "1", "this handle is not valid")])
        await stream.close()
        client.close()


async def test_a_caller_of_the_service_cannot_replay_what_the_operator_forbids(
    start_app: StartApp,
    shelf: s3.Prefix,
    topic: Topic,
) -> None:
    app = await start_app()
    topic.send(uploaded(shelf.put("out.txt", b"of others")))
    assert (await drained(app, topic, places=[f"{shelf.url}/in"])).refused == 1
    caller = app.for_owner("default", "key k1")
    assert (await caller.replay()).messages == 0
    assert await sources(app) == set()
    assert (await app.replay()).messages == 1
    # One forbidden object decides about a message of several.
    both = [Outcome("refused", "object_missing"), Outcome("refused", "place_not_allowed")]
    assert worst(both) == both[1]


def test_the_kept_part_of_a_large_message_can_be_decoded() -> None:
    kept = stored_body(b"\xff" * 2_000_000)
    assert len(kept) <= LONGEST
    assert set(base64.b64decode(kept.removeprefix("base64:"))) == {0xFF}


def test_every_message_has_a_letter() -> None:
    # Each depth may be one that can be decoded, but not encoded within a letter.
    for depth in range(900, 1_000):
        body = b'{"a":' * depth + b"1" + b"}" * depth
        assert letter_body(Message(body, "1"), "s", Outcome("refused", BAD_EVENT), "now")


async def test_i9_a_panic_of_a_library_is_a_dead_letter_and_stops_nothing(
    start_app: StartApp, shelf: s3.Prefix, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app()
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    find = BucketSource.find

    async def finding(source: BucketSource, uri: str) -> Found | None:
        if uri.endswith("cursed.txt"):
            raise panic("index out of\x00 bounds")
        return await find(source, uri)

    monkeypatch.setattr(BucketSource, "find", finding)
    topic.send(uploaded(shelf.put("cursed.txt", b"one")), uploaded(shelf.put("good.txt", b"two")))
    done = await drained(app, topic)
    assert (done.messages, done.accepted, done.refused) == (2, 1, 1)
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, "index out of" in letter.error) == ("unexpected", True)
