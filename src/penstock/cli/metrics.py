"""The HTTP server of `worker --metrics-port`. It has its own threads, so that requests do not delay the work. A
supervised worker sends its counts to the supervisor through a pipe instead, and the supervisor adds them up."""

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

from penstock.config import Config
from penstock.errors import UsageError
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.reads import gauges
from penstock.metrics import disk
from penstock.metrics.registry import CONTENT_TYPE, Delta, Gauge, Registry
from penstock.model.events import EventKind
from penstock.model.reasons import ADVICE
from penstock.model.states import DocumentStatus
from penstock.runtime import Runtime
from penstock.workflows.read import KINDS

ASK_S = 5.0
"""How long gauges read from the ledger are reused."""
SHARE = 20
"""They are also reused for this multiple of the time that reading took, which limits its share of the time."""
SLOW_S = 5.0
"""The connection of a client that sends or receives nothing for this time is closed."""
CLIENTS = 16
"""Maximum number of concurrent clients; further ones are rejected."""
SEND_S = 1.0
LOOK_S = 0.1
"""Interval between two checks whether to stop."""


class LedgerGauges:
    """Reads the gauges from the ledger, on its own connection. Can be called from any thread."""

    def __init__(self, database: Database, disks: Callable[[], list[Gauge]] = list) -> None:
        """`disks`: the gauges of the disks, which are also read while the ledger cannot be."""
        self._database = database
        self._disks = disks
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._known: list[Gauge] = []
        self._ask_at = 0.0

    def __call__(self) -> list[Gauge]:
        with self._lock:
            clock = self._database.runtime.clock
            began = clock()
            if not self._known or began >= self._ask_at:
                self._known = [*self._ask(), *self._disks()]
                took = clock() - began
                self._ask_at = clock() + max(ASK_S, SHARE * took)
            return self._known

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _ask(self) -> list[Gauge]:
        try:
            if self._database.dialect == "sqlite" and not self._database.path.exists():
                # Connecting would create an empty database.
                return [Gauge("ledger_up", 0)]
            if self._connection is None:
                self._connection = self._database.connect()
            return [Gauge("ledger_up", 1), *gauges.read(self._connection, KINDS)]
        except Exception:
            # The worker meets the same error and reports it.
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
        """Do not log each request."""


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
                f"metrics cannot be served at {host}, port {port}: {error.strerror or error}. Choose another "
                "--metrics-port (0: any free port) or --metrics-host"
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
        """Ignore clients that disconnect during the response."""


class Sender:
    """Sends the counts of a worker to its supervisor, every second and at the end."""

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
        # Do not wait longer for a supervisor that does not read.
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
    """Add a line from a Sender. The last line of a killed process may be incomplete."""
    with suppress(msgspec.DecodeError):
        registry.add(msgspec.json.decode(line, type=Delta))


def ledger_gauges(settings: Config) -> LedgerGauges:
    database = Database(settings.database_url, Runtime())
    return LedgerGauges(database, lambda: disk.gauges(settings, database.file))


def registry_for(pools: str | None) -> Registry:
    """A registry in which the counters of these pools start at 0."""
    from penstock.stages.registry import GROUPED
    from penstock.verbs.working import pool_sizes
    from penstock.worker.pools import REST

    names = {*(pool_sizes(pools) if pools is not None else (REST,)), *GROUPED}
    ends = (DocumentStatus.COMPLETED, DocumentStatus.NOT_INDEXABLE, DocumentStatus.UNSUPPORTED, DocumentStatus.FAILED)
    known = {"pool": sorted(names), "kind": KINDS, "status": [status.value for status in ends], "event": [*EventKind]}
    return Registry({**known, "reason": [*ADVICE, "custom"]})
