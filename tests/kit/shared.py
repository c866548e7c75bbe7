"""Servers that all processes of a test run share. The process that started the others starts each server at the first
request for it, and stops all of them at its end. Without other processes, it is this one."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from tests.kit import azurite, s3
from tests.kit.postgres import a_server, create_database, migrate

ADDRESS = "SHARED_TEST_SERVERS"
"""The environment variable with the address and the key of the process that starts them."""
TEMPLATE = "template"
"""The name of a database that holds an empty ledger and that nobody opens: others are made as copies of it."""


@contextmanager
def _postgres() -> Iterator[str]:
    """Its URL."""
    with a_server() as server:
        # All processes of the tests connect to it. It is read at a start only.
        server.admin("ALTER SYSTEM SET max_connections = 400")
        server.stop()
        server.start()
        migrate(create_database(server.url, TEMPLATE))
        yield server.url


@contextmanager
def _s3(*, anonymous: bool = False) -> Iterator[str]:
    """Its address."""
    with s3.serving(anonymous=anonymous) as server:
        yield server.endpoint


@contextmanager
def _azurite() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="penstock-azurite-") as folder, azurite.serving(Path(folder)) as server:
        yield server.endpoint


SERVERS: dict[str, Callable[..., Any]] = {"postgres": _postgres, "s3": _s3, "azurite": _azurite}


class Servers:
    """Starts servers, one at a time of each kind. What fails to start is tried again for the next one that asks."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._locks = {name: Lock() for name in SERVERS}
        self._started: dict[str, str] = {}

    def get(self, kind: str, options: dict[str, Any]) -> str:
        name = f"{kind} {options}"
        with self._locks[kind]:
            if name not in self._started:
                self._started[name] = self._stack.enter_context(SERVERS[kind](**options))
            return self._started[name]

    def close(self) -> None:
        self._stack.close()


class SharedServers(Servers):
    """Also for the processes that this one starts from now on."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.mkdtemp(prefix="penstock-servers-")
        key = secrets.token_hex(16)
        self._listener = Listener(f"{self._folder}/socket", "AF_UNIX", authkey=key.encode())
        os.environ[ADDRESS] = f"{self._folder}/socket {key}"
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError):
                return
            Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: "Connection[Any, Any]") -> None:
        with connection:
            kind, options = connection.recv()
            try:
                connection.send((self.get(kind, options), None))
            except BaseException as error:
                connection.send((None, f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        del os.environ[ADDRESS]
        self._listener.close()
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)


def get(own: Servers, kind: str, **options: Any) -> str:
    """The address of a server: of the process that started this one, or of `own`."""
    if ADDRESS not in os.environ:
        return own.get(kind, options)
    address, key = os.environ[ADDRESS].split()
    with Client(address, "AF_UNIX", authkey=key.encode()) as connection:
        connection.send((kind, options))
        answer, error = connection.recv()
    if error is not None:
        raise RuntimeError(error)
    return str(answer)
