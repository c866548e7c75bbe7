"""The HTTP client against servers that misbehave."""

import asyncio
import gzip
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate

import pytest

from penstock.errors import Away, ConfigError, Permanent, RateLimited, Unauthorized
from penstock.net.addresses import AddressRefused, is_public
from penstock.net.client import Client, Limits, Reply, check
from penstock.net.headers import LONGEST_S, retry_after
from penstock.runtime import Runtime

QUICK = Limits(wait_s=0.3)
Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Speaks raw HTTP: `answer` gets the head of each request and writes what it likes."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.port = 0
        self.asked = asyncio.Event()
        self.lost = asyncio.Event()
        """Set when a client has hung up on us."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/secret-4711?key=hidden-9922"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                self.asked.set()
                await self.answer(head, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.lost.set()
        finally:
            writer.close()


@asynccontextmanager
async def serving(answer: Answer | bytes) -> AsyncIterator[Server]:
    async def always(head: bytes, writer: asyncio.StreamWriter) -> None:
        assert isinstance(answer, bytes)
        writer.write(answer)

    server = Server(always if isinstance(answer, bytes) else answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[Client]:
    client = Client(runtime, allow_private=True)
    yield client
    await client.close()


def ok(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


async def test_an_answer_comes_whole_and_the_connection_is_used_again(client: Client) -> None:
    async with serving(ok(b"hello", "X-Kind: greeting")) as server:
        first = await client.request("GET", server.url)
        second = await client.request("POST", server.url, headers={"X-Mine": "1"}, content=b"")
    assert first.body == second.body == b"hello"
    assert first.ok
    assert first.headers["x-kind"] == "greeting"
    assert b"User-Agent: penstock\r\n" in server.heads[0]
    assert b"Accept-Encoding: identity\r\n" in server.heads[0]
    assert b"X-Mine: 1\r\n" in server.heads[1]
    assert not server.lost.is_set()


async def drip(head: bytes, writer: asyncio.StreamWriter) -> None:
    for letter in b"HTTP/1.1 200 " + b"O" * 1000:
        writer.write(bytes([letter]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def drip_body(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def silence(head: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def hang_up(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def hang_up_in_the_body(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly so much")
    writer.close()


async def many_headers(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(100_000):
        writer.write(b"X-%d: %s\r\n" % (number, b"y" * 100))
        await writer.drain()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (drip, "not done within 0.5 s"),
        (drip_body, "not done within 0.5 s"),
        (silence, "nothing within 0.3 s"),
        (hang_up, "the connection was cut"),
        (hang_up_in_the_body, "the connection was cut"),
        (many_headers, "the connection was cut, or the answer is not HTTP"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://[::1\r\n\r\n", "the answer is not HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "the answer is not HTTP"),
        (ok(b"not gzip", "Content-Encoding: gzip"), "the compressed answer is damaged"),
    ],
)
async def test_a_bad_answer_is_away_in_time_and_its_url_is_not_told(
    client: Client, answer: Answer | bytes, said: str
) -> None:
    async with serving(answer) as server:
        began = time.monotonic()
        with pytest.raises(Away, match=said) as caught:
            await client.request("GET", server.url, limits=Limits(wait_s=0.3, total_s=0.5))
        assert time.monotonic() - began < 5
    assert caught.value.reason == "away"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__, "a traceback would show the URL"
    for secret in ("secret-4711", "hidden-9922", str(server.port)):
        assert secret not in str(caught.value)


async def test_nobody_listens_and_nobody_has_that_name(client: Client) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(Away, match=r"no answer: .*[Cc]onnect"):
        await client.request("GET", f"http://127.0.0.1:{port}/", limits=QUICK)
    with pytest.raises(Away, match="the host name cannot be resolved"):
        await client.request("GET", "http://no-such-host.invalid/", limits=Limits(wait_s=20))


async def test_a_server_that_speaks_no_tls_is_away(client: Client) -> None:
    async with serving(b"") as server:
        with pytest.raises(Away, match="no answer"):
            await client.request("GET", f"https://127.0.0.1:{server.port}/", limits=QUICK)


async def test_a_large_answer_is_refused_before_it_is_read(client: Client) -> None:
    async def endless(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()

    announced = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"
    for answer in (announced, endless):
        async with serving(answer) as server:
            with pytest.raises(Permanent, match="more than 200,000 bytes") as caught:
                await client.request("GET", server.url, limits=Limits(wait_s=5, max_bytes=200_000))
            assert caught.value.reason == "too_large"
            await asyncio.wait_for(server.lost.wait(), 5)
    async with serving(endless) as server:
        limits = Limits(wait_s=5, max_bytes=500, cut=True)
        assert (await client.request("GET", server.url, limits=limits)).body == b"x" * 500


async def test_a_small_compressed_answer_does_not_become_a_large_one(client: Client) -> None:
    async with serving(ok(gzip.compress(bytes(5_000_000)), "Content-Encoding: gzip")) as server:
        with pytest.raises(Permanent, match="more than 100,000 bytes"):
            await client.request("GET", server.url, limits=Limits(max_bytes=100_000))
        reply = await client.request("GET", server.url, limits=Limits(max_bytes=5_000_000))
        assert len(reply.body) == 5_000_000
    async with serving(ok(b"?", "Content-Encoding: zstd")) as server:
        with pytest.raises(Permanent, match="encoding that was not requested"):
            await client.request("GET", server.url)


def redirect(location: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: {location}\r\n\r\n".encode()


async def test_redirects_are_followed_on_one_host_only_and_only_on_request(client: Client) -> None:
    async def twice(head: bytes, writer: asyncio.StreamWriter) -> None:
        target = head.split()[1]
        steps = {b"/a": redirect("/b"), b"/b": redirect(f"http://127.0.0.1:{server.port}/c"), b"/c": ok(b"there")}
        writer.write(steps[target])

    async with serving(twice) as server:
        url = f"http://127.0.0.1:{server.port}/a"
        assert (await client.request("GET", url)).status == 302
        assert (await client.request("POST", url, redirects=3)).status == 302
        assert (await client.request("GET", url, redirects=2)).body == b"there"
        with pytest.raises(Permanent, match="too many times"):
            await client.request("GET", url, redirects=1)


@pytest.mark.parametrize(
    "location",
    [
        "http://example.org/",
        "//example.org/",
        "http://127.0.0.1:1/",
        "http://localhost/",
        "http://127.0.0.1.example.org/",
        "http://u:p@127.0.0.1/",
        "file:///etc/passwd",
        "http://ex ample/",
        "https://127.0.0.1:{port}/",
    ],
)
async def test_a_redirect_to_another_host_is_refused(client: Client, location: str) -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(redirect(location.format(port=server.port)))

    async with serving(answer) as server:
        with pytest.raises(Permanent, match=r"to another host|not a URL of http") as caught:
            await client.request("GET", server.url, redirects=3)
        assert caught.value.reason == "bad_redirect"
        assert len(server.heads) == 1


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2600::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "0", "[::ffff:7f00:1]"])
async def test_a_private_address_is_refused_in_every_spelling(runtime: Runtime, host: str) -> None:
    client = Client(runtime, allow_private=False)
    async with serving(ok(b"secret")) as server:
        with pytest.raises((Away, AddressRefused)) as caught:
            await client.request("GET", f"http://{host}:{server.port}/", limits=QUICK)
        assert server.heads == []
        assert isinstance(caught.value, AddressRefused) or "cannot be resolved" in str(caught.value)
    await client.close()


async def test_a_name_with_one_private_address_is_refused_and_is_resolved_once(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer of the name server must not matter: the connection goes to the address that was checked."""
    asked: list[str] = []

    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        found = {"mixed.test": ["203.0.114.9", "127.0.0.1"], "ours.test": ["127.0.0.1"]}[host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    strict, lax = Client(runtime, allow_private=False), Client(runtime, allow_private=True)
    async with serving(ok(b"hello")) as server:
        with pytest.raises(Permanent) as caught:
            await strict.request("GET", f"http://mixed.test:{server.port}/")
        assert caught.value.reason == "private_address"
        assert (await lax.request("GET", f"http://ours.test:{server.port}/")).body == b"hello"
        assert b"Host: ours.test:" in server.heads[0]
    assert asked == ["mixed.test", "ours.test"]
    await strict.close()
    await lax.close()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        (" 17 ", 17.0),
        ("1.5", 1.5),
        ("9" * 15, LONGEST_S),
        (formatdate(1_000_060, usegmt=True), 60.0),
        (formatdate(999_000, usegmt=True), 0.0),
        ("Mon, 12 Jan 1970 13:47:40 -0000", 60.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("1e9", None),
        ("9" * 400, None),
        ("²", None),
        ("Fri, 99 Zzz 2020 00:00:00 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 -2359", LONGEST_S),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, 1_000_000.0) == seconds


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (429, RateLimited, "rate_limited"),
        (500, Away, "away"),
        (503, Away, "away"),
        (408, Away, "away"),
        (401, Unauthorized, "unauthorized"),
        (403, Unauthorized, "unauthorized"),
        (404, Permanent, "http_error"),
        (302, Permanent, "http_error"),
    ],
)
def test_each_bad_status_has_its_error(status: int, kind: type[Away | Permanent], reason: str) -> None:
    with pytest.raises(kind, match=f"provider 'p' answered {status}") as caught:
        check(Reply(status, {}, b""), "provider 'p'", setting="embedder.key", target="p")
    assert getattr(caught.value, "reason", "") == reason
    assert getattr(caught.value, "target", "p") == "p"
    assert getattr(caught.value, "setting", "embedder.key") == "embedder.key"
    check(Reply(204, {}, b""), "provider 'p'", setting="embedder.key")


@pytest.mark.parametrize(("status", "kind"), [(429, RateLimited), (503, Away)])
def test_a_server_that_names_a_time_is_left_alone_for_that_long(status: int, kind: type[Away]) -> None:
    with pytest.raises(kind) as caught:
        check(Reply(status, {}, b"", retry_after=7.0), "it", setting="key")
    assert caught.value.retry_after == 7.0


async def test_a_url_is_never_logged_and_logs_of_others_stay(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    import httpx2

    caplog.set_level(logging.DEBUG)
    async with serving(ok(b"hello")) as server:
        headers = {"Authorization": "Bearer sesame"}
        await client.request("GET", server.url, headers=headers)
        for secret in ("secret-4711", "hidden-9922", "sesame"):
            assert secret not in caplog.text
        async with httpx2.AsyncClient(trust_env=False) as theirs:
            await theirs.get(f"http://127.0.0.1:{server.port}/theirs")
        assert "/theirs" in caplog.text


def test_an_excerpt_hides_the_url() -> None:
    url = "http://user:pass-word@h/hooks/token-1?key=abc-2"
    body = b"no\n/hooks/token-1?key=abc-2 or /hooks/token-1 or key=abc-2 or pass-word " + b"x" * 500
    said = Reply(404, {}, body).excerpt(url, 40)
    assert said == "no … or … or … or … " + "x" * 20


async def test_a_stream_can_be_left_early_and_the_client_goes_on(client: Client) -> None:
    async with serving(ok(b"x" * 300_000)) as server:
        async with client.stream("GET", server.url) as stream:
            assert stream.status == 200
            async for piece in stream.pieces():
                assert piece
                break
        assert (await client.request("GET", server.url)).ok
        with pytest.raises(TimeoutError, match="mine"):
            async with client.stream("GET", server.url, limits=Limits(total_s=5)):
                raise TimeoutError("mine")


async def test_cancelling_a_request_closes_its_connection(client: Client) -> None:
    async with serving(drip_body) as server:
        task = asyncio.create_task(client.request("GET", server.url))
        await server.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.lost.wait(), 5)


@pytest.mark.parametrize("url", ["ftp://h/", "http://", "http://h/a b", "file:///etc/passwd", "http://h:99999/"])
async def test_a_url_that_is_none_is_refused(client: Client, url: str) -> None:
    with pytest.raises(ConfigError):
        await client.request("GET", url)
