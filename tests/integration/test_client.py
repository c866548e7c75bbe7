"""`penstock.client` against a real server: every operation, errors, repeats, kills of both sides."""

import asyncio
import hashlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.kit.service import Served, free_port, serving

import penstock.client as clients
from penstock.client import AsyncClient, Client
from penstock.client.connection import Connection
from penstock.client.operations import Operations
from penstock.errors import Away, DiskFull, Forbidden, NotAuthenticated, NotFound, RateLimited, UsageError

TEXT = "The turbine runs at 375 revolutions a minute. "
NOT_CALLED = {
    ("POST", "/api/v1/session"): "for browsers",
    ("DELETE", "/api/v1/session"): "for browsers",
    ("OPTIONS", "/api/v1/uploads"): "what every server of this version supports",
    ("DELETE", "/api/v1/uploads/{upload_id}"): "an upload that nobody continues ends by itself",
    ("GET", "/healthz"): "for a supervisor",
    ("GET", "/problems"): "for people",
}
"""Operations that no method of the client is for."""
WITHOUT = re.compile(r"/v1/|/api/v1/(webhooks|quota|intake)\b|/api/v1/uploads/.*(presign|complete)$")
"""Operations that the client does not have, or that have clients of their own."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("service") / "home") as one:
        yield one


def test_the_client_has_a_method_for_every_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, str]] = set()
    stream = Connection._stream

    def spied(self: Connection, method: str, path: str, *rest: Any) -> Any:
        seen.add((method, path if path.startswith("/") else f"/api/v1/{path}"))
        return stream(self, method, path, *rest)

    monkeypatch.setattr(Connection, "_stream", spied)
    with serving(tmp_path / "home") as served, Client(served.url) as client:
        _call_everything(client, tmp_path)
        document = httpx2.get(f"{served.url}/openapi.json").json()
    operations = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, one in methods.items()
        if "soliplex" not in one.get("tags", ()) and not WITHOUT.match(path)
    }
    missing = {one for one in operations if not any(_fits(one, call) for call in seen)}
    assert missing == set(NOT_CALLED)


def _fits(operation: tuple[str, str], call: tuple[str, str]) -> bool:
    pattern = re.sub(r"\{\w+\}", "[^/]+", operation[1])
    return operation[0] == call[0] and re.fullmatch(pattern, call[1]) is not None


def _call_everything(client: Client, folder: Path) -> None:
    """Each public method once, with what comes back looked at."""
    file = folder / "turbine.txt"
    file.write_text(TEXT)
    made = client.upload(file, metadata={"year": 2020}, batch="monday")
    assert made.id is not None
    assert (made.outcome, made.source, made.name, made.size) == ("created", str(file), "turbine.txt", len(TEXT))
    document = client.wait(made.id, 60)
    assert (document.status, document.metadata, document.pages) == ("COMPLETED", {"year": 2020}, 1)
    assert document.created_at == pytest.approx(time.time(), abs=120)
    assert client.document(made.id) == document
    assert client.upload(file).outcome == "unchanged"
    dam = client.upload_text("The dam is inspected in spring.", "dam.txt", collection="dams")
    gate = client.upload(b"Gate 3 sticks.", name="gate.txt", hold=True, batch="later")
    assert (dam.outcome, gate.outcome, gate.status) == ("created", "held", "HELD")
    with pytest.raises(UsageError, match="address"):
        client.upload_url("http://127.0.0.1:1/page.html")
    assert dam.id is not None
    client.wait(dam.id, 60)
    assert [one.name for one in client.list_documents(page=1)] == ["gate.txt", "dam.txt", "turbine.txt"]
    assert [one.name for one in client.list_documents(filter={"year": {"$gte": 2020}})] == ["turbine.txt"]
    assert client.set_metadata(made.id, {"shift": "night"}, remove=["year"]).metadata == {"shift": "night"}
    [page], [chunk] = client.pages(made.id), client.chunks(made.id)
    assert page.text.strip() == TEXT.strip()
    assert (chunk.ordinal, chunk.page, chunk.text.strip()) == (0, 1, TEXT.strip())
    assert client.download(made.id, folder / "back.txt") == len(TEXT)
    assert (folder / "back.txt").read_text() == TEXT
    assert b"".join(client.raw(made.id, start=4)) == TEXT.encode()[4:]
    found = client.search("how fast does the turbine turn?", k=1, collection="default", explain=True)
    assert found[0].document_id == made.id
    assert found.explain is not None
    assert client.status().documents == {"COMPLETED": 2, "HELD": 1}
    assert client.session().owner == "default"
    assert client.usage(days=1).days == []
    _call_groups_and_letters(client, folder)
    _call_operator(client)
    assert client.start_batch("later").started == 1
    client.delete(made.id)
    with pytest.raises(NotFound):
        client.document(made.id)
    assert client.drop_collection("dams").documents == 1
    key = client.create_key(name="portal", scopes=["read", "admin"])
    with Client(client.url, key=key.secret) as own:
        assert own.session().actor == f"key:{key.key.id}"
        assert own.create_token(scopes=["read"]).expires_at > time.time()
        assert [one.name for one in own.list_keys()] == ["portal"]
        assert "key.create" in {one.action for one in own.list_audit()}
        assert own.revoke_key(key.key.id).revoked_at is not None
    with pytest.raises(NotAuthenticated):
        client.status()


def _call_groups_and_letters(client: Client, folder: Path) -> None:
    assert {one.name for one in client.list_batches()} == {"monday", "later"}
    [group] = client.list_groups(batch="monday")
    assert client.group(group.id).group == group
    assert (client.retry_group(group.id), client.cancel_group(group.id)) == (0, 0)
    bad = client.upload(b"%PDF-1.4 this is no PDF", name="bad.pdf")
    assert bad.id is not None
    assert client.wait(bad.id, 60).status == "FAILED"
    letters = client.list_dead_letters()
    assert client.dead_letter(letters.letters[0].id).document_id == bad.id
    assert client.replay(dry_run=True).count == 1
    assert client.discard([letters.letters[0].id]).count == 1
    assert client.retry(bad.id)
    client.wait(bad.id, 60)
    assert not client.cancel(bad.id)
    assert client.count_action("delete", name="bad*").count == 1
    action = client.start_action("delete", name="bad*")
    until = time.monotonic() + 60
    while client.action(action.id).state != "DONE":
        assert time.monotonic() < until
        time.sleep(0.1)
    assert [one.id for one in client.list_actions()] == [action.id]
    assert client.cancel_action(action.id).state == "DONE"
    large = folder / "large.bin"
    large.write_bytes(bytes(range(256)) * 4096 * 9)
    sent: list[tuple[int, int]] = []
    assert client.upload(large, on_progress=lambda *told: sent.append(told)).outcome == "created"
    assert sent[0] == (0, 9 << 20)
    assert sent[-1] == (9 << 20, 9 << 20)
    broken = folder / "broken.pdf"
    broken.write_bytes(b"%PDF-1.4 this is no PDF" + bytes(9 << 20))
    failed = client.upload(broken)
    assert client.wait(failed.id or "", 60).status == "FAILED"
    assert client.upload(broken).outcome == "unchanged"
    assert client.upload(broken, retry=True).outcome == "resumed"
    following = client.changes()
    client.upload(b"A note.", name="note.txt")
    assert next(one for one in following if one.name == "note.txt").status in ("PENDING", "EXTRACTING", "COMPLETED")


def _call_operator(client: Client) -> None:
    assert {one.name for one in client.list_collections()} == {"default", "dams"}
    assert client.collection("dams").documents == 1
    assert "default" in {one.id for one in client.list_workflows()}
    assert "default" in {one.id for one in client.list_parameter_sets()}
    assert {one.document for one in client.list_steps()} >= {"turbine.txt"}
    assert [one.alive for one in client.list_workers()] == [True]
    assert client.list_locks().released == []
    with pytest.raises(UsageError):
        client.release_lock("no/such/lock")
    assert client.check(sample=1.0).ok
    assert "collections" in client.vacuum("dams")
    assert client.prune(dry_run=True)["documents"] == 0
    assert client.ready()
    assert "penstock_ledger_up 1" in client.metrics()


def test_both_clients_have_the_same_methods() -> None:
    def public(*kinds: type) -> set[str]:
        return {name for kind in kinds for name in vars(kind) if not name.startswith("_")}

    assert public(Client) == public(AsyncClient, Operations)


async def test_the_async_client_works_in_a_loop_and_so_does_the_other_one(served: Served) -> None:
    async with AsyncClient(served.url) as client:
        made = await client.upload(b"Water.", name="water.txt", source="loop/water.txt")
        assert made.id is not None
        assert (await client.wait(made.id, 60)).status == "COMPLETED"
        names = [one.source async for one in client.list_documents()]
        assert "loop/water.txt" in names
    with Client(served.url) as plain:
        assert plain.document(made.id).source == "loop/water.txt"
    with pytest.raises(UsageError, match="the client is closed"):
        plain.status()


async def test_a_wait_that_takes_too_long_is_a_timeout(served: Served) -> None:
    async with AsyncClient(served.url) as client:
        made = await client.upload(b"It waits.", name="held.txt", hold=True)
        assert made.id is not None
        with pytest.raises(TimeoutError, match="HELD"):
            await client.wait(made.id, 0.2)


def test_the_address_and_the_key_come_from_the_environment(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SERVER", f"{served.url}/api/v1/")
    with Client() as client:
        assert client.url == served.url
        assert client.ready()
    monkeypatch.setenv("PENSTOCK_KEY", "pk_secret")
    with faking(problem(401)) as fake, Client(fake.url) as client:
        assert "secret" not in repr(client)
        with pytest.raises(NotAuthenticated) as refused:
            client.status()
        assert "secret" not in str(refused.value)
        assert fake.asked[0][2]["authorization"] == "Bearer pk_secret"
    monkeypatch.delenv("PENSTOCK_SERVER")
    for wrong in (None, "", "ftp://host", "host:80", "http://"):
        with pytest.raises(UsageError, match="PENSTOCK_SERVER"):
            Client(wrong)
    with pytest.raises(UsageError, match="characters"):
        Client(served.url, key="pk_1\r\nHost: other")


@dataclass
class Fake:
    """A server that gives prepared answers, one after the other, and the last one for ever."""

    answers: list[tuple[int, dict[str, str], bytes]]
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""


@contextmanager
def faking(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[Fake]:
    fake = Fake(list(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fake.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            status, headers, content = fake.answers.pop(0) if len(fake.answers) > 1 else fake.answers[0]
            if status == 0:
                # The connection is cut, and nobody knows whether the request was done.
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def problem(status: int, code: str = "", **headers: str) -> tuple[int, dict[str, str], bytes]:
    body = {
        "type": f"/problems#{code}",
        "title": "t",
        "status": status,
        "detail": f"detail {status}",
        "request_id": "r",
    }
    sent = {"Content-Type": "application/problem+json", **{n.replace("_", "-"): v for n, v in headers.items()}}
    return status, sent, json.dumps(body).encode()


OK = (200, {"Content-Type": "application/json"}, b'{"retried": true}')


@pytest.mark.parametrize(
    ("status", "kind", "base"),
    [
        (400, clients.InvalidRequest, UsageError),
        (422, clients.InvalidRequest, UsageError),
        (401, clients.KeyRejected, NotAuthenticated),
        (403, clients.NotAllowed, Forbidden),
        (404, clients.NotThere, NotFound),
        (409, clients.Conflict, clients.ServiceError),
        (507, clients.ServerDiskFull, DiskFull),
        (500, clients.ServerFailed, clients.ServiceError),
        (429, clients.TooManyRequests, RateLimited),
        (503, clients.Unavailable, Away),
    ],
)
def test_a_problem_is_an_error_of_both_trees(status: int, kind: type[Exception], base: type[Exception]) -> None:
    with faking(problem(status, "word")) as fake, Client(fake.url, patience_s=0) as client:
        with pytest.raises(kind, match=f"detail {status}") as found:
            client.status()
        assert isinstance(found.value, base)
        assert isinstance(found.value, clients.ServiceError)
        assert (found.value.status, found.value.code, found.value.request_id) == (status, "word", "r")
        assert len(fake.asked) == 1


@pytest.mark.parametrize(
    "answer", [problem(429, Retry_After="0"), problem(503), problem(409, Retry_After="0"), (0, {}, b"")]
)
def test_a_request_is_repeated_with_the_same_idempotency_key(answer: tuple[int, dict[str, str], bytes]) -> None:
    with faking(answer, answer, OK) as fake, Client(fake.url) as client:
        assert client.retry("X" * 26)
    keys = [headers["idempotency-key"] for _, _, headers, _ in fake.asked]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_what_the_server_asks_to_wait_is_waited_and_no_longer_than_the_patience() -> None:
    with faking(problem(429, Retry_After="1"), OK) as fake, Client(fake.url) as client:
        began = time.monotonic()
        assert client.retry("X" * 26)
        assert time.monotonic() - began >= 1
    with faking(problem(503, Retry_After="3600")) as fake, Client(fake.url, patience_s=5) as client:
        began = time.monotonic()
        with pytest.raises(Away):
            client.status()
        assert time.monotonic() - began < 3
        assert len(fake.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"Content-Type": "text/html"}, b"<h1>Hello</h1>"),
        (404, {"Content-Type": "text/html"}, b"<h1>Nothing</h1>"),
        (200, {"Content-Type": "application/json"}, b'{"documents": 3}'),
        (200, {"Content-Type": "application/json"}, b"[" * 100_000),
        (301, {"Location": "https://other.example/"}, b""),
    ],
)
def test_another_server_is_told_from_ours(answer: tuple[int, dict[str, str], bytes]) -> None:
    with faking(answer) as fake, Client(fake.url, key="pk_secret") as client:
        with pytest.raises(clients.ServiceError) as found:
            client.status()
        assert "secret" not in str(found.value)
        assert len(fake.asked) == 1, "the key goes nowhere else"


def test_a_file_that_changes_during_its_upload_is_refused(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "log.txt"
    file.write_bytes(b"x" * 1_000_000)

    def write(sent: int, size: int) -> None:
        with file.open("ab") as log:
            log.write(b"y")

    with Client(served.url) as client:
        with pytest.raises(Exception, match="keeps changing"):
            client.upload(file, on_progress=write)
        assert not [one for one in client.list_documents() if one.source == str(file)]
        assert client.upload(file).outcome == "created"


UPLOADER = """
import sys
from penstock.client import Client
with Client(sys.argv[1], patience_s=120) as client:
    print(client.upload(sys.argv[2], on_progress=lambda sent, size: print(sent, flush=True)).id, flush=True)
"""


def test_i1_a_large_upload_survives_kills_of_both_sides(tmp_path: Path) -> None:
    file = tmp_path / "large.bin"
    piece = bytes(range(256)) * 4096
    with file.open("wb") as out:
        for number in range(96):
            out.write(number.to_bytes(4, "big") + piece[4:])
    arguments = ("--no-worker", "--port", free_port())
    first_bytes: list[int] = []

    def upload(served: Served, kill_at: int | None, victim: str) -> str:
        """Upload in a process; when so many bytes were sent, kill one of the two sides."""
        process = subprocess.Popen(
            [sys.executable, "-c", UPLOADER, served.url, str(file)], stdout=subprocess.PIPE, text=True
        )
        last = ""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                last = line.strip()
                if last.isdigit():
                    if last != "0" or not first_bytes:
                        first_bytes.append(int(last))
                    if kill_at is not None and int(last) >= kill_at:
                        if victim == "client":
                            process.kill()
                        else:
                            served.kill()
                            return _restarted(process)
        process.wait()
        return last

    def _restarted(process: "subprocess.Popen[str]") -> str:
        with serving(tmp_path / "home", *arguments):
            out = process.communicate(timeout=120)[0]
            assert process.returncode == 0
            return out.split()[-1]

    with serving(tmp_path / "home", *arguments) as served:
        upload(served, 24 << 20, "client")
        first_bytes.clear()
        document = upload(served, 56 << 20, "server")
    # The second process began where the first one was killed.
    assert first_bytes[0] >= 12 << 20, first_bytes[:3]
    with serving(tmp_path / "home", *arguments) as served, Client(served.url) as client:
        [one] = client.list_documents()
        assert one.id == document
        assert one.size == file.stat().st_size
        client.download(document, tmp_path / "back.bin")
        again = client.upload(file)
        assert (again.id, again.outcome) == (document, "resumed")
    hashes = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (file, tmp_path / "back.bin")}
    assert len(hashes) == 1


def test_a_download_goes_on_after_a_kill_of_the_server(tmp_path: Path) -> None:
    data = b"".join(number.to_bytes(4, "big") * 16384 for number in range(400))
    arguments = ("--no-worker", "--port", free_port())
    back, threads = hashlib.sha256(), []
    with serving(tmp_path / "home", *arguments) as served, Client(served.url, patience_s=60) as client:
        made = client.upload(data, name="data.bin")
        assert made.id is not None
        pieces = client.raw(made.id)
        back.update(next(pieces))
        served.kill()
        over = threading.Event()

        def restart() -> None:
            with serving(tmp_path / "home", *arguments):
                over.wait(120)

        threads.append(threading.Thread(target=restart))
        threads[0].start()
        try:
            for piece in pieces:
                back.update(piece)
        finally:
            over.set()
            threads[0].join()
    assert back.hexdigest() == hashlib.sha256(data).hexdigest()


async def test_the_changes_go_on_after_kills_and_none_is_lost(tmp_path: Path) -> None:
    arguments = ("--port", free_port())
    ended: set[str] = set()
    sent: set[str] = set()
    url = f"http://127.0.0.1:{arguments[1]}"

    async def follow(client: AsyncClient, open_: asyncio.Event) -> None:
        stream = client.changes()
        async for change in stream:
            open_.set()
            if change.status in ("COMPLETED", "FAILED") and change.source:
                ended.add(change.source)
            if "last" in ended:
                break
        await stream.aclose()

    async with AsyncClient(url, patience_s=60) as client:
        following: asyncio.Task[None] | None = None
        for turn in range(3):
            with serving(tmp_path / "home", *arguments) as served:
                if following is None:
                    following = asyncio.create_task(follow(client, asyncio.Event()))
                    await asyncio.sleep(0.5)
                for number in range(4):
                    source = "last" if turn == 2 and number == 3 else f"{turn}-{number}"
                    await client.upload(f"Matter {source}.".encode(), name=f"{source}.txt", source=source)
                    sent.add(source)
                if turn < 2:
                    served.kill()
                else:
                    async with asyncio.timeout(60):
                        await following
    assert ended | {"last"} >= sent - {one for one in sent - ended if one.startswith("2")}
    assert {one for one in sent if not one.startswith("2")} <= ended


def test_the_import_of_the_client_is_light() -> None:
    code = (
        "import sys, penstock.client; print([m for m in sys.modules if m.startswith(('msgspec', 'httpx2', 'numpy', "
        "'penstock.app', 'penstock.config', 'penstock.ledger', 'penstock.verbs'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
