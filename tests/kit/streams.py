"""Streams for tests: the mock cluster of librdkafka, which other processes can use too, or a server of Apache Kafka;
and an emulator of SQS."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Kafka:
    """A broker in memory, which is not Apache Kafka: transactions and the creation of topics are faked. Or the server
    that TEST_KAFKA_SERVER names."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        quiet = {"log_level": 0}
        self.server = os.environ.get("TEST_KAFKA_SERVER", "")
        if not self.server:
            self._cluster = Producer({"test.mock.num.brokers": "1", "bootstrap.servers": "x", **quiet})
            [broker] = self._cluster.list_topics(timeout=10).brokers.values()
            self.server = f"{broker.host}:{broker.port}"
        self._producer = Producer({"bootstrap.servers": self.server, **quiet})

    def topic(self) -> "Topic":
        return Topic(self, f"t{uuid.uuid4().hex[:12]}.uploaded")

    def produce(self, topic: str, body: bytes, key: str | None = None) -> None:
        self._producer.produce(topic, body, key=key)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def all_of(self, topic: str, count: int) -> list[tuple[bytes, bytes]]:
        """The keys and bodies of the first messages of a topic."""
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self.server,
                "group.id": uuid.uuid4().hex,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        try:
            consumer.subscribe([topic])
            found: list[Any] = []
            for _ in range(60):
                found += [one for one in consumer.consume(100, 0.5) if one.error() is None]
                if len(found) >= count:
                    break
            return [(one.key() or b"", one.value() or b"") for one in found]
        finally:
            consumer.close()


class Topic:
    def __init__(self, kafka: Kafka, name: str) -> None:
        self.kafka = kafka
        self.name = name

    @property
    def stream(self) -> str:
        return f"kafka://{self.kafka.server}/{self.name}"

    @property
    def url(self) -> str:
        """With a group of its own: the mock lets each further consumer of a group wait for the session timeout."""
        return f"{self.stream}?group={self.name}"

    def send(self, *bodies: bytes | dict[str, Any]) -> None:
        for body in bodies:
            self.kafka.produce(self.name, body if isinstance(body, bytes) else json.dumps(body).encode())
        self.kafka.flush()


def uploaded(uri: str, **more: Any) -> dict[str, Any]:
    """The event of an upload service."""
    return {"event": "file_uploaded", "s3_path": uri, "timestamp": "2025-06-14T09:00:00Z", **more}


def notification(uri: str, name: str = "ObjectCreated:Put", **of_object: Any) -> dict[str, Any]:
    """A notification of S3."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    record = {"eventName": name, "s3": {"bucket": {"name": bucket}, "object": {"key": key, **of_object}}}
    return {"Records": [record]}


@contextmanager
def sqs() -> Iterator[str]:
    """The endpoint of moto's server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()
