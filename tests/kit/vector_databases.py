"""Vector databases for tests: the settings that name them, and indexes in them."""

import os
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from tests.kit.milvus_server import MilvusServer
from tests.kit.pinecone_server import PineconeServer
from tests.kit.qdrant_server import QdrantServer

from penstock.indexes.base import Index
from penstock.indexes.qdrant import QdrantStore, explain
from penstock.indexes.remote import RemoteIndex
from penstock.indexes.remote_calls import Calls
from penstock.indexes.servers import make
from penstock.registry import split
from penstock.runtime import Runtime

DATABASES = ("qdrant", "milvus", "pinecone")
"""The settings that name them begin with these."""
KEYS = {"QDRANT_API_KEY": "", "MILVUS_TOKEN": "", "PINECONE_API_KEY": "pinecone-secret-key"}
"""The environment variables with their keys."""


@contextmanager
def serving(name: str, folder: Path) -> Iterator[Any]:
    """The server of a database, and the environment that it needs. `address` is what the setting names."""
    made = {"qdrant": QdrantServer, "milvus": MilvusServer, "pinecone": PineconeServer}
    server: Any = made[name](folder).start()
    given = {**KEYS, "PINECONE_HOST": server.endpoint} if name == "pinecone" else KEYS
    before = {one: os.environ.get(one) for one in given}
    os.environ.update(given)
    try:
        yield server
    finally:
        server.stop()
        for one, value in before.items():
            if value is None:
                del os.environ[one]
            else:
                os.environ[one] = value


def setting_of(name: str, server: Any) -> str:
    return f"{name}://{server.address}"


@asynccontextmanager
async def emptied(make_index: Callable[[], Index]) -> AsyncIterator[Callable[[], Index]]:
    """Closes the indexes that were made. The tables in a vector database, which tests share, are dropped."""
    made: list[Index] = []

    def another() -> Index:
        made.append(make_index())
        return made[-1]

    yield another
    for index in made:
        if isinstance(index, RemoteIndex):
            for table in await index.tables():
                await index.drop(table)
            await index.close()


def index_in(setting: str, runtime: Runtime, environment: dict[str, str] | None = None) -> RemoteIndex:
    return make(*split(setting), {**os.environ, **(environment or {})}, runtime)


class Locked:
    """The client of Qdrant without a server may not be called by two threads at once."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lock = RLock()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def locked(*values: Any, **keywords: Any) -> Any:
            with self._lock, warnings.catch_warnings():
                # Of payload indexes that have no effect there.
                warnings.simplefilter("ignore")
                return call(*values, **keywords)

        return locked

    def close(self) -> None:
        """Others use it too."""


def qdrant_in_memory() -> Callable[[Runtime], RemoteIndex]:
    """Indexes in one client without a server."""
    from qdrant_client import QdrantClient

    client = Locked(QdrantClient(":memory:"))

    def made(runtime: Runtime) -> RemoteIndex:
        calls = Calls("Qdrant", ":memory:", "QDRANT_API_KEY", "", runtime, explain)
        return RemoteIndex(QdrantStore(lambda: client, "penstock", calls), calls, "qdrant/1")

    return made
