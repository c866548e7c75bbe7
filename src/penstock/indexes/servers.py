"""Make the index in a vector database that a setting names. The libraries of the clients are loaded when the first call
is made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from urllib.parse import parse_qsl, urlsplit

from penstock.errors import ConfigError
from penstock.indexes.remote import RemoteIndex
from penstock.indexes.remote_calls import Calls
from penstock.redaction import masked
from penstock.runtime import Runtime

PREFIX = "penstock"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_NEEDED = {"qdrant": "qdrant_client", "milvus": "pymilvus", "pinecone": "pinecone"}


@dataclass(frozen=True)
class Address:
    """The parts of the setting."""

    text: str
    """Without parameters."""
    host: str
    port: int
    path: str
    parameters: Mapping[str, str]

    @property
    def tls(self) -> bool:
        return self.parameters.get("tls", "0") == "1"

    @property
    def prefix(self) -> str:
        return self.parameters.get("prefix", PREFIX)


def make(name: str, rest: str, environment: Mapping[str, str], runtime: Runtime) -> RemoteIndex:
    """`rest`: what follows `NAME://`."""
    missing = [one for one in (_NEEDED[name], "snowballstemmer") if find_spec(one) is None]
    if missing:
        raise ConfigError(f"an index in {name} needs another package: pip install 'penstock-rag[{name}]'")
    return {"qdrant": _qdrant, "milvus": _milvus, "pinecone": _pinecone}[name](rest, environment, runtime)


def _qdrant(rest: str, environment: Mapping[str, str], runtime: Runtime) -> RemoteIndex:
    from penstock.indexes import qdrant

    address = parse("qdrant", rest, 6333, ("tls", "prefix"))
    if address.path:
        raise ConfigError(f"index {address.text!r}: use qdrant://HOST:PORT")
    setting = "QDRANT_API_KEY"
    key = environment.get(setting, "")
    calls = Calls("Qdrant", address.text, setting, key, runtime, qdrant.explain)
    connect = partial(qdrant.connect, address.host, address.port, tls=address.tls, key=key)
    return RemoteIndex(qdrant.QdrantStore(connect, address.prefix, calls), calls, "qdrant/1")


def _milvus(rest: str, environment: Mapping[str, str], runtime: Runtime) -> RemoteIndex:
    from penstock.indexes import milvus

    address = parse("milvus", rest, 19530, ("tls", "prefix"))
    setting = "MILVUS_TOKEN"
    token = environment.get(setting, "")
    calls = Calls("Milvus", address.text, setting, token, runtime, milvus.explain)
    uri = f"{'https' if address.tls else 'http'}://{address.host}:{address.port}"
    connect = partial(milvus.connect, uri, token, address.path)
    return RemoteIndex(milvus.MilvusStore(connect, address.prefix, calls), calls, "milvus/1")


def _pinecone(rest: str, environment: Mapping[str, str], runtime: Runtime) -> RemoteIndex:
    from penstock.indexes import pinecone

    address = parse("pinecone", rest, 443, ("cloud", "region"))
    if address.path or ":" in address.text.removeprefix("pinecone:"):
        raise ConfigError(f"index {address.text!r}: use pinecone://INDEX")
    spec = dict(address.parameters)
    if len(spec) == 1:
        raise ConfigError("index pinecone://…: to create the index, set both `cloud` and `region`")
    setting = "PINECONE_API_KEY"
    key = environment.get(setting, "")
    if not key:
        raise ConfigError(f"index {address.text!r} needs the environment variable {setting}")
    calls = Calls("Pinecone", address.text, setting, key, runtime, pinecone.explain)
    connect = partial(pinecone.connect, key, environment.get("PINECONE_HOST", ""))
    return RemoteIndex(pinecone.PineconeStore(connect, address.host, spec, calls), calls, "pinecone/1")


def parse(name: str, rest: str, port: int, known: tuple[str, ...]) -> Address:
    try:
        parts = urlsplit(f"{name}://{rest}")
        if parts.username is not None or parts.password is not None:
            raise ConfigError(f"index {name}://…: put the key into an environment variable, not into the URL")
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        host, number = parts.hostname, parts.port or port
    except ValueError:
        raise ConfigError(f"index {masked(f'{name}://{rest}')!r}: this is not a URL") from None
    if not host or parts.fragment:
        raise ConfigError(f"index {masked(f'{name}://{rest}')!r}: name a host, as in {name}://HOST:{port}")
    for one, value in given.items():
        if one not in known:
            raise ConfigError(f"index {name}://…: unknown parameter {one!r}; use one of {', '.join(known)}")
        if one == "tls" and value not in ("0", "1"):
            raise ConfigError(f"index {name}://…: the parameter tls is 0 or 1, not {value!r}")
        if one == "prefix" and not _NAME.fullmatch(value):
            raise ConfigError(f"index {name}://…: prefix {value!r}: use at most 40 letters, digits and _")
    text = f"{name}://{parts.netloc}{parts.path.rstrip('/')}"
    return Address(text, host, number, parts.path.strip("/"), given)
