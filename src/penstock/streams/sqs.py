"""A queue of Amazon SQS: `sqs://QUEUE`. Credentials, region and endpoint come from the usual environment variables."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from penstock.errors import Away, ConfigError, Unauthorized
from penstock.runtime import Runtime
from penstock.streams.base import Message

T = TypeVar("T")
AT_ONCE = 10
"""Messages of one call."""
VISIBILITY_S = 120
"""How long messages are ours without another call."""
_DENIED = {"AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken"}


class SqsStream:
    def __init__(self, queue: str, runtime: Runtime) -> None:
        """`queue`: the name of a queue."""
        try:
            import boto3
            import botocore.exceptions
        except ImportError:
            raise ConfigError("sqs:// needs another package: pip install 'penstock-rag[aws]'") from None
        if not queue or "/" in queue.strip("/"):
            raise ConfigError("a queue of SQS: use sqs://QUEUE; region and credentials come from the environment")
        self._queue = queue.strip("/")
        self._runtime = runtime
        self._errors = botocore.exceptions
        try:
            self._client: Any = boto3.client("sqs")
        except botocore.exceptions.BotoCoreError as error:
            raise ConfigError(f"{self.name}: {error}") from None
        self._url: str | None = None

    @property
    def name(self) -> str:
        return f"sqs://{self._queue}"

    async def take(self, most: int, wait_s: float) -> list[Message]:
        return await self._call(self._take, most, wait_s)

    async def keep(self, messages: Sequence[Message]) -> None:
        await self._call(self._extend, messages, VISIBILITY_S)

    async def confirm(self, messages: Sequence[Message]) -> None:
        await self._call(self._delete, messages)

    async def reject(self, message: Message, letter: bytes) -> bool:
        # The dead letter queue of SQS is for messages that nobody has confirmed.
        return False

    async def lag(self) -> int | None:
        return await self._call(self._waiting)

    async def close(self) -> None:
        await self._call(self._client.close)

    async def _call(self, function: Callable[..., T], *args: object) -> T:
        task = asyncio.ensure_future(self._runtime.run_blocking("net", function, *args))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            task.exception()
            raise
        except self._errors.ClientError as error:
            raise self._failure(dict(error.response.get("Error", {}))) from None
        except self._errors.BotoCoreError as error:
            raise Away(f"{self.name}: {error}", target=self.name) from None

    def _failure(self, error: dict[str, Any]) -> Exception:
        code, said = str(error.get("Code", "")), f"{self.name}: {error.get('Message', '')}"
        if code in _DENIED:
            return Unauthorized(said, setting="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", target=self.name)
        if "NonExistentQueue" in code or "QueueDoesNotExist" in code:
            return ConfigError(f"{self.name}: there is no such queue: create it, or correct its name")
        return Away(said, target=self.name)

    def _address(self) -> str:
        if self._url is None:
            self._url = str(self._client.get_queue_url(QueueName=self._queue)["QueueUrl"])
        return self._url

    def _take(self, most: int, wait_s: float) -> list[Message]:
        found: list[Message] = []
        while len(found) < most:
            answer = self._client.receive_message(
                QueueUrl=self._address(),
                MaxNumberOfMessages=min(AT_ONCE, most - len(found)),
                WaitTimeSeconds=0 if found else min(20, max(1, round(wait_s))),
                VisibilityTimeout=VISIBILITY_S,
            ).get("Messages", [])
            found += [Message(one["Body"].encode(), one["MessageId"], one["ReceiptHandle"]) for one in answer]
            if not answer:
                break
        return found

    def _extend(self, messages: Sequence[Message], seconds: int) -> None:
        for part in _parts(messages):
            entries = [{**entry, "VisibilityTimeout": seconds} for entry in part]
            self._client.change_message_visibility_batch(QueueUrl=self._address(), Entries=entries)

    def _delete(self, messages: Sequence[Message]) -> None:
        failed: list[str] = []
        for part in _parts(messages):
            answer = self._client.delete_message_batch(QueueUrl=self._address(), Entries=part)
            # Handles end with the visibility of their messages, which are delivered again, or with the messages.
            kept = [one for one in answer.get("Failed", []) if not one.get("SenderFault")]
            failed += [str(one.get("Message", one.get("Code"))) for one in kept]
        if failed:
            raise Away(f"{self.name}: {len(failed)} messages could not be deleted: {failed[0]}", target=self.name)

    def _waiting(self) -> int:
        name = "ApproximateNumberOfMessages"
        answer = self._client.get_queue_attributes(QueueUrl=self._address(), AttributeNames=[name])
        return int(answer["Attributes"][name])


def _parts(messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
    for i in range(0, len(messages), AT_ONCE):
        yield [{"Id": str(n), "ReceiptHandle": m.handle} for n, m in enumerate(messages[i : i + AT_ONCE])]
