"""A topic of Apache Kafka: `kafka://HOST:PORT,HOST:PORT/TOPIC?group=NAME`.

Offsets are committed only by `confirm`, so a message whose consumer dies is delivered again. Settings of the client
come from the environment: `KAFKA_SASL_PASSWORD` is its property `sasl.password`, and so on."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from penstock.errors import Away, ConfigError
from penstock.runtime import Runtime
from penstock.streams.base import Message

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka import Message as Record

T = TypeVar("T")
GROUP = "penstock"
PREFIX = "KAFKA_"
DEAD = ".dlq"
"""What the name of the topic for dead letters ends with."""
PREFETCH_KB = 16_384
"""Messages that the client has read ahead, for each topic."""
ASK_S = 5.0
SEND_S = 15.0
MOST = 1_000


class Address:
    """The parts of a `kafka://` URL."""

    def __init__(self, rest: str) -> None:
        """`rest`: `HOST:PORT,HOST:PORT/TOPIC?group=NAME`."""
        parts = urlsplit(f"//{rest}")
        self.servers, self.topic = parts.netloc, parts.path.strip("/")
        query = parse_qs(parts.query)
        self.group = query.pop("group", [GROUP])[0]
        if not self.servers or "@" in self.servers or not self.topic or "/" in self.topic or query:
            raise ConfigError(
                "a topic of Kafka: use kafka://HOST:PORT/TOPIC or kafka://HOST:PORT/TOPIC?group=NAME; user and "
                f"password come from {PREFIX}SASL_USERNAME and {PREFIX}SASL_PASSWORD"
            )

    def __str__(self) -> str:
        return f"kafka://{self.servers}/{self.topic}"


def properties(environment: Mapping[str, str]) -> dict[str, str]:
    """The properties of the client that the environment sets."""
    return {
        name.removeprefix(PREFIX).lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value
    }


class KafkaStream:
    def __init__(self, rest: str, runtime: Runtime, environment: Mapping[str, str]) -> None:
        try:
            import confluent_kafka
        except ImportError:
            raise ConfigError("kafka:// needs another package: pip install 'penstock-rag[kafka]'") from None
        self._kafka = confluent_kafka
        self._address = Address(rest)
        self._runtime = runtime
        self._given = properties(environment)
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._ahead: list[Record] = []
        """Messages that came while others were processed: after a rebalance, new partitions deliver at once."""
        self._mine: set[tuple[str, int]] = set()
        self._next: dict[tuple[str, int], int] = {}
        """The offset after the last message of each partition."""
        self._ends: dict[tuple[str, int], int] = {}
        """The offset at which each partition was found to have no more messages."""
        self._paused = False
        self._trouble: str | None = None

    @property
    def name(self) -> str:
        return str(self._address)

    async def take(self, most: int, wait_s: float) -> list[Message]:
        return await self._call(self._take, min(most, MOST), wait_s)

    async def keep(self, messages: Sequence[Message]) -> None:
        await self._call(self._keep)

    async def confirm(self, messages: Sequence[Message]) -> None:
        await self._call(self._confirm, messages)

    async def reject(self, message: Message, letter: bytes) -> bool:
        if self._address.topic.endswith(DEAD):
            # A letter that fails again is in the ledger: it must not come back for ever.
            return False
        return await self._call(self._send, message, letter)

    async def lag(self) -> int | None:
        return await self._call(self._lag)

    async def close(self) -> None:
        await self._call(self._close)

    async def _call(self, function: Callable[..., T], *args: object) -> T:
        """Call in a thread, and wait for its end even if the caller is cancelled: the client serves one thread."""
        task = asyncio.ensure_future(self._runtime.run_blocking("net", function, *args))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            task.exception()
            raise
        except self._kafka.KafkaException as error:
            raise self._away(error.args[0]) from None

    def _away(self, error: Any) -> Away:
        return Away(f"Kafka ({self._address.servers}): {error.str()}", target=f"kafka:{self._address.servers}")

    def _open(self) -> "Consumer":
        if self._consumer is None:
            options: dict[str, Any] = {
                "auto.offset.reset": "earliest",
                "queued.max.messages.kbytes": PREFETCH_KB,
                "client.id": "penstock",
                **self._given,
                "bootstrap.servers": self._address.servers,
                "group.id": self._address.group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "error_cb": self._heard,
                "logger": logging.getLogger("penstock.kafka"),
            }
            try:
                self._consumer = self._kafka.Consumer(options)
            except (self._kafka.KafkaException, ValueError, TypeError) as error:
                raise ConfigError(f"{self}: {error}: check the variables {PREFIX}…") from None
            self._consumer.subscribe(
                [self._address.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
            )
        return self._consumer

    def __str__(self) -> str:
        return str(self._address)

    def _heard(self, error: Any) -> None:
        """The client says what it cannot do at present. It goes on by itself."""
        if error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN or error.fatal():
            self._trouble = error.str()

    def _assigned(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        self._mine |= {(one.topic, one.partition) for one in partitions}
        if self._paused:
            consumer.pause(partitions)

    def _revoked(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        gone = {(one.topic, one.partition) for one in partitions}
        self._mine -= gone
        for place in gone:
            self._next.pop(place, None)
            self._ends.pop(place, None)
        self._ahead = [one for one in self._ahead if (one.topic(), one.partition()) not in gone]

    def _pause(self, paused: bool) -> None:
        # After a rebalance, partitions that are new deliver although they were to be paused.
        if not paused and not self._paused:
            return
        self._paused = paused
        consumer = self._open()
        if partitions := consumer.assignment():
            (consumer.pause if paused else consumer.resume)(partitions)

    def _take(self, most: int, wait_s: float) -> list[Message]:
        consumer = self._open()
        self._pause(False)
        if not self._ahead:
            self._receive(consumer, most, wait_s)
        records, self._ahead = self._ahead[:most], self._ahead[most:]
        if records:
            self._trouble = None
        elif self._trouble is not None:
            said, self._trouble = self._trouble, None
            raise Away(f"Kafka ({self._address.servers}): {said}", target=f"kafka:{self._address.servers}")
        return [_message(record) for record in records]

    def _keep(self) -> None:
        """A consumer that does not ask for messages is taken for dead. So it asks, while its partitions are paused."""
        self._pause(True)
        self._receive(self._open(), MOST, 0.0)

    def _receive(self, consumer: "Consumer", most: int, wait_s: float) -> None:
        failed: Any = None
        for record in consumer.consume(most, wait_s):
            error, place = record.error(), (record.topic() or "", record.partition() or 0)
            if error is None:
                self._ahead.append(record)
                self._next[place] = (record.offset() or 0) + 1
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                self._ends[place] = record.offset() or 0
            elif error.code() == self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                self._trouble = f"there is no topic {self._address.topic!r}"
            elif not error.retriable():
                failed = error
        if failed is not None:
            # Only now: the client does not deliver again what came with the error.
            raise self._kafka.KafkaException(failed)

    def _confirm(self, messages: Sequence[Message]) -> None:
        last: dict[tuple[str, int], int] = {}
        for message in messages:
            topic, partition, offset = message.handle
            # Another consumer goes on with the partitions that were taken from us.
            if (topic, partition) in self._mine:
                last[topic, partition] = max(offset, last.get((topic, partition), -1))
        if not last:
            return
        offsets = [self._kafka.TopicPartition(*place, offset + 1) for place, offset in last.items()]
        try:
            self._open().commit(offsets=offsets, asynchronous=False)
        except self._kafka.KafkaException as error:
            if error.args[0].code() not in self._LOST:
                raise
            # The group goes on without us: the messages are delivered again, and found to be known.

    @property
    def _LOST(self) -> tuple[int, ...]:
        e = self._kafka.KafkaError
        return (e.ILLEGAL_GENERATION, e.UNKNOWN_MEMBER_ID, e.REBALANCE_IN_PROGRESS, e._STATE, e._NO_OFFSET)

    def _send(self, message: Message, letter: bytes) -> bool:
        """Return False if the letter is larger than the topic allows."""
        if self._producer is None:
            options: dict[str, Any] = {
                "client.id": "penstock",
                **{k: v for k, v in self._given.items() if not k.startswith(_OF_CONSUMERS)},
                "bootstrap.servers": self._address.servers,
                "enable.idempotence": True,
                "message.timeout.ms": int(SEND_S * 1000),
                "logger": logging.getLogger("penstock.kafka"),
            }
            self._producer = self._kafka.Producer(options)
        failed: list[Any] = []
        topic, partition, offset = message.handle
        too_large = self._kafka.KafkaError.MSG_SIZE_TOO_LARGE
        try:
            self._producer.produce(
                f"{self._address.topic}{DEAD}",
                key=f"{topic}/{partition}/{offset}",
                value=letter,
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            )
        except self._kafka.KafkaException as error:
            if error.args[0].code() != too_large:
                raise
            return False
        if self._producer.flush(SEND_S + 1) or failed:
            if failed and failed[0].code() == too_large:
                return False
            said = failed[0].str() if failed else "no answer"
            raise Away(f"Kafka ({self._address.servers}): {self._address.topic}{DEAD}: {said}")
        return True

    def _lag(self) -> int | None:
        consumer, total = self._open(), 0
        partitions = consumer.assignment()
        if not partitions:
            return None
        for one in consumer.committed(partitions, timeout=ASK_S):
            low, high = consumer.get_watermark_offsets(one, timeout=ASK_S)
            done, place = max(one.offset, low), (one.topic, one.partition)
            # Marks of transactions have offsets, too, and are never delivered.
            if self._ends.get(place, -1) < high or done < self._next.get(place, 0):
                total += max(0, high - done)
        return total

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
        self._producer = None


_OF_CONSUMERS = ("group.", "auto.offset", "session.", "max.poll", "fetch.", "queued.", "partition.assignment")


def _message(record: "Record") -> Message:
    handle = (record.topic(), record.partition(), record.offset())
    return Message(record.value() or b"", "/".join(map(str, handle)), handle)
