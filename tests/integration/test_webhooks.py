"""Webhooks against a real server: signed, retried, given up."""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import until
from tests.kit.cli import Cli

from penstock.app import App
from penstock.config import Config, load_config
from penstock.errors import ConfigError
from penstock.events import retry

SECRET = "open-sesame-7731"
PATH = "/hooks/token-4711?key=hidden-9922"
BAD = b"%PDF-1.7\n" + bytes(range(256)) * 9


class Receiver:
    """Answers with what `answers` has, one after the other, and then with 204."""

    def __init__(self, port: int = 0) -> None:
        self.got: list[tuple[dict[str, str], bytes, float]] = []
        self.answers: list[tuple[int, dict[str, str], str] | Callable[[], None]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), body, time.monotonic()))
                answer = receiver.answers.pop(0) if receiver.answers else (204, {}, "")
                if callable(answer):
                    answer()
                    return
                status, headers, text = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body, _ in self.got]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "WEBHOOK_S", 0.05)


def hooks(url: str, *events: str, **more: Any) -> dict[str, Any]:
    return {"webhooks": {"ops": {"url": url, "secret": SECRET, "events": events or ("item_end",), **more}}}


async def submit(app: App, data: bytes = b"words", **options: Any) -> None:
    await app.ingest(data=data, name="a.txt", **options)


async def run_until_told(app: App) -> None:
    async def told() -> bool:
        await app.run()
        return bool((await app.status()).events.waiting == 0)

    await until(told)


async def letters(app: App) -> list[Any]:
    return list((await app.list_dead_letters()).letters)


def verify(headers: dict[str, str], body: bytes) -> None:
    """As a receiver does it (Standard Webhooks)."""
    at = headers["Webhook-Timestamp"]
    assert abs(int(at) - time.time()) < 60
    signed = f"{headers['Webhook-Id']}.{at}.".encode() + body
    wanted = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    assert hmac.compare_digest(headers["Webhook-Signature"], f"v1,{wanted}")


async def test_i8_every_run_tells_a_webhook_and_signs_what_it_says(start_app: StartApp, receiver: Receiver) -> None:
    app = await start_app(**hooks(receiver.url, "item_failed", "group_end"))
    await submit(app, BAD)
    by_kind = {event["kind"]: event for event in receiver.events}
    assert sorted(by_kind) == ["GROUP_END", "ITEM_FAILED"]
    assert len(receiver.got) == 2
    assert by_kind["GROUP_END"]["counts"] == {"FAILED": 1}
    assert by_kind["ITEM_FAILED"]["meta"]["reason"] == "damaged"
    for headers, body, _ in receiver.got:
        verify(headers, body)
        event = json.loads(body)
        assert headers["Webhook-Id"] == event["id"]
        assert headers["Penstock-Event"] == event["kind"]
        assert headers["Penstock-Delivery-Attempt"] == "1"
        assert headers["Content-Type"] == "application/json"


async def test_a_workflow_names_a_webhook_and_it_is_told_once(
    start_app: StartApp, receiver: Receiver, tmp_path: Path
) -> None:
    app = await start_app(**hooks(receiver.url, "item_end"))
    flow = tmp_path / "flow.yaml"
    flow.write_text(
        "id: flow\nsteps: {validate: , extract: , clean: , chunk: , embed: , index: }\n"
        "lifecycle_events: {item_end: [{webhook: ops}], item_start: [{webhook: ops}]}\n"
    )
    shown = app.workflow(str(flow)).lifecycle_events
    assert {event: [(h.webhook, h.retries, h.timeout) for h in shown[event]] for event in shown} == {
        "item_end": [("ops", 8, 10.0)],
        "item_start": [("ops", 8, 10.0)],
    }
    await submit(app, workflow=str(flow))
    assert sorted(event["kind"] for event in receiver.events) == ["ITEM_END", "ITEM_START"]


async def test_i8_an_error_is_tried_again_with_the_same_id(start_app: StartApp, receiver: Receiver) -> None:
    receiver.answers = [(500, {}, "out of order"), (302, {"Location": receiver.url}, "")]
    app = await start_app(**hooks(receiver.url))
    await submit(app)
    await run_until_told(app)
    assert [h["Penstock-Delivery-Attempt"] for h, _, _ in receiver.got] == ["1", "2", "3"], "no redirect is followed"
    assert len({event["id"] for event in receiver.events}) == 1
    assert await letters(app) == []


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_retry_after_is_obeyed(start_app: StartApp, receiver: Receiver, form: str) -> None:
    due = int(time.time()) + 2
    wait = "1" if form == "seconds" else formatdate(due, usegmt=True)
    receiver.answers = [(429, {"Retry-After": wait}, "slowly")]
    app = await start_app(**hooks(receiver.url))
    await submit(app)
    await run_until_told(app)
    (_, _, first), (_, _, second) = receiver.got
    assert second - first < 4
    assert second - first > 0.9 if form == "seconds" else time.time() >= due


async def test_gone_is_a_dead_letter_at_once_and_can_be_replayed(start_app: StartApp, receiver: Receiver) -> None:
    receiver.answers = [(410, {}, f"there is nothing at {PATH} any more")]
    app = await start_app(**hooks(receiver.url))
    await submit(app)
    [letter] = await letters(app)
    assert (letter.reason, letter.attempts, letter.handler) == ("webhook_gone", 1, "ops")
    assert letter.error == "webhook 'ops' answered 410: there is nothing at … any more"
    await app.replay([letter.id])
    await app.run()
    assert len(receiver.got) == 2
    assert await letters(app) == []


async def test_a_server_that_keeps_failing_ends_as_a_dead_letter(start_app: StartApp, receiver: Receiver) -> None:
    receiver.answers = [(503, {}, "x" * 100_000)] * 3
    app = await start_app(**hooks(receiver.url, retries=3))
    await submit(app)
    await run_until_told(app)
    [letter] = await letters(app)
    assert (letter.reason, letter.attempts) == ("webhook_failed", 3)
    assert len(letter.error) < 300


async def test_a_server_that_does_not_answer_in_time_is_tried_again(start_app: StartApp, receiver: Receiver) -> None:
    receiver.answers = [lambda: time.sleep(1)]
    app = await start_app(**hooks(receiver.url, timeout=0.2))
    began = time.monotonic()
    await submit(app)
    assert time.monotonic() - began < 10
    await run_until_told(app)
    assert [h["Penstock-Delivery-Attempt"] for h, _, _ in receiver.got] == ["1", "2"]


async def test_a_server_that_answers_letter_by_letter_is_cut_off(start_app: StartApp) -> None:
    """Each letter comes within the time for one; only the whole takes too long."""
    letters_sent = 0

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal letters_sent
        try:
            for letter in "HTTP/1.1 200 " + "O" * 1000:
                writer.write(letter.encode())
                await writer.drain()
                letters_sent += 1
                await asyncio.sleep(0.1)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    app = await start_app(**hooks(f"http://127.0.0.1:{port}/", timeout=0.5, retries=1))
    began = time.monotonic()
    await submit(app)
    assert time.monotonic() - began < 5
    [letter] = await letters(app)
    assert letter.reason == "handler_timeout"
    sent = letters_sent
    await asyncio.sleep(0.5)
    assert letters_sent <= sent + 3, "the connection was cut"
    server.close()


async def test_i8_a_server_that_is_down_is_told_when_it_is_up_again(start_app: StartApp) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    app = await start_app(**hooks(f"http://127.0.0.1:{port}{PATH}", retries=50))
    await submit(app)
    assert (await app.status()).events.waiting == 1, "a backed-off delivery holds nobody up"
    receiver = Receiver(port)
    try:
        await run_until_told(app)
        assert len(receiver.got) == 1
        assert int(receiver.got[0][0]["Penstock-Delivery-Attempt"]) > 1
    finally:
        receiver.close()


async def test_a_webhook_that_the_settings_do_not_know_says_so(start_app: StartApp, receiver: Receiver) -> None:
    knowing = await start_app(**hooks(receiver.url, retries=2))
    await knowing.ingest(data=b"words", name="a.txt", wait=False)
    ignorant = await start_app()
    await ignorant.run()
    await run_until_told(ignorant)
    [letter] = await letters(ignorant)
    assert letter.reason == "webhook_unknown"
    await knowing.replay()
    await knowing.run()
    assert len(receiver.got) == 1


async def test_the_secret_and_the_url_are_nowhere(
    start_app: StartApp, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = [(500, {}, "no"), (410, {}, f"gone: {PATH}")]
    app = await start_app(**hooks(receiver.url, "item_end", "item_start"))
    await submit(app)
    await run_until_told(app)
    said = [str(await app.status()), str(await app.list_dead_letters()), caplog.text, repr(app.config)]
    said.append(str(app.workflow()))
    files = [path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert len(files) > 3
    for secret in (SECRET, "token-4711", "hidden-9922"):
        assert not any(secret in text for text in said)
        assert not any(secret.encode() in data for data in files)


def test_config_show_masks_what_a_webhook_hides(tmp_path: Path) -> None:
    settings = {"PENSTOCK_WEBHOOKS__OPS__SECRET": SECRET}
    (tmp_path / "penstock.yaml").write_text(f"webhooks: {{ops: {{url: 'https://user:pw@example.org{PATH}'}}}}\n")
    cli = Cli(tmp_path / "home", tmp_path, settings)
    assert cli("config", "check").code == 0
    for shown in (cli("config", "show").out, cli("config", "show", "--json").out):
        assert "https://example.org/…" in shown
        assert not re.search(rf"{SECRET}|token|hidden|pw", shown)


@pytest.mark.parametrize(
    ("webhook", "complaint"),
    [
        ({"url": "ftp://example.org/x", "secret": "s"}, "the URL must begin with http:// or https://"),
        ({"url": "https:///x", "secret": "s"}, "name a host"),
        ({"url": "http://h:99999999/", "secret": "s"}, "name a host"),
        ({"url": "http://h/a b", "secret": "s"}, "name a host"),
        ({"url": "http://h/"}, "needs a `secret`"),
        ({"url": "http://h/", "secret": "s", "events": ["item_ends"]}, "unknown event 'item_ends'"),
        ({"url": "http://h/", "secret": "s", "retries": 0}, r"webhooks\.ops\.retries 0: use a whole number from 1"),
        (
            {"url": "http://h/", "secret": "s", "timeout": 0},
            r"webhooks\.ops\.timeout 0: use a number above 0, at most 3,600",
        ),
        ({"url": "http://h/", "secret": "s", "colour": "red"}, "unknown setting `webhooks.ops.colour`"),
    ],
)
def test_a_wrong_webhook_is_refused_without_telling_its_url(webhook: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_config({"webhooks": {"ops": webhook}}, environment={})
    assert webhook["url"] not in str(caught.value)


def test_a_variable_of_a_section_leaves_its_other_settings(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("worker: {slots: 3}\n")
    config = load_config(environment={"PENSTOCK_WORKER__LEASE_S": "9"}, file=file)
    assert (config.worker.slots, config.worker.lease_s) == (3, 9.0)
    assert isinstance(config, Config)
