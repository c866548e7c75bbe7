"""A bucket of any number of objects that need no memory, behind the requests of S3 that list and delete them. Only for
numbers that a real server would need too long for."""

import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "crowded"
PAGE = 1_000
"""S3 lists no more keys at once."""
_OLD = "2020-01-01T00:00:00.000Z"


class ManyObjects:
    """The objects `FOLDER/NUMBER`, which were written in 2020. What else is put is held in memory."""

    def __init__(self, count: int, folder: str) -> None:
        self.count = count
        self.folder = folder
        self.deleted = bytearray(count)
        self.others: dict[str, bytes] = {}
        self.listed: list[int] = []
        """The number of keys of each page that was asked for."""
        self.lock = threading.Lock()
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }

    def page(self, prefix: str, token: int, most: int) -> str:
        keys: list[str] = []
        if f"{self.folder}/".startswith(prefix):
            while token < self.count and len(keys) < most:
                if not self.deleted[token]:
                    keys.append(f"{self.folder}/{token:010}")
                token += 1
        else:
            keys = [key for key in self.others if key.startswith(prefix)]
            token = self.count
        self.listed.append(len(keys))
        more = token < self.count
        found = "".join(
            f"<Contents><Key>{key}</Key><LastModified>{_OLD}</LastModified><ETag>e</ETag><Size>7</Size></Contents>"
            for key in keys
        )
        following = f"<NextContinuationToken>{token}</NextContinuationToken>" if more else ""
        return f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{following}{found}</ListBucketResult>"

    def has(self, key: str) -> bool:
        folder, _, name = key.rpartition("/")
        return key in self.others or (folder == self.folder and not self.deleted[int(name)])

    def remove(self, key: str) -> None:
        folder, _, name = key.rpartition("/")
        if folder == self.folder:
            self.deleted[int(name)] = 1
        self.others.pop(key, None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: ManyObjects

    def log_message(self, *_: Any) -> None: ...

    def _answer(self, status: int, body: str = "", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "uploads" in asked:
            nothing = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"
            self._answer(200, nothing, Content_Type="application/xml")
            return
        if "list-type" not in asked:
            self._answer(404)
            return
        first = {name: values[0] for name, values in asked.items()}
        most = min(PAGE, int(first.get("max-keys", PAGE)))
        with self.objects.lock:
            body = self.objects.page(first.get("prefix", ""), int(first.get("continuation-token", 0)), most)
        self._answer(200, body, Content_Type="application/xml")

    def do_HEAD(self) -> None:
        if not self.objects.has(self._key()):
            self._answer(404)
            return
        self.send_response(200)
        self.send_header("Last-Modified", self.date_time_string())
        self.send_header("ETag", "e")
        self.send_header("Content-Length", "7")
        self.end_headers()

    def do_PUT(self) -> None:
        self.objects.others[self._key()] = self._body()
        self._answer(200, ETag="e")

    def do_DELETE(self) -> None:
        self.objects.remove(self._key())
        self._answer(204)

    def do_POST(self) -> None:
        asked = ET.fromstring(self._body())
        keys = [str(one.text) for one in asked.iter() if one.tag.rpartition("}")[2] == "Key"]
        with self.objects.lock:
            for key in keys:
                self.objects.remove(key)
        done = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{done}</DeleteResult>", Content_Type="application/xml")


@contextmanager
def serving(count: int, folder: str) -> Iterator[ManyObjects]:
    objects = ManyObjects(count, folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"objects": objects}))
    objects.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield objects
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
