"""A server that speaks the words of OpenAI, Azure OpenAI, Ollama and Cohere, counts what it sells, and misbehaves on
request."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.embedders.fake import FakeEmbedder
from penstock.runtime import Runtime

KEY = "sk-right"
LONGEST = 4000
"""Characters of a text that the server accepts."""


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Close the connection in the middle of the answer."""
    drip_s: float = 0.0
    """The pause after each byte."""


@dataclass
class EmbeddingServer:
    url: str = ""
    dimensions: int = 64
    texts: list[str] = field(default_factory=list)
    """All texts for which vectors were sent."""
    calls: int = 0
    tokens: int = 0
    """The tokens of these texts: a word is one."""
    latency_s: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    odd: Callable[[dict[str, Any]], Answer | None] = lambda body: None
    """Returns the answer to a request, or None for the right one."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, headers: Any, body: dict[str, Any]) -> Answer:
        with self.lock:
            self.calls += 1
            self.requests.append({"path": path, **body})
            odd = self.odd(body)
        if odd is not None:
            return odd
        if not path.startswith("/api/") and KEY not in (headers.get("Authorization", "") + headers.get("api-key", "")):
            return Answer(401, {"error": {"message": "Incorrect API key provided"}})
        texts = body.get("input") or body.get("texts")
        if "unknown" in str(body.get("model", path)):
            return Answer(404, {"error": {"message": "The model `unknown` does not exist", "code": "model_not_found"}})
        if not texts or any(not text for text in texts):
            return Answer(400, {"error": {"message": "input cannot be an empty string"}})
        if any(len(text) > LONGEST for text in texts):
            return Answer(400, {"error": {"message": "This model's maximum context length is 8192 tokens"}})
        vectors, tokens = self._vectors(texts, body), sum(len(text.split()) for text in texts)
        if self.latency_s:
            time.sleep(self.latency_s)
        with self.lock:
            self.texts += texts
            self.tokens += tokens
        return Answer(200, _wire(path, vectors, tokens))

    def _vectors(self, texts: list[str], body: dict[str, Any]) -> list[list[float]]:
        fake = FakeEmbedder()
        width = body.get("dimensions") or body.get("output_dimension") or self.dimensions
        found = _run(fake, texts).tolist()
        return [(vector * (1 + width // len(vector)))[:width] for vector in found]


def _run(fake: FakeEmbedder, texts: list[str]) -> Any:
    import asyncio

    return asyncio.run(fake.embed_documents(texts))


def _wire(path: str, vectors: list[list[float]], tokens: int) -> Any:
    if path.startswith("/api/embed"):
        return {"model": "m", "embeddings": vectors, "prompt_eval_count": tokens}
    if path.startswith("/v2/embed"):
        return {"id": "1", "embeddings": {"float": vectors}, "meta": {"billed_units": {"input_tokens": tokens}}}
    rows = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return {"object": "list", "data": rows[::-1], "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


@contextmanager
def serving() -> Iterator[EmbeddingServer]:
    server = EmbeddingServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = server.answer(self.path, self.headers, body)
            data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if answer.drip_s:
                self._drip(data, answer.drip_s)
            else:
                self.wfile.write(data[: len(data) // 2] if answer.cut else data)
            self.close_connection = self.close_connection or answer.cut

        def _drip(self, data: bytes, pause_s: float) -> None:
            with suppress(OSError):
                for byte in data:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(pause_s)
            self.close_connection = True

        def log_message(self, format: str, *arguments: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that was killed is no error."""

    httpd = Server(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def settings(server: EmbeddingServer) -> dict[str, str]:
    """The variables that point the adapters at the server."""
    return {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "AZURE_OPENAI_ENDPOINT": server.url,
        "AZURE_OPENAI_API_KEY": KEY,
        "OLLAMA_HOST": server.url,
        "COHERE_API_KEY": KEY,
        "COHERE_BASE_URL": server.url,
    }


def make(provider: str, server: EmbeddingServer, runtime: Runtime, model: str = "some-model") -> Any:
    from penstock.embedders.providers import make

    return make(provider, model, settings(server), runtime, {})
