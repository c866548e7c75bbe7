"""Local servers that speak the wire of Azure Document Intelligence and of Docling Serve, count what they are paid for,
and misbehave."""

import base64
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pypdfium2

KEY = "right-key"
_PDFIUM = threading.Lock()


@dataclass
class Desk:
    """What a server knows, and how it behaves. `fault(method, path)` returns None, a status, "drop", "drip",
    "redirect", "gateway", "garbage" or "silence"."""

    fault: Callable[[str, str], int | str | None] = lambda method, path: None
    retry_after: str | None = "1"
    polls: int = 1
    """A result is ready at the poll after so many."""
    latency_s: float = 0.0
    url: str = ""
    paid_pages: int = 0
    operations: dict[str, list[str]] = field(default_factory=dict)
    """The text of each page, by operation."""
    asked: dict[str, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    running: set[str] = field(default_factory=set)
    most_running: int = 0
    throttled: int = 0
    redirect: str = ""
    """Where the fault "redirect" leads."""
    accepted: dict[str, str] = field(default_factory=dict)
    """More headers of an answer that accepts a document."""
    seen: int = 0
    """Requests of all kinds."""
    result: Callable[[Any], Any] = lambda content: content
    """Changes the result of an operation before it is sent."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, data: bytes) -> str:
        """An operation on a document; it is paid for now."""
        pages = _texts(data)
        with self.lock:
            name = f"11111111-2222-3333-4444-{len(self.operations):012d}"
            self.operations[name] = pages
            self.paid_pages += len(pages)
            self.sizes.append(len(data))
            self.running.add(name)
            self.most_running = max(self.most_running, len(self.running))
        return name

    def is_ready(self, name: str) -> bool:
        with self.lock:
            self.asked[name] = self.asked.get(name, 0) + 1
            ready = self.asked[name] > self.polls
            if ready:
                self.running.discard(name)
        return ready


def throttling(share: float, seed: int = 7) -> Callable[[str, str], int | None]:
    chance = random.Random(seed)
    return lambda method, path: 429 if chance.random() < share else None


def _texts(data: bytes) -> list[str]:
    with _PDFIUM:
        if not data.startswith(b"%PDF"):
            return [data.decode("utf-8", "replace")]
        document = pypdfium2.PdfDocument(data)
        try:
            return [page.get_textpage().get_text_bounded() for page in document]
        finally:
            document.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    desk: Desk
    counts = False

    def _handle(self, method: str) -> None:
        desk = self.desk
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with desk.lock:
            desk.in_flight += 1
            desk.seen += 1
            self.counts = True
            desk.most_in_flight = max(desk.most_in_flight, desk.in_flight)
        try:
            time.sleep(desk.latency_s)
            fault = desk.fault(method, self.path)
            if fault == "silence":
                # Until the client gives up.
                self.rfile.read(1)
            if fault in ("drop", "silence"):
                self.close_connection = True
                return None
            if fault == "drip":
                return self._drip()
            if fault == "redirect":
                return self.say(302, b"", {"Location": desk.redirect})
            if fault == "gateway":
                return self.say(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"})
            if fault == "garbage":
                return self.say(200, b"<html>not what you want", {"Content-Type": "application/json"})
            if isinstance(fault, int):
                desk.throttled += fault == 429
                headers = {"Retry-After": desk.retry_after} if desk.retry_after and fault in (429, 503) else {}
                return self.say_json(fault, {"error": {"code": str(fault), "message": "no"}}, headers)
            self.answer(method, body)
        finally:
            self._answered()

    def _answered(self) -> None:
        """Count the request as ended: before its answer is sent, or the next one may come earlier."""
        with self.desk.lock:
            self.desk.in_flight -= self.counts
            self.counts = False

    def answer(self, method: str, body: bytes) -> None:
        raise NotImplementedError

    def _drip(self) -> None:
        """An answer that does not end."""
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
            for _ in range(1000):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.02)
        self.close_connection = True

    def say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._answered()
        with suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def say_json(self, status: int, content: Any = None, headers: dict[str, str] | None = None) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        self.say(status, body, {"Content-Type": "application/json", **(headers or {})})

    def do_POST(self) -> None:
        self._handle("POST")

    def do_GET(self) -> None:
        self._handle("GET")

    def log_message(self, format: str, *args: object) -> None:
        pass


class AzureHandler(_Handler):
    def answer(self, method: str, body: bytes) -> None:
        if self.headers.get("Ocp-Apim-Subscription-Key") != KEY:
            return self.say_json(401, {"error": {"code": "401", "message": "Access denied due to invalid key."}})
        if method == "POST":
            if not re.match(r"/documentintelligence/documentModels/[\w-]+:analyze\?.*api-version=", self.path):
                return self.say_json(404, {"error": {"code": "NotFound", "message": self.path}})
            if self.headers["Content-Type"] == "application/json":
                body = base64.b64decode(json.loads(body)["base64Source"])
            name = self.desk.begin(body)
            place = f"{self.desk.url}/documentintelligence/documentModels/prebuilt-layout/analyzeResults/{name}"
            return self.say_json(
                202, None, {"Operation-Location": f"{place}?api-version=2024-11-30", **self.desk.accepted}
            )
        name = self.path.partition("?")[0].rpartition("/")[2]
        if name not in self.desk.operations:
            return self.say_json(404, {"error": {"code": "NotFound", "message": "gone"}})
        if not self.desk.is_ready(name):
            return self.say_json(200, {"status": "running"}, {"Retry-After": "0"})
        content = self.desk.result(analysis(self.desk.operations[name]))
        return self.say_json(200, {"status": "succeeded", "analyzeResult": content})


def analysis(texts: list[str]) -> dict[str, Any]:
    """An `analyzeResult` with a heading, a paragraph and a table on each page."""
    content, pages, paragraphs, tables = "", [], [], []
    for number, text in enumerate(texts, 1):
        start = len(content)
        region = [{"pageNumber": number, "polygon": [0, 0, 1, 0, 1, 1, 0, 1]}]
        content += "## "
        for role, words in (("sectionHeading", f"Part {number}"), (None, " ".join(text.split()))):
            span = {"offset": len(content), "length": len(words)}
            paragraphs.append({"role": role, "content": words, "spans": [span], "boundingRegions": region})
            content += words + "\n\n"
        cells = [
            {"rowIndex": row, "columnIndex": column, "content": f"cell {row}{column}"}
            for row in range(2)
            for column in range(2)
        ]
        span = {"offset": len(content), "length": 20}
        tables.append({"rowCount": 2, "columnCount": 2, "cells": cells, "spans": [span], "boundingRegions": region})
        paragraphs.append({"role": None, "content": "cell 00", "spans": [span], "boundingRegions": region})
        content += "<table>............\n\n"
        pages.append({"pageNumber": number, "spans": [{"offset": start, "length": len(content) - start}], "lines": []})
    return {
        "apiVersion": "2024-11-30", "modelId": "prebuilt-layout", "contentFormat": "markdown", "content": content,
        "stringIndexType": "unicodeCodePoint", "pages": pages, "paragraphs": paragraphs, "tables": tables,
    }  # fmt: skip


class DoclingHandler(_Handler):
    def answer(self, method: str, body: bytes) -> None:
        if self.headers.get("X-Api-Key") != KEY:
            return self.say_json(401, {"detail": "Api key is required."})
        if method == "POST":
            asked = json.loads(body)
            [source] = asked["sources"]
            name = self.desk.begin(base64.b64decode(source["base64_string"]))
            return self.say_json(200, {"task_id": name, "task_type": "convert", "task_status": "pending"})
        _, _, kind, *_, name = self.path.split("/")
        if name not in self.desk.operations:
            return self.say_json(404, {"detail": "Task not found."})
        if kind == "status":
            status = "success" if self.desk.is_ready(name) else "started"
            return self.say_json(200, {"task_id": name, "task_type": "convert", "task_status": status})
        content = self.desk.result(docling_document(self.desk.operations[name]))
        document = {"filename": "a.pdf", "md_content": "", "json_content": content}
        return self.say_json(200, {"document": document, "status": "success", "errors": [], "processing_time": 0.1})


def docling_document(texts: list[str]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    children = []
    for number, text in enumerate(texts, 1):
        place = [{"page_no": number}]
        for label, words in (("section_header", f"Part {number}"), ("text", " ".join(text.split()))):
            children.append({"$ref": f"#/texts/{len(items)}"})
            items.append({"label": label, "text": words, "prov": place, "children": [], "level": 1})
        grid = [[{"text": f"cell {row}{column}"} for column in range(2)] for row in range(2)]
        children.append({"$ref": f"#/tables/{len(tables)}"})
        tables.append({"label": "table", "data": {"grid": grid}, "prov": place, "children": []})
    pages: dict[str, Any] = {str(number): {} for number in range(1, len(texts) + 1)}
    return {"body": {"children": children}, "texts": items, "tables": tables, "groups": [], "pages": pages}


@contextmanager
def serving(handler: type[_Handler], desk: Desk) -> Iterator[Desk]:
    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that is killed is no error."""

    server = Server(("127.0.0.1", 0), type("Handler", (handler,), {"desk": desk}))
    desk.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield desk
    finally:
        server.shutdown()
        server.server_close()
