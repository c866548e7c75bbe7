"""A provider that allows a number of requests in each time window, and counts what it gets."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class LimitedProvider:
    """`most` requests in any `window_s` seconds; each takes `latency_s`. The others get 429."""

    most: int
    window_s: float
    latency_s: float = 0.02
    retry_after: bool = True
    accepted: list[float] = field(default_factory=list)
    throttled: list[float] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    url: str = ""
    _window: deque[float] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> float | None:
        """None: accepted; else the seconds after which the client may come back."""
        now = time.monotonic()
        with self._lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            while self._window and self._window[0] <= now - self.window_s:
                self._window.popleft()
            if len(self._window) >= self.most:
                self.throttled.append(now)
                return self._window[0] + self.window_s - now
            self._window.append(now)
            self.accepted.append(now)
            return None

    def leave(self) -> None:
        with self._lock:
            self.in_flight -= 1


@contextmanager
def serving(provider: LimitedProvider) -> Iterator[LimitedProvider]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            wait = provider.enter()
            if wait is None:
                time.sleep(provider.latency_s)
            provider.leave()
            self.send_response(200 if wait is None else 429)
            if wait is not None and provider.retry_after:
                self.send_header("Retry-After", str(int(wait) + 1))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that ends is no error."""

    server = Server(("127.0.0.1", 0), Handler)
    provider.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
