"""The words of OpenAI, Azure OpenAI, Ollama and Cohere, and of servers that speak like OpenAI. Keys and addresses come
from the variables that the programs of these providers use."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from penstock.config import check_url
from penstock.embedders import known
from penstock.embedders.probed import Probed
from penstock.embedders.remote import Api, RemoteEmbedder, Request
from penstock.errors import ConfigError
from penstock.runtime import Runtime

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
AZURE_VERSION = "2024-10-21"


class _Base:
    """`url` is the address of the server; `key` is None if the server needs none."""

    provider: str
    key_setting: str
    max_texts = 256
    max_tokens = 250_000

    def __init__(self, model: str, url: str, key: str | None) -> None:
        check_url(url)
        self.model = model
        self.key = key
        self._url = url.rstrip("/")
        parts = urlsplit(url)
        self.host = parts.netloc.rpartition("@")[2]
        self.free = parts.hostname in _LOOPBACK
        self.published = parts.hostname == "api.openai.com"


class OpenAI(_Base):
    provider, key_setting = "openai", "OPENAI_API_KEY"
    max_texts = 2048

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def request(self, texts: Sequence[str], *, query: bool, dimensions: int | None) -> Request:
        body: dict[str, Any] = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        return Request(self._address, self._headers, body if dimensions is None else {**body, "dimensions": dimensions})

    @property
    def _address(self) -> str:
        return f"{self._url}/embeddings"

    def vectors(self, answer: Any) -> Sequence[Sequence[float]]:
        ordered = sorted(answer["data"], key=lambda row: row["index"])
        if [row["index"] for row in ordered] != list(range(len(ordered))):
            raise ValueError("the vectors are not numbered from 0 on")
        return [_floats(row["embedding"]) for row in ordered]

    def tokens(self, answer: Any) -> Any:
        return answer["usage"]["prompt_tokens"]


class Azure(OpenAI):
    provider, key_setting = "azure", "AZURE_OPENAI_API_KEY"

    def __init__(self, model: str, url: str, key: str | None, version: str) -> None:
        super().__init__(model, url, key)
        self._version = version

    @property
    def _headers(self) -> dict[str, str]:
        return {"api-key": self.key or ""}

    @property
    def _address(self) -> str:
        deployment = quote(self.model, safe="")
        return f"{self._url}/openai/deployments/{deployment}/embeddings?api-version={quote(self._version, safe='')}"


class Ollama(_Base):
    provider, key_setting = "ollama", "OLLAMA_HOST"

    def __init__(self, model: str, url: str) -> None:
        super().__init__(model, url, None)
        self.free = True

    def request(self, texts: Sequence[str], *, query: bool, dimensions: int | None) -> Request:
        body: dict[str, Any] = {"model": self.model, "input": list(texts), "truncate": True}
        if dimensions is not None:
            body["dimensions"] = dimensions
        return Request(f"{self._url}/api/embed", {}, body)

    def vectors(self, answer: Any) -> Sequence[Sequence[float]]:
        found: Sequence[Sequence[float]] = answer["embeddings"]
        return found

    def tokens(self, answer: Any) -> Any:
        return answer["prompt_eval_count"]


class Cohere(_Base):
    provider, key_setting = "cohere", "COHERE_API_KEY"
    max_texts = 96

    def request(self, texts: Sequence[str], *, query: bool, dimensions: int | None) -> Request:
        body: dict[str, Any] = {
            "model": self.model,
            "texts": list(texts),
            "input_type": "search_query" if query else "search_document",
            "embedding_types": ["float"],
            "truncate": "END",
        }
        if dimensions is not None:
            body["output_dimension"] = dimensions
        return Request(f"{self._url}/v2/embed", {"Authorization": f"Bearer {self.key}"}, body)

    def vectors(self, answer: Any) -> Sequence[Sequence[float]]:
        found: Sequence[Sequence[float]] = answer["embeddings"]["float"]
        return found

    def tokens(self, answer: Any) -> Any:
        return answer["meta"]["billed_units"]["input_tokens"]


def make(
    provider: str,
    argument: str,
    environment: Mapping[str, str],
    runtime: Runtime,
    prices: Mapping[str, float],
    home: Path | None = None,
) -> RemoteEmbedder:
    """The embedder for a setting such as `openai:text-embedding-3-small?dimensions=512`. `home`: where it keeps the
    dimensions for which it asked a server."""
    model, _, query = argument.partition("?")
    if not model:
        raise ConfigError(f"embedder {provider!r} needs the name of a model, as in {provider}:{_EXAMPLES[provider]}")
    dimensions = _dimensions(provider, query)
    facts = known.of(model)
    if (
        dimensions is not None
        and facts.dimensions is not None
        and not facts.shortens
        and dimensions != facts.dimensions
    ):
        raise ConfigError(f"embedder '{provider}:{argument}': {model} always has {facts.dimensions} dimensions")
    api = _api(provider, model, environment)
    price = prices.get(f"{provider}:{model}", prices.get(model))
    probed = None if home is None else Probed(home)
    return RemoteEmbedder(api, facts, runtime, dimensions=dimensions, price=price, probed=probed)


_EXAMPLES = {
    "openai": "text-embedding-3-small",
    "azure": "DEPLOYMENT",
    "ollama": "nomic-embed-text",
    "cohere": "embed-v4.0",
}


def _api(provider: str, model: str, environment: Mapping[str, str]) -> Api:
    def needed(name: str, what: str) -> str:
        value = environment.get(name, "").strip()
        if not value:
            raise ConfigError(f"embedder '{provider}:{model}' needs {what}: set the variable {name}")
        return value

    match provider:
        case "openai":
            url = environment.get("OPENAI_BASE_URL", "").strip() or "https://api.openai.com/v1"
            local = urlsplit(url).hostname in _LOOPBACK
            key = environment.get("OPENAI_API_KEY", "").strip() if local else needed("OPENAI_API_KEY", "a key")
            return OpenAI(model, url, key or None)
        case "azure":
            endpoint = needed("AZURE_OPENAI_ENDPOINT", "the address of the resource")
            version = environment.get("AZURE_OPENAI_API_VERSION", "").strip() or AZURE_VERSION
            return Azure(model, endpoint, needed("AZURE_OPENAI_API_KEY", "a key"), version)
        case "ollama":
            host = environment.get("OLLAMA_HOST", "").strip() or "127.0.0.1:11434"
            return Ollama(model, host if "://" in host else f"http://{host}")
        case _:
            url = environment.get("COHERE_BASE_URL", "").strip() or "https://api.cohere.com"
            return Cohere(model, url, needed("COHERE_API_KEY", "a key"))


def _dimensions(provider: str, query: str) -> int | None:
    values = dict(parse_qsl(query, keep_blank_values=True))
    number = values.pop("dimensions", None)
    if values:
        raise ConfigError(f"embedder {provider!r}: unknown option {', '.join(values)}; the only one is dimensions")
    if number is None:
        return None
    if not (number.isascii() and number.isdigit() and 1 <= int(number) <= 65_536):
        raise ConfigError(f"embedder {provider!r}: dimensions={number} is not a number from 1 to 65536")
    return int(number)


def _floats(value: Any) -> Sequence[float]:
    """A vector as a list, or as the base64 of its bytes, which some servers send unasked."""
    if not isinstance(value, str):
        vector: Sequence[float] = value
        return vector
    import numpy as np

    floats: list[float] = np.frombuffer(base64.b64decode(value), dtype="<f4").tolist()
    return floats
