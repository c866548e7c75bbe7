"""`consume`: events of uploads and notifications of object stores, from Kafka and SQS, with objects in a real S3
server. Kafka is the mock cluster of librdkafka here; `docs/how-to/streams.md` says what was tried with Apache Kafka."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit import s3, streams
from tests.kit.s3 import S3Server
from tests.kit.streams import Kafka, Topic, notification, uploaded

from penstock.app import App
from penstock.errors import ConfigError, UsageError
from penstock.ledger.reads import queue
from penstock.verbs.consuming import Consumed
from penstock.verbs.message_letters import stored_body


@pytest.fixture(scope="module")
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
def topic(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Topic:
    # The mock keeps a consumer that has left for as long.
    monkeypatch.setenv("KAFKA_SESSION_TIMEOUT_MS", "6000")
    monkeypatch.setenv("KAFKA_HEARTBEAT_INTERVAL_MS", "1000")
    return kafka.topic()


@pytest.fixture
def shelf(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> s3.Prefix:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3.Prefix(s3_server)


async def drained(app: App, topic: Topic, **options: Any) -> Consumed:
    return await app.consume(topic.url, until_empty=True, **options)


async def sources(app: App, owner: str = "default") -> set[str]:
    return {one.source for one in await app.for_owner(owner).list_documents(limit=1000)}


async def test_events_of_uploads_become_documents_of_their_owners(
    start_app: StartApp, shelf: s3.Prefix, topic: Topic
) -> None:
    app = await start_app()
    ann = [shelf.put(f"ann/{i}.txt", f"text {i}".encode()) for i in range(20)]
    topic.send(*(uploaded(uri, owner_id="ann", file_id=f"f{i}") for i, uri in enumerate(ann)))
    topic.send(uploaded(shelf.put("b.txt", b"of nobody")))
    first = await drained(app, topic)
    assert (first.messages, first.accepted, first.refused, first.lag) == (21, 21, 0, 0)
    assert await sources(app, "ann") == set(ann)
    assert await sources(app) == {f"{shelf.url}/b.txt"}
    one = (await app.for_owner("ann").list_documents(name="7.txt"))[0]
    assert one.metadata["file_id"] == "f7"
    assert (await app.run()).completed == 21
    # Delivered again, by another consumer or from the beginning: nothing is read or made twice.
    topic.send(*(uploaded(uri, owner_id="ann") for uri in ann))
    again = await drained(app, topic)
    assert (again.messages, again.accepted, again.unchanged) == (20, 0, 20)
    assert (await app.run()).completed == 0


async def test_i9_a_message_that_cannot_be_used_is_a_dead_letter_in_both_places_and_stops_nothing(
    start_app: StartApp, shelf: s3.Prefix, topic: Topic
) -> None:
    app = await start_app()
    bad: list[bytes | dict[str, Any]] = [
        b"\xff\x00 no text",
        {"what": "else"},
        uploaded("file:///etc/passwd"),
        uploaded("http://127.0.0.1/x"),
        uploaded(f"{shelf.url}/missing.txt", owner_id="ann"),
        uploaded(f"{shelf.url}/a.txt", owner_id="../ann"),
    ]
    topic.send(*bad, uploaded(shelf.put("good.txt", b"good")))
    done = await drained(app, topic)
    assert (done.messages, done.accepted, done.refused) == (7, 1, 6)
    assert await sources(app) == {f"{shelf.url}/good.txt"}
    letters = (await app.list_dead_letters()).letters
    assert sorted(letter.reason for letter in letters) == ["bad_event"] * 5
    assert (await app.for_owner("ann").list_dead_letters()).by_reason == {"object_missing": 1}
    assert all(letter.message is not None and letter.message.stream == topic.stream for letter in letters)
    copies = [json.loads(body) for _, body in topic.kafka.all_of(f"{topic.name}.dlq", 6)]
    assert sorted(copy["metadata"]["failure_reason"] for copy in copies) == ["bad_event"] * 5 + ["object_missing"]
    assert base64.b64decode(next(copy["raw"] for copy in copies if "raw" in copy)) == bad[0]


async def test_a_dead_letter_of_a_message_is_replayed_or_discarded(
    start_app: StartApp, shelf: s3.Prefix, topic: Topic
) -> None:
    app = await start_app()
    topic.send(uploaded(f"{shelf.url}/late.txt"), uploaded(f"{shelf.url}/never.txt"), b"[1]")
    assert (await drained(app, topic)).refused == 3
    shelf.put("late.txt", b"now it is there")
    shown = await app.replay(dry_run=True)
    assert (shown.messages, shown.count, shown.events) == (3, 0, 0)
    done = await app.replay()
    assert (done.messages, done.by_reason) == (1, {"object_missing": 1})
    assert await sources(app) == {f"{shelf.url}/late.txt"}
    left = (await app.list_dead_letters()).letters
    assert {letter.reason: letter.attempts for letter in left} == {"object_missing": 2, "bad_event": 2}
    # The same message again makes no second letter, and a closed one stays closed.
    assert (await app.discard(reason="bad_event")).count == 1
    await app.consume(f"{topic.stream}?group={topic.name}-other", until_empty=True)
    assert (await app.list_dead_letters()).by_reason == {"object_missing": 1}
    # A consumer of the dead letters follows what they contain, and puts no letter into the same topic.
    shelf.put("never.txt", b"after all")
    dead = await app.consume(f"{topic.stream}.dlq?group={topic.name}-dead", until_empty=True)
    assert f"{shelf.url}/never.txt" in await sources(app)
    assert dead.refused >= 1


async def test_notifications_come_twice_late_and_in_any_order(
    start_app: StartApp, shelf: s3.Prefix, topic: Topic
) -> None:
    app = await start_app()
    a, b = shelf.put("a.txt", b"one"), shelf.put("b.txt", b"two")
    odd = shelf.put("c d+é.txt", b"three")
    topic.send(notification(a), notification(b), notification(f"{shelf.url}/c+d%2B%C3%A9.txt"))
    assert (await drained(app, topic)).accepted == 3
    assert await sources(app) == {a, b, odd}
    assert (await app.run()).completed == 3
    # What a bucket sync finds is what the notifications said.
    synced = await app.ingest(shelf.url)
    assert (synced.submitted, synced.skipped) == (0, 3)
    # A removal that comes after the object was made again, and a creation that comes after its removal.
    shelf.remove("b.txt")
    topic.send(notification(a, "ObjectRemoved:Delete"), notification(b), notification(b, "ObjectRemoved:Delete"))
    done = await drained(app, topic)
    assert (done.unchanged, done.deleted) == (1, 1 + 1), "both events of b say the same"
    assert await sources(app) == {a, odd}
    shelf.put("a.txt", b"changed")
    topic.send(notification(a, eTag="0123"), notification(a), notification(b, "ObjectRemoved:Delete"))
    done = await drained(app, topic)
    assert (done.accepted + done.unchanged, done.gone, done.refused) == (2, 1, 0)
    assert (await app.run()).completed == 1
    assert (await app.ingest(shelf.url)).skipped == 2


async def test_only_allowed_owners_and_places_are_followed(start_app: StartApp, shelf: s3.Prefix, topic: Topic) -> None:
    app = await start_app()
    inside, outside = shelf.put("in/a.txt", b"one"), shelf.put("inside.txt", b"two")
    topic.send(uploaded(inside), uploaded(outside), uploaded(inside, owner_id="bert"), uploaded(inside, owner_id="ann"))
    done = await drained(app, topic, owner="ann", places=[f"{shelf.url}/in"])
    assert (done.refused, await sources(app, "ann"), await sources(app, "bert")) == (2, {inside}, set())
    reasons = (await app.for_owner("ann").list_dead_letters()).by_reason
    assert reasons == {"place_not_allowed": 1, "wrong_owner": 1}


async def test_i1_nothing_is_confirmed_before_it_is_durable(start_app: StartApp, topic: Topic, tmp_path: Path) -> None:
    """The S3 server is killed: nothing is refused, nothing is confirmed, and all comes when it is back."""
    folder = tmp_path / "s3"
    folder.mkdir()
    server = S3Server(folder)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in server.environment.items():
                environment.setenv(name, value)
            shelf = s3.Prefix(server)
            app = await start_app(http={"patience_s": 0.5, "timeout_s": 2})
            uris = [shelf.put(f"{i}.txt", f"text {i}".encode()) for i in range(5)]
            server.kill()
            topic.send(*map(uploaded, uris))
            said: list[str] = []
            task = asyncio.create_task(drained(app, topic, report=said.append))
            async with asyncio.timeout(120):
                while not any(text.startswith("waiting") for text in said):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert await sources(app) == set()
            await asyncio.to_thread(server.start)
            done = await task
    finally:
        server.kill()
    assert (done.messages, done.refused, done.lag) == (5, 0, 0)
    assert await sources(app) == set(uris)
    assert (await app.list_dead_letters()).total == 0


async def test_a_wrong_key_holds_all_messages_and_makes_no_dead_letter(
    start_app: StartApp, shelf: s3.Prefix, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = shelf.put("a.txt", b"one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-wrong-wrong")
    app = await start_app()
    topic.send(uploaded(uri))
    said: list[str] = []
    task = asyncio.create_task(app.consume(topic.url, report=said.append))
    async with asyncio.timeout(120):
        while not any("AWS_SECRET_ACCESS_KEY" in text for text in said):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    app.stop()
    done = await task
    assert (done.messages, done.refused, done.interrupted) == (0, 0, True)
    assert (await app.list_dead_letters()).total == 0


async def test_no_messages_are_taken_while_the_queue_is_long(
    start_app: StartApp, shelf: s3.Prefix, topic: Topic, files: Any
) -> None:
    app = await start_app()
    await app.ingest(files(**{f"{i}.txt": f"text {i}" for i in range(5)}), wait=False)
    assert await app.ledger.read(queue.pending, 3) == 3
    topic.send(uploaded(shelf.put("a.txt", b"one")))
    said: list[str] = []
    task = asyncio.create_task(app.consume(topic.url, queue_limit=4, until_empty=True, report=said.append))
    async with asyncio.timeout(120):
        while not said:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert "5 steps wait" in said[0]
    other = await start_app()
    await other.run()
    assert (await task).accepted == 1


async def test_messages_of_a_queue_of_sqs(
    start_app: StartApp, shelf: s3.Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    app = await start_app()
    with streams.sqs() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", endpoint)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        with pytest.raises(ConfigError, match="no such queue"):
            await app.consume("sqs://uploads", until_empty=True)
        client = boto3.client("sqs")
        url = client.create_queue(QueueName="uploads")["QueueUrl"]
        uris = [shelf.put(f"{i}.txt", f"text {i}".encode()) for i in range(25)]
        for uri in uris:
            client.send_message(QueueUrl=url, MessageBody=json.dumps(notification(uri)))
        client.send_message(QueueUrl=url, MessageBody=json.dumps({"Event": "s3:TestEvent"}))
        client.send_message(QueueUrl=url, MessageBody="rubbish")
        done = await app.consume("sqs://uploads", until_empty=True)
        assert (done.messages, done.accepted, done.refused, done.lag) == (27, 25, 1, 0)
        assert await sources(app) == set(uris)
        assert "Messages" not in client.receive_message(QueueUrl=url, WaitTimeSeconds=1)
        client.close()


async def test_wrong_streams_are_refused(app: App) -> None:
    for url in ("kafka://", "kafka://host", "kafka://me:pw@host/topic", "kafka://host/a/b", "kafka://h/t?x=1"):
        with pytest.raises(ConfigError, match="kafka://HOST:PORT/TOPIC"):
            await app.consume(url)
    with pytest.raises(ConfigError, match="unknown name 'nats'"):
        await app.consume("nats://host/x")
    with pytest.raises(UsageError, match="queue_limit"):
        await app.consume("kafka://host:1/t", queue_limit=0)


def test_the_body_of_a_message_is_kept_as_text() -> None:
    assert stored_body(b"text") == "text"
    assert stored_body(b"\xff") == "base64:/w=="
    assert stored_body(b"base64:x") == "base64:YmFzZTY0Ong="
    assert stored_body(b"a\0b") == "base64:YQBi"
