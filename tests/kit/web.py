"""A web server for tests, in a thread. It knows ETags, dates, ranges and redirects, and can be told to misbehave."""

import email.utils
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Page:
    data: bytes
    headers: dict[str, str] = field(default_factory=dict)
    etag: str | None = None
    modified: float | None = None
    ranges: bool = True
    head: bool = True
    """Whether HEAD is allowed."""


@dataclass
class Site:
    """Pages by path. `faults` are used up one by one, before a page is sent: each gets the handler, and returns whether
    it has answered."""

    port: int = 0
    pages: dict[str, Page] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, path and headers (names in lower case) of each request, in order."""
    times: list[float] = field(default_factory=list)
    faults: list[Callable[["Handler"], bool]] = field(default_factory=list)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def put(self, path: str, data: bytes, **options: Any) -> str:
        options.setdefault("etag", f'"{hashlib.sha256(data).hexdigest()[:16]}"')
        self.pages[path] = Page(data, **options)
        return self.url(path)

    def asked(self, path: str) -> list[str]:
        return [method for method, asked, _ in self.requests if asked == path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.serve()

    def do_GET(self) -> None:
        self.serve()

    def serve(self) -> None:
        path = self.path
        self.site.requests.append((self.command, path, {k.lower(): v for k, v in self.headers.items()}))
        self.site.times.append(time.monotonic())
        if path != "/robots.txt" and self.site.faults and self.site.faults.pop(0)(self):
            return
        page = self.site.pages.get(path)
        if page is None:
            self.answer(404)
        elif self.command == "HEAD" and not page.head:
            self.answer(405)
        elif "Location" in page.headers:
            self.answer(302, page.headers)
        else:
            self.send_page(page)

    def send_page(self, page: Page, cut: int | None = None) -> None:
        """`cut`: the connection ends after so many bytes."""
        headers = dict(page.headers)
        if page.etag:
            headers["ETag"] = page.etag
        if page.modified is not None:
            headers["Last-Modified"] = email.utils.formatdate(page.modified, usegmt=True)
        asked = self.headers.get("If-None-Match"), self.headers.get("If-Modified-Since")
        if (page.etag and asked[0] == page.etag) or (asked[1] and asked[1] == headers.get("Last-Modified")):
            self.answer(304, headers)
            return
        data, status = page.data, 200
        ranged = self.headers.get("Range")
        condition = self.headers.get("If-Range")
        if ranged and page.ranges and condition in (None, page.etag, headers.get("Last-Modified")):
            start = int(ranged.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            data, status = data[start:], 206
        self.answer(status, headers, data, cut)

    def answer(
        self, status: int, headers: Mapping[str, str] | None = None, data: bytes = b"", cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data if cut is None else data[:cut])
        if cut is not None:
            self.close_connection = True


def status(code: int, **headers: str) -> Callable[[Handler], bool]:
    def fault(handler: Handler) -> bool:
        handler.answer(code, {name.replace("_", "-"): value for name, value in headers.items()})
        return True

    return fault


def cut(path: str, size: int) -> Callable[[Handler], bool]:
    """The next GET of this page ends after so many bytes; another request uses the fault up without harm."""

    def fault(handler: Handler) -> bool:
        if handler.command != "GET" or handler.path != path:
            handler.site.faults.insert(0, fault)
            return False
        handler.send_page(handler.site.pages[path], size)
        return True

    return fault


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Handler", (Handler,), {"site": site}))
    server.daemon_threads = True
    site.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
