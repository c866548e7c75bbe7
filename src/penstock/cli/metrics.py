"""What `worker --metrics-port` shows: a small HTTP server on threads of its own, so that nobody who asks holds up the
work. A worker under a supervisor sends what it counted through a pipe instead, and the supervisor adds it up."""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Self

import msgspec

from penstock.errors import UsageError
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.reads import gauges
from penstock.metrics.registry import CONTENT_TYPE, Delta, Gauge, Registry
from penstock.model.events import EventKind
from penstock.model.states import DocumentStatus
from penstock.runtime import Runtime
from penstock.workflows.read import KINDS

ASK_S = 5.0
"""How long an answer of the ledger is shown again."""
SHARE = 20
"""Or so many times as long as it took to get: however much there is to count, it costs no more than this part."""
SLOW_S = 5.0
"""A client that says or takes nothing for so long is left."""
CLIENTS = 16
"""More at once are turned away."""
SEND_S = 1.0
LOOK_S = 0.1
"""Between two looks whether to go on."""


class LedgerGauges:
    """Reads the ledger now and then, on a connection of its own, for whichever thread asks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._known: list[Gauge] = []
        self._ask_at = 0.0

    def __call__(self) -> list[Gauge]:
        with self._lock:
            clock = self._database.runtime.clock
            began = clock()
            if not self._known or began >= self._ask_at:
                self._known = self._ask()
                took = clock() - began
                self._ask_at = clock() + max(ASK_S, SHARE * took)
            return self._known

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _ask(self) -> list[Gauge]:
        try:
            if self._database.dialect == "sqlite" and not self._database.path.exists():
                # To connect would make an empty one.
                return [Gauge("ledger_up", 0)]
            if self._connection is None:
                self._connection = self._database.connect()
            return [Gauge("ledger_up", 1), *gauges.read(self._connection, KINDS)]
        except Exception:
            # Whatever it is: the worker meets it, too, and says so.
            self._drop()
            return [Gauge("ledger_up", 0)]

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None


class _Handler(BaseHTTPRequestHandler):
    timeout = SLOW_S
    server_version, sys_version = "penstock", ""
    server: "MetricsServer"

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, "the metrics are at /metrics")
            return
        text = self.server.render().encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants a line for each scrape."""


class MetricsServer(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, host: str, port: int, render: Callable[[], str]) -> None:
        self.render = render
        self._free = threading.BoundedSemaphore(CLIENTS)
        try:
            self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"metrics cannot be shown at {host}, port {port}: {error.strerror or error}. Choose another "
                "--metrics-port (0: any that is free) or --metrics-host"
            ) from error
        self.port: int = self.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/metrics"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(LOOK_S,), name="penstock-metrics", daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes in the middle of its answer is no matter of ours."""


class Sender:
    """Sends what a worker counted to its supervisor, every second and at the end."""

    def __init__(self, registry: Registry, descriptor: int) -> None:
        self._registry = registry
        self._descriptor = descriptor
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="penstock-metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._stop.set()
        # A supervisor that takes nothing does not keep us.
        self._thread.join(SEND_S)

    def _work(self) -> None:
        with suppress(OSError), os.fdopen(self._descriptor, "wb") as pipe:
            stopping = False
            while not stopping:
                stopping = self._stop.wait(SEND_S)
                delta = self._registry.take()
                if delta.counts or delta.timings:
                    pipe.write(msgspec.json.encode(delta) + b"\n")
                    pipe.flush()


def received(registry: Registry, line: bytes) -> None:
    """A line of a Sender; the last one of a process that was killed may be half a line."""
    with suppress(msgspec.DecodeError):
        registry.add(msgspec.json.decode(line, type=Delta))


def ledger_gauges(url: str) -> LedgerGauges:
    return LedgerGauges(Database(url, Runtime()))


def registry_for(pools: str | None) -> Registry:
    """With the counters of these pools at 0."""
    from penstock.verbs.working import pool_sizes
    from penstock.worker.bench import INDEX
    from penstock.worker.pools import REST

    names = {*(pool_sizes(pools) if pools is not None else (REST,)), INDEX}
    ends = (DocumentStatus.COMPLETED, DocumentStatus.NOT_INDEXABLE, DocumentStatus.FAILED)
    known = {"pool": sorted(names), "kind": KINDS, "status": [status.value for status in ends], "event": [*EventKind]}
    return Registry(known)
