"""The streams that URLs name."""

import os

from penstock.errors import ConfigError
from penstock.registry import Choice, Registry
from penstock.streams.base import Stream


def _kafka(choice: Choice) -> Stream:
    from penstock.streams.kafka import KafkaStream

    return KafkaStream(choice.argument, choice.runtime, os.environ)


def _sqs(choice: Choice) -> Stream:
    from penstock.streams.sqs import SqsStream

    if "://" not in choice.value:
        raise ConfigError("a queue of SQS: use sqs://QUEUE")
    return SqsStream(choice.argument, choice.runtime)


STREAMS: Registry[Stream] = Registry("stream", "penstock.streams", {"kafka": _kafka, "sqs": _sqs})
