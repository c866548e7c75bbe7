"""`penstock worker --metrics-port` as Prometheus sees it."""

import os
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.acceptance.test_worker_command import pids, started, until, wait_for_documents
from tests.contract.test_metrics_contract import samples
from tests.kit.busy import slowness
from tests.kit.cli import Cli, finish, write

from penstock.cli.metrics import CLIENTS, LedgerGauges, MetricsServer, Sender, received
from penstock.errors import UsageError
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.metrics.registry import Registry
from penstock.runtime import Runtime


class Watched:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        found = re.fullmatch(r"Metrics: (http://127\.0\.0\.1:(\d+)/metrics)\n", said)
        assert found, said + process.stderr.read().decode()
        self.url, self.port = found[1], int(found[2])

    def scrape(self) -> Callable[..., float]:
        read = samples(get(self.url))
        return lambda name, **labels: read[f"penstock_{name}", frozenset(labels.items())]

    def value(self, name: str, **labels: str) -> float:
        return self.scrape()(name, **labels)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: bytes = answer.read()
        return text.decode()


@contextmanager
def watched(cli: Cli, *options: str) -> Iterator[Watched]:
    with started(cli, "--metrics-port", "0", *options) as process:
        yield Watched(process)


def some(folder: Path, count: int) -> Path:
    return write(folder, **{f"{i}__txt": f"text number {i}" for i in range(count)})


def test_a_scrape_shows_what_was_done_while_others_ask_slowly(cli: Cli, tmp_path: Path) -> None:
    docs = some(tmp_path / "docs", 3)
    (docs / "bad.bin").write_bytes(bytes(range(256)) * 40)
    cli("ingest", docs, "--no-wait")
    with watched(cli, "--pools", "extract=1,*=2") as worker, ExitStack() as stack:
        for _ in range(CLIENTS - 2):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", worker.port)))
            client.sendall(b"GET /met")
        until(
            lambda: cli("status", "--json").json["documents"] == {"COMPLETED": 3, "UNSUPPORTED": 1}, "they are not done"
        )
        value = worker.scrape()
        for kind in ("validate", "extract", "clean", "chunk", "embed", "index"):
            assert value("step_completed_total", kind=kind) == 3 + (kind == "validate")
            assert value("step_duration_seconds_count", kind=kind) == 3 + (kind == "validate")
            assert value("queue_depth", kind=kind, status="PENDING") == 0
        assert value("step_failed_total", kind="extract") == 0, "there before it happens"
        assert value("claim_error_total", pool="extract") == 0
        assert value("claim_duration_seconds_count", pool="*") == value("claim_attempts_total", pool="*")
        assert value("document_ended_total", status="COMPLETED") == value("documents", status="COMPLETED") == 3
        assert (value("documents", status="UNSUPPORTED"), value("dead_letters_open")) == (1, 0)
        assert (value("ledger_up"), value("workers")) == (1, 1)
        assert value("pages_total") == value("indexed_total") == 3
        worker.process.send_signal(signal.SIGTERM)
        result = finish(worker.process, timeout=4)
    assert (result.code, result.json["metrics_port"]) == (0, worker.port)
    with pytest.raises(urllib.error.URLError):
        get(worker.url)


def test_one_port_shows_all_processes_and_keeps_what_the_dead_did(cli: Cli, tmp_path: Path) -> None:
    cli("db", "migrate")
    with watched(cli, "--processes", "2") as worker:
        until(lambda: len(pids(cli)) == 2, "they did not start")
        cli("ingest", some(tmp_path / "docs", 20), "--no-wait")
        wait_for_documents(cli, 20)
        until(lambda: worker.value("document_ended_total", status="COMPLETED") == 20, "not all is shown")
        # Each process sends its own counts, once a second: one may have embedded what the other has indexed.
        until(lambda: worker.value("step_completed_total", kind="embed") == 20, "not all embed steps are shown")
        assert worker.value("step_duration_seconds_count", kind="embed") == 20
        for pid in pids(cli):
            os.kill(pid, signal.SIGKILL)
        until(lambda: worker.value("worker_restarts_total") == 2, "nobody replaced them")
        assert worker.value("document_ended_total", status="COMPLETED") == 20, "a counter never falls"
        until(lambda: worker.value("worker_reaped_total") == 2, "nobody took back what they held")
        worker.process.send_signal(signal.SIGTERM)
        result = finish(worker.process, timeout=5 * slowness())
    assert (result.code, result.json["restarts"], result.json["metrics_port"]) == (0, 2, worker.port)


def test_a_port_that_cannot_be_had_is_refused_with_a_sentence(cli: Cli) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        for more in ([], ["--processes", "2"]):
            result = cli("worker", "--metrics-port", port, *more, "--json")
            assert result.code == 2
            assert f"at 127.0.0.1, port {port}: Address already in use" in result.json["error"]
    for wrong in (
        ["--metrics-port", "70000"],
        ["--metrics-port", "x"],
        ["--metrics-port", "0", "--metrics-host", "no.x"],
    ):
        assert cli("worker", *wrong, "--json").code == 2
    assert pids(cli) == [] if (cli.home / "ledger.db").exists() else True


def test_port_and_address_may_stand_in_the_settings(cli: Cli) -> None:
    cli.settings.update(PENSTOCK_WORKER__METRICS_PORT="0", PENSTOCK_WORKER__METRICS_HOST="127.0.0.2")
    with started(cli) as process:
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        assert re.fullmatch(r"Metrics: http://127\.0\.0\.2:\d+/metrics\n", said), said
        assert "penstock_ledger_up" in get(said.split()[1])


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    registry = Registry()
    with MetricsServer("127.0.0.1", 0, registry.render) as server:
        yield server


def ask(server: MetricsServer, request: bytes) -> bytes:
    """The answer, or none: who is left in the middle of a long request may be cut off before it comes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client, suppress(OSError):
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        while part := client.recv(65536):
            answer += part
    return answer


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"GET /metrics?name[]=x HTTP/1.0\r\n\r\n", b"200"),
        (b"GET / HTTP/1.0\r\n\r\n", b"404"),
        (b"GET /../../etc/passwd HTTP/1.0\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", b"501"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", b"505"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.0\r\n\r\n", b""),
        (b"GET / HTTP/1.0\r\n" + b"X: y\r\n" * 1000 + b"\r\n", b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
    ],
)
def test_rubbish_is_answered_and_affects_no_other(server: MetricsServer, request_bytes: bytes, code: bytes) -> None:
    assert code in ask(server, request_bytes).split(b"\r\n", 1)[0]
    assert b" 200 " in ask(server, b"GET /metrics HTTP/1.0\r\n\r\n")


def test_clients_that_say_nothing_neither_hold_up_others_nor_pile_up(server: MetricsServer) -> None:
    with ExitStack() as stack:
        for _ in range(CLIENTS - 1):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        assert "penstock_pages_total" in get(server.url)
        for _ in range(5):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        until(lambda: _threads() == CLIENTS, "they pile up, or nobody is let in", 5)
    until(lambda: _threads() == 0, "somebody stays", 5)
    assert "penstock_pages_total" in get(server.url)


def _threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot be served at 300\.1\.1\.1, port 0"):
        MetricsServer("300.1.1.1", 0, str)


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_an_address_may_be_of_ipv6() -> None:
    with MetricsServer("::1", 0, str) as server:
        assert server.url == f"http://[::1]:{server.port}/metrics"
        assert get(server.url) == ""


def test_the_ledger_is_not_asked_at_each_scrape(tmp_path: Path) -> None:
    class Clock(Runtime):
        time = 0.0
        pace = 0.0

        def clock(self) -> float:
            self.time += self.pace
            return self.time

    runtime = Clock()
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}", runtime)
    asked = LedgerGauges(database)
    assert [gauge.value for gauge in asked()] == [0], "no ledger, and none is made by asking"
    assert not list(tmp_path.iterdir())
    Ledger(database)._open(True)
    assert asked()[0].value == 0, "for some seconds it is believed"
    runtime.time += 5.0
    assert asked()[0].value == 1
    runtime.time, runtime.pace = runtime.time + 5.0, 2.0
    first = asked()
    runtime.pace = 0.0
    runtime.time += 30.0
    assert asked() is first, "what takes long is asked seldom"
    runtime.time += 30.0
    assert asked() is not first
    asked.close()


def test_a_half_line_of_a_killed_process_is_left_out() -> None:
    total = Registry()
    for line in (b'{"counts":[["pages",[],3]],"timings":[]}\n', b'{"counts":[["pages",[],3]],"ti', b"\xff\n", b"[]\n"):
        received(total, line)
    assert samples(total.render())["penstock_pages_total", frozenset()] == 3


def test_what_is_counted_in_the_last_moment_is_sent() -> None:
    reading, writing = os.pipe()
    registry, total = Registry(), Registry()
    with Sender(registry, writing):
        registry.incr("pages", 5)
    with os.fdopen(reading, "rb") as pipe:
        for line in pipe:
            received(total, line)
    assert samples(total.render())["penstock_pages_total", frozenset()] == 5
