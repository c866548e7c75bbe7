"""A local server with the REST interface of Qdrant, as far as the adapter uses it. Its engine is that of Qdrant itself
(`qdrant-edge-py`): collections, filters, scores and files are real. The routes are ours."""

import json
import shutil
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import qdrant_edge as edge

KEY = "qdrant-secret-key"


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class QdrantServer:
    """`stop` and `start` again: all requests in between get no answer, and the data are read from the files."""

    def __init__(self, folder: Path, key: str = "") -> None:
        self.folder = folder
        self.key = key
        self.port = 0
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda method, path: None
        """Called before each request; may raise Refused."""
        self._lock = threading.Lock()
        self._shards: dict[str, Any] = {}
        self._http: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> "QdrantServer":
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            self._shards[path.name] = edge.EdgeShard.load(str(path))
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, answer = server.handle(self.command, self.path, body, self.headers.get("api-key") or "")
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                if status == 429:
                    self.send_header("Retry-After", "7")
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = _answer

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
        with self._lock:
            for shard in self._shards.values():
                shard.close()
            self._shards.clear()

    def handle(self, method: str, path: str, body: bytes, key: str) -> tuple[int, Any]:
        parts = urlsplit(path)
        try:
            if key != self.key:
                raise Refused(401, f"Invalid API key {key}")
            self.before(method, parts.path)
            self.requests.append((method, parts.path))
            with self._lock:
                result = self._call(method, parts.path.strip("/").split("/"), json.loads(body or b"{}"))
        except Refused as error:
            return error.status, {"status": {"error": str(error)}, "time": 0.0}
        except Exception as error:
            return 400, {"status": {"error": f"{type(error).__name__}: {error}"}, "time": 0.0}
        assert "wait" not in parts.query or parse_qs(parts.query)["wait"] == ["true"], "writes are waited for"
        return 200, {"result": result, "status": "ok", "time": 0.0}

    def _call(self, method: str, path: list[str], body: Any) -> Any:
        match method, path:
            case "GET", ["collections"]:
                return {"collections": [{"name": name} for name in self._shards]}
            case "GET", ["collections", name, "exists"]:
                return {"exists": name in self._shards}
            case "PUT", ["collections", name]:
                return self._create(name, body)
            case "DELETE", ["collections", name]:
                self._shards.pop(name).close()
                shutil.rmtree(self.folder / name)
                return True
            case _, ["collections", name, *_] if name not in self._shards:
                raise Refused(404, f"Not found: Collection `{name}` doesn't exist!")
            case "PUT", ["collections", name, "index"]:
                given = dict(body["field_schema"])
                made = edge.KeywordIndexParams if given.pop("type") == "keyword" else edge.IntegerIndexParams
                change = edge.UpdateOperation.create_field_index(body["field_name"], made(**given))
                return self._update(name, change)
            case "PUT", ["collections", name, "points"]:
                points = [edge.Point(one["id"], _vectors(one["vector"]), one["payload"]) for one in body["points"]]
                only = None if body.get("update_filter") is None else _filter(body["update_filter"])
                return self._update(name, edge.UpdateOperation.upsert_points(points, only))
            case "POST", ["collections", name, "points", "delete"]:
                if "points" in body:
                    return self._update(name, edge.UpdateOperation.delete_points(body["points"]))
                return self._update(name, edge.UpdateOperation.delete_points_by_filter(_filter(body["filter"])))
            case "POST", ["collections", name, "points", "query"]:
                found = self._shards[name].query(
                    edge.QueryRequest(
                        limit=body["limit"],
                        query=edge.Query.Nearest(_nearest(body["query"]["nearest"]), body["using"]),
                        filter=_filter(body["filter"]),
                        with_payload=body["with_payload"],
                    )
                )
                answers = [
                    {"id": str(one.id), "version": 0, "score": one.score, "payload": one.payload} for one in found
                ]
                return {"points": answers}
            case "POST", ["collections", name, "points", "scroll"]:
                records, following = self._shards[name].scroll(
                    edge.ScrollRequest(
                        offset=body.get("offset"),
                        limit=body["limit"],
                        filter=None if body.get("filter") is None else _filter(body["filter"]),
                        with_payload=body["with_payload"],
                    )
                )
                offset = None if following is None else str(following)
                return {"points": [_record(one) for one in records], "next_page_offset": offset}
            case "POST", ["collections", name, "points", "count"]:
                assert body["exact"] is True
                return {"count": self._shards[name].count(edge.CountRequest(filter=_filter(body["filter"])))}
            case "POST", ["collections", name, "points"]:
                return [_record(one) for one in self._shards[name].retrieve(body["ids"], body["with_payload"], False)]
        raise Refused(404, f"no route for {method} /{'/'.join(path)}")

    def _create(self, name: str, body: Any) -> bool:
        if name in self._shards:
            raise Refused(409, f"Wrong input: Collection `{name}` already exists!")
        dense = {
            one: edge.EdgeVectorParams(size=given["size"], distance=getattr(edge.Distance, given["distance"]))
            for one, given in body["vectors"].items()
        }
        # The engine alone has no collections without vectors, the server has.
        names = body.get("sparse_vectors") or ({} if dense else {"none": {}})
        sparse = {one: edge.EdgeSparseVectorParams() for one in names}
        (self.folder / name).mkdir()
        config = edge.EdgeConfig(vectors=dense, sparse_vectors=sparse)
        self._shards[name] = edge.EdgeShard.create(str(self.folder / name), config)
        return True

    def _update(self, name: str, change: Any) -> dict[str, Any]:
        self._shards[name].update(change)
        return {"operation_id": 0, "status": "completed"}


def _record(one: Any) -> dict[str, Any]:
    return {"id": str(one.id), "payload": one.payload}


def _vectors(given: dict[str, Any]) -> dict[str, Any]:
    return {name: _nearest(one) for name, one in given.items()}


def _nearest(given: Any) -> Any:
    return edge.SparseVector(given["indices"], given["values"]) if isinstance(given, dict) else given


def _filter(given: Any) -> Any:
    parts: dict[str, Any] = {
        name: [_condition(one) for one in given[name]] for name in ("must", "must_not", "should") if given.get(name)
    }
    return edge.Filter(**parts)


def _condition(given: Any) -> Any:
    if "key" not in given:
        return _filter(given)
    match, limits = given.get("match"), given.get("range")
    if limits is not None:
        return edge.FieldCondition(given["key"], range=edge.RangeFloat(**limits))
    made = edge.MatchAny(match["any"]) if "any" in match else edge.MatchValue(match["value"])
    return edge.FieldCondition(given["key"], match=made)
