"""Poison: whatever a step or a handler raises or answers, there is one dead letter for it and a living worker."""

import asyncio
import contextlib
import io
import json
import zipfile
from collections.abc import Iterable
from typing import ClassVar

import pytest
from tests.conftest import StartApp
from tests.integration import poison, poison_child
from tests.kit.parsers import PATHS
from tests.kit.workflows import define

from penstock import user_code
from penstock.app import App
from penstock.events import retry
from penstock.ledger.database.statements import Statement
from penstock.worker.execute import UNWRITABLE
from penstock.worker.parsers import process

RETRIES, CLAIMS = 2, 3
POISONED = f"""\
id: poisoned
steps:
  validate:
  own: {{kind: enrich, method: tests.integration.poison.step, retries: {RETRIES}}}
  extract:
  clean:
  chunk:
  embed:
  index:
"""
READ = f"""\
id: read
steps:
  extract: {{method: tests.integration.poison.read, retries: {RETRIES}}}
  clean:
  chunk:
  embed:
  index:
"""
PARSED = f"""\
id: parsed
steps: {{validate: , extract: {{retries: {RETRIES}}}, clean: , chunk: , embed: , index: }}
"""
TOLD = f"""\
id: told
steps: {{validate: , extract: , clean: , chunk: , embed: , index: }}
lifecycle_events:
  item_end: [{{method: tests.integration.poison.handle, retries: {RETRIES}}}]
"""
_EPOCHS = Statement(
    "SELECT d.name, max(s.epoch) FROM steps s JOIN runs r ON r.id = s.run_id "
    "JOIN documents d ON d.id = r.document_id GROUP BY d.name"
)


@pytest.fixture
async def one(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url)


async def give(app: App, workflow: str, names: Iterable[str]) -> None:
    for name in names:
        await app.ingest(data=f"Some words about {name}.".encode(), name=f"{name}.txt", workflow=workflow, wait=False)
    async with asyncio.timeout(120):
        await app.run()


async def claims(app: App) -> dict[str, int]:
    """The most claims that a step of each document had."""
    return {row[0].removesuffix(".txt"): row[1] for row in await app.ledger.read(lambda c: c.run(_EPOCHS))}


async def check(app: App, poisoned: set[str], healthy: set[str]) -> None:
    letters = (await app.list_dead_letters(limit=1000)).letters
    assert sorted(str(letter.name).removesuffix(".txt") for letter in letters) == sorted(poisoned)
    for letter in letters:
        assert 0 < len(letter.error.strip()) < 5000, letter
        assert letter.reason, letter
        assert len(letter.traceback or "") < 50_000
    completed = {entry.name.removesuffix(".txt") for entry in await app.list_documents(status="COMPLETED", limit=1000)}
    assert completed == healthy
    counted = await claims(app)
    assert {name: count for name, count in counted.items() if count > CLAIMS} == {}


async def test_i9_whatever_a_step_raises_or_answers_is_one_dead_letter(one: App) -> None:
    define(one, POISONED)
    poisoned = {*poison.RAISED, *poison.ANSWERED} - poison.WAITING
    healthy = {"healthy", *poison.HARMLESS}
    await give(one, "poisoned", [*poisoned, *healthy])
    await check(one, poisoned, healthy)


async def test_i9_whatever_a_step_hands_to_its_checkpoint_is_one_dead_letter(one: App) -> None:
    define(one, READ)
    poisoned, healthy = {*poison.CHECKPOINTS, "waits_on_object"}, {"healthy", "waits_on_nul"}
    await give(one, "read", [*poisoned, *healthy])
    await check(one, poisoned, healthy)


async def test_i8_whatever_a_handler_raises_is_one_dead_letter(one: App) -> None:
    define(one, TOLD)
    await give(one, "told", [*poison.RAISED, *poison.ANSWERED, "healthy"])
    async with asyncio.timeout(60):
        # A run does not wait for deliveries that are due later.
        while len(letters := (await one.list_dead_letters(limit=1000)).letters) < len(poison.RAISED):
            await asyncio.sleep(0.1)
            await one.run()
    assert sorted(str(letter.name).removesuffix(".txt") for letter in letters) == sorted(poison.RAISED)
    assert all(letter.error.strip() and letter.event for letter in letters)
    assert (
        len(await one.list_documents(status="COMPLETED", limit=1000)) == len(poison.RAISED) + len(poison.ANSWERED) + 1
    )


async def test_i9_an_error_with_text_that_no_database_takes_is_written_readably(one: App) -> None:
    define(one, POISONED)
    await give(one, "poisoned", ["nul", "surrogate"])
    letters = {letter.name: letter.error for letter in (await one.list_dead_letters()).letters}
    assert letters == {"nul.txt": r"ValueError: a\x00b", "surrogate.txt": r"ValueError: caf\udce9"}


async def test_i9_a_zip_that_calls_itself_something_with_a_nul_is_unsupported(one: App) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("mimetype", "application/\0evil")
    await one.ingest(data=buffer.getvalue(), name="evil.zip", wait=False)
    await give(one, "default", ["healthy"])
    [document] = await one.list_documents(name="evil.zip")
    assert document.status == "UNSUPPORTED"


async def test_i9_an_error_that_the_ledger_refuses_is_written_again_in_plain_words(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_code, "sentence", lambda error: object())
    define(app, POISONED)
    await give(app, "poisoned", ["panic", "healthy"])
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.name, letter.error) == ("panic.txt", UNWRITABLE)


async def test_i9_whatever_a_parser_process_answers_is_one_dead_letter(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CHILD", "tests.integration.poison_child")
    monkeypatch.setenv("PYTHONPATH", PATHS)
    define(app, PARSED)
    poisoned = {*poison_child.RAISED, *poison_child.ANSWERED}
    for name in [*poisoned, "healthy"]:
        data = f"<p> {name} </p>".encode()
        await app.ingest(data=data, name=f"{name}.html", workflow="parsed", wait=False)
    async with asyncio.timeout(120):
        await app.run()
    letters = (await app.list_dead_letters(limit=1000)).letters
    assert sorted(str(letter.name).removesuffix(".html") for letter in letters) == sorted(poisoned)
    assert all(0 < len(letter.error) < 5000 for letter in letters)
    [entry] = await app.list_documents(status="COMPLETED")
    assert entry.name == "healthy.html"
    assert max((await claims(app)).values()) <= CLAIMS


class Webhook:
    """A server that sends back the bytes that stand here under the name of the document."""

    answers: ClassVar[dict[str, bytes]] = {
        "nul": b"HTTP/1.1 500 x\r\nContent-Length: 3\r\n\r\na\0b",
        "nul_refusal": b"HTTP/1.1 410 Gone\r\nContent-Length: 3\r\n\r\na\0b",
        "not_utf8": b"HTTP/1.1 500 x\r\nContent-Length: 3\r\n\r\n\xff\xed\xa0",
        "escapes": b"HTTP/1.1 500 \x1b[31m\r\nContent-Length: 5\r\n\r\n\x1b[31m",
        "large": b"HTTP/1.1 500 x\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 300_000,
        "no_http": b"\0\xff\x16\x03\x01" * 50 + b"\r\n\r\n",
        "nothing": b"",
        "bad_status": b"HTTP/1.1 99999 x\r\n\r\n",
        "no_number": b"HTTP/1.1 abc x\r\n\r\n",
        "bad_length": b"HTTP/1.1 500 x\r\nContent-Length: -7\r\n\r\nabc",
        "bad_chunks": b"HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
        "long_header": b"HTTP/1.1 500 x\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
        "many_headers": b"HTTP/1.1 500 x\r\n" + b"A: b\r\n" * 500 + b"\r\n",
        "wait_rubbish": b"HTTP/1.1 429 x\r\nRetry-After: soon\xff\r\nContent-Length: 0\r\n\r\n",
        "wait_negative": b"HTTP/1.1 429 x\r\nRetry-After: -5\r\nContent-Length: 0\r\n\r\n",
        "redirect": b"HTTP/1.1 302 x\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = [line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length")]
        name = json.loads(await reader.readexactly(int(length)))["name"].removesuffix(".txt")
        with contextlib.suppress(ConnectionError):
            writer.write(self.answers.get(name, b"HTTP/1.1 204 x\r\n\r\n"))
            await writer.drain()
        writer.close()


async def test_i8_whatever_a_webhook_answers_is_one_dead_letter(
    start_app: StartApp, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "WEBHOOK_S", 0.05)
    server = await asyncio.start_server(Webhook().serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    hook = {"url": url, "secret": "open-sesame", "events": ("item_end",), "retries": RETRIES}
    async with server:
        app = await start_app(database=database_url, webhooks={"ops": hook})
        await give(app, "default", [*Webhook.answers, "healthy"])
        async with asyncio.timeout(60):
            while (await app.status()).events.waiting:
                await asyncio.sleep(0.05)
                await app.run()
    letters = (await app.list_dead_letters(limit=1000)).letters
    assert sorted(str(letter.name).removesuffix(".txt") for letter in letters) == sorted(Webhook.answers)
    assert all(0 < len(letter.error) < 1000 for letter in letters)
