"""`penstock consume` in processes that are killed. Kafka is the mock cluster of librdkafka."""

import os
import signal
import time
from contextlib import suppress
from functools import partial

import pytest
from tests.kit import s3
from tests.kit.cli import Cli, finish
from tests.kit.s3 import S3Server
from tests.kit.streams import Kafka, Topic, uploaded

LONG = bool(os.environ.get("PENSTOCK_LONG"))


@pytest.fixture(scope="module")
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
def topic(kafka: Kafka) -> Topic:
    return kafka.topic()


@pytest.fixture
def shelf(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> s3.Prefix:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3.Prefix(s3_server)


def test_i1_killed_consumers_lose_nothing_and_make_nothing_twice(
    cli: Cli, shelf: s3.Prefix, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers are killed one after the other while events come; a message of a dead one goes to another."""
    count, consumers, every_s, kills = (10_000, 3, 2.0, 10) if LONG else (120, 2, 1.5, 2)
    monkeypatch.setenv("KAFKA_SESSION_TIMEOUT_MS", "6000")
    monkeypatch.setenv("KAFKA_HEARTBEAT_INTERVAL_MS", "1000")
    uris = [shelf.put(f"{i}.txt", f"text {i}".encode()) for i in range(count)]
    topic.send(*(uploaded(uri) for uri in uris), b"rubbish")
    cli("db", "migrate")
    start = partial(cli.start, "consume", topic.url, "--json")
    running = [start() for _ in range(consumers)]
    try:
        for i in range(kills):
            time.sleep(every_s)
            victim = running[i % consumers]
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            running[i % consumers] = start()
        deadline = time.monotonic() + (1800 if LONG else 240)
        while time.monotonic() < deadline:
            found = cli("list", "--limit", "1", "--json").json["total"]
            if found >= min(count, 10_000) and cli("dlq", "list", "--json").json["total"]:
                break
            time.sleep(1)
        for process in running:
            process.send_signal(signal.SIGTERM)
        # 143: the one that was started last had not begun yet.
        assert all(finish(process, timeout=60).code in (0, 143) for process in running)
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                process.kill()
            process.communicate()
    # Whatever a killed consumer had done and not confirmed was delivered again, and is known.
    rest = cli("consume", topic.url, "--until-empty", "--json")
    assert (rest.json["refused"], rest.json["accepted"]) == (0, 0)
    names = [one["source"] for one in cli("list", "--limit", str(count + 10), "--json").json["documents"]]
    assert (len(names), set(names)) == (count, set(uris))
    assert cli("dlq", "list", "--json").json["by_reason"] == {"bad_event": 1}
    assert cli("check", "--json").json["ok"]


@pytest.mark.parametrize("failpoint", ["ledger.submit.before", "ledger.submit.after", "ledger.refuse_message.after"])
def test_i1_a_kill_between_the_ledger_and_the_offset(
    cli: Cli, shelf: s3.Prefix, topic: Topic, failpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_SESSION_TIMEOUT_MS", "6000")
    uri = shelf.put("a.txt", b"one")
    topic.send(uploaded(uri), b"rubbish")
    monkeypatch.setitem(cli.settings, "PENSTOCK_FAILPOINTS", f"{failpoint}=kill@1")
    killed = cli.start("consume", topic.url, "--until-empty", "--json")
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    monkeypatch.delitem(cli.settings, "PENSTOCK_FAILPOINTS")
    cli("consume", topic.url, "--until-empty", "--json")
    assert [one["source"] for one in cli("list", "--json").json["documents"]] == [uri]
    assert cli("dlq", "list", "--json").json["by_reason"] == {"bad_event": 1}
