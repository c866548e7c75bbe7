"""A local stand-in for Pinecone: its REST interface as the client speaks it, with its limits, positions in the log, and
reads that lag behind the writes. Vectors are compared exactly. There is no engine of Pinecone that runs locally."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import numpy as np

LAG_S = 0.02
"""How long a write is invisible."""
Record = dict[str, Any]


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PineconeServer:
    """`stop` and `start` again: all requests in between get no answer. The setting names `address`, an index
    that the first table creates. `endpoint` is the server."""

    address = "penstock-test?cloud=aws&region=us-east-1"

    def __init__(self, folder: Path, key: str = "pinecone-secret-key") -> None:
        self.key = key
        self.port = 0
        self.lag_s = LAG_S
        self.tells_position = True
        self.indexes: dict[str, Any] = {}
        self.before: Callable[[str, str], None] = lambda method, path: None
        self._lock = threading.Lock()
        self._namespaces: dict[str, dict[str, Record]] = {}
        self._pending: list[tuple[float, int, str, Callable[[dict[str, Record]], None]]] = []
        self._written = self._visible = 0
        self._http: ThreadingHTTPServer | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "PineconeServer":
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, answer, headers = server.handle(self.command, self.path, body, self.headers)
                data = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Type": "application/json", "Content-Length": len(data)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = _answer

            def log_message(self, *values: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            open_sockets: ClassVar[set[Any]] = set()

            def process_request(self, request: Any, address: Any) -> None:
                self.open_sockets.add(request)
                super().process_request(request, address)

            def handle_error(self, request: Any, address: Any) -> None: ...

        self._http = Server(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        assert self._http is not None
        self._http.shutdown()
        self._http.server_close()
        for one in list(self._http.open_sockets):  # type: ignore[attr-defined]
            try:
                one.shutdown(2)
            except OSError:
                continue

    def handle(self, method: str, path: str, body: bytes, headers: Any) -> tuple[int, Any, dict[str, Any]]:
        parts = urlsplit(path)
        try:
            if headers.get("api-key") != self.key:
                raise Refused(401, f"Invalid API Key: {headers.get('api-key')}")
            if not headers.get("X-Pinecone-Api-Version"):
                raise Refused(400, "no version of the interface")
            self.before(method, parts.path)
            if len(body) > 2 << 20:
                raise Refused(413, "Request size exceeds the limit of 2 MB")
            with self._lock:
                self._settle()
                answer, extra = self._call(method, parts.path, parse_qs(parts.query), json.loads(body or b"{}"))
        except Refused as error:
            retry = {"Retry-After": 7} if error.status == 429 else {}
            return error.status, {"error": {"code": "REFUSED", "message": str(error)}, "status": error.status}, retry
        return (201 if path == "/indexes" and method == "POST" else 200), answer, extra

    def _settle(self) -> None:
        now = time.monotonic()
        while self._pending and self._pending[0][0] <= now:
            _, self._visible, namespace, change = self._pending.pop(0)
            change(self._namespaces.setdefault(namespace, {}))

    def _write(self, namespace: str, change: Callable[[dict[str, Record]], None]) -> dict[str, Any]:
        self._written += 1
        self._pending.append((time.monotonic() + self.lag_s, self._written, namespace, change))
        return {"x-pinecone-request-lsn": self._written} if self.tells_position else {}

    def _call(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[Any, dict[str, Any]]:
        namespace = body.get("namespace") or query.get("namespace", [""])[0]
        there = self._namespaces.get(namespace, {})
        match method, path:
            case "POST", "/indexes":
                if body["name"] in self.indexes:
                    raise Refused(409, "Resource already exists")
                self.indexes[body["name"]] = body
                return self._described(body["name"]), {}
            case "GET", _ if path.startswith("/indexes/"):
                return self._described(path.removeprefix("/indexes/")), {}
            case "POST", "/vectors/upsert":
                records = {one["id"]: self._checked(one) for one in body["vectors"]}
                return {"upsertedCount": len(records)}, self._write(namespace, lambda all_: all_.update(records))
            case "POST", "/vectors/delete":
                gone = body["ids"]
                if len(gone) > 1000:
                    raise Refused(400, "Too many ids")

                def remove(all_: dict[str, Record]) -> None:
                    for one in gone:
                        all_.pop(one, None)

                return {}, self._write(namespace, remove)
            case "POST", "/query":
                found = self._found(there, body)
                return {"matches": found, "namespace": namespace}, {"x-pinecone-max-indexed-lsn": self._visible}
            case "GET", "/vectors/fetch":
                if sum(map(len, query["ids"])) > 16_000:
                    raise Refused(414, "Request-URI Too Large")
                vectors = {one: there[one] for one in query["ids"] if one in there}
                return {"vectors": vectors, "namespace": namespace}, {}
            case "GET", "/vectors/list":
                prefix, after = query.get("prefix", [""])[0], query.get("paginationToken", [""])[0]
                ids = sorted(one for one in there if one.startswith(prefix) and one > after)
                page = ids[: int(query.get("limit", ["100"])[0])]
                more = {"pagination": {"next": page[-1]}} if len(page) < len(ids) else {}
                return {"vectors": [{"id": one} for one in page], "namespace": namespace, **more}, {}
        raise Refused(404, f"no route for {method} {path}")

    def _described(self, name: str) -> dict[str, Any]:
        if name not in self.indexes:
            raise Refused(404, f"Resource {name} not found")
        return {**self.indexes[name], "name": name, **_DESCRIBED, "host": self.endpoint}

    def _checked(self, one: Record) -> Record:
        [index] = self.indexes.values()
        dimensions = index["schema"]["fields"]["_values"]["dimension"]
        sparse = one.get("sparseValues", {"indices": []})
        problems = {
            f"Vector dimension {len(one['values'])} does not match the dimension of the index {dimensions}": len(
                one["values"]
            )
            != dimensions,
            "Dense vectors must contain at least one non-zero value": not any(one["values"]),
            "Metadata size exceeds the limit of 40960 bytes": len(json.dumps(one["metadata"]).encode()) > 40_960,
            "Too many sparse values": len(sparse["indices"]) > 1_000,
            "Vector ID must be at most 512 characters": len(one["id"]) > 512,
            "Metadata value must be a string, number, boolean or list of strings": any(
                value is None or isinstance(value, dict) for value in one["metadata"].values()
            ),
        }
        for message, wrong in problems.items():
            if wrong:
                raise Refused(400, message)
        # Numbers of metadata are floats.
        numbers = {key: float(value) for key, value in one["metadata"].items() if type(value) is int}
        return {**one, "metadata": {**one["metadata"], **numbers}}

    def _found(self, there: dict[str, Record], body: Any) -> list[dict[str, Any]]:
        if body["topK"] > (1_000 if body.get("includeMetadata") else 10_000):
            raise Refused(400, "top_k is too large")
        kept = [one for one in there.values() if _matches(one["metadata"], body.get("filter"))]
        if not kept:
            return []
        scores = np.array([one["values"] for one in kept], np.float32) @ np.array(body["vector"], np.float32)
        if (asked := body.get("sparseVector")) is not None:
            wanted = dict(zip(asked["indices"], asked["values"], strict=True))
            for at, one in enumerate(kept):
                sparse = one.get("sparseValues", {"indices": [], "values": []})
                pairs = zip(sparse["indices"], sparse["values"], strict=True)
                scores[at] += sum(value * wanted.get(index, 0.0) for index, value in pairs)
        order = np.argsort(-scores, kind="stable")[: body["topK"]]
        shown = ["id", *(["metadata"] if body.get("includeMetadata") else [])]
        return [{**{name: kept[at][name] for name in shown}, "score": float(scores[at])} for at in order]


_DESCRIBED: dict[str, Any] = {
    "status": {"ready": True, "state": "Ready"},
    "deletion_protection": "disabled",
    "created_at": "2026-01-01T00:00:00Z",
}


def _matches(fields: Any, given: Any) -> bool:
    if not given:
        return True
    [(name, value)] = given.items()
    if name == "$and":
        return all(_matches(fields, one) for one in value)
    if name == "$or":
        return any(_matches(fields, one) for one in value)
    [(how, wanted)] = value.items()
    if how in ("$in", "$nin"):
        if len(wanted) > 10_000:
            raise Refused(400, "too many values in a filter")
        return bool((fields[name] in set(wanted)) == (how == "$in"))
    return bool(fields[name] == wanted if how == "$eq" else fields[name] < wanted)
