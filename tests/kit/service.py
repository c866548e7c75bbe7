"""The service: in this process without a socket, or as a process of its own."""

import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from tests.kit.cli import COMMAND

from penstock.api.app import make_api
from penstock.api.callers import Authority
from penstock.app import App

STARTED = re.compile(r"^Serving (https?://\S+)$")


@asynccontextmanager
async def client_of(
    app: App, authority: Authority | None = None, *, client: str = "127.0.0.1"
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the API of an open app, without a socket."""
    transport = httpx2.ASGITransport(make_api(app, authority=authority), client=(client, 50_000))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1/", timeout=30) as made:
        yield made


@dataclass
class Served:
    """A server process."""

    process: "subprocess.Popen[str]"
    url: str
    told: list[str]
    """The lines of its standard error so far."""

    @property
    def api(self) -> str:
        return f"{self.url}/api/v1/"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 10) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def free_port() -> str:
    """A port to start a server on again and again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@contextmanager
def serving(home: Path, *arguments: str, **settings: str) -> Iterator[Served]:
    """`penstock serve` on a free port, as a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    process = subprocess.Popen(
        [*COMMAND, "--home", str(home), "serve", *(("--port", "0") if "--port" not in arguments else ()), *arguments],
        env={**inherited, "PENSTOCK_EMBEDDER": "fake", **settings},
        cwd=home.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    told: list[str] = []
    ready = threading.Event()
    served = Served(process, "", told)

    def listen() -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                told.append(line.rstrip("\n"))
                if found := STARTED.match(told[-1]):
                    served.url = found[1]
                    ready.set()
        ready.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        assert ready.wait(60), told
        assert served.url, told
        yield served
    finally:
        process.kill()
        process.wait()
        listener.join(10)
