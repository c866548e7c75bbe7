"""A real Azurite, Microsoft's emulator of Azure Blob Storage, where it is installed: `npm install azurite` (pip has no
package of it). The environment may name its command `azurite-blob`; else it is looked for on the path and in build/,
where `.ci/run` installs it."""

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest

COMMAND = "azurite-blob"
NAMED = "AZURITE"
ACCOUNT = "tester"
KEY = base64.b64encode(b"the-key-of-the-tester").decode()
CONTAINER = "shelves"
VERSION = "2021-12-02"
LONGEST_START_S = 120.0
MISSING = (
    f"Azurite is not here, nothing was tried with it: npm install azurite, and {NAMED}=…/node_modules/.bin/{COMMAND}"
)


def command() -> str | None:
    installed = Path(__file__).parents[2] / "build" / "azurite" / "node_modules" / ".bin" / COMMAND
    return os.environ.get(NAMED) or shutil.which(COMMAND) or (str(installed) if installed.exists() else None)


def environment_of(endpoint: str) -> dict[str, str]:
    """The variables that a user of a server sets."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": endpoint,
    }


class Azurite:
    """`stop` and `start` may be called again and again. The address and the objects stay. It is never killed: then it
    loses objects that it had acknowledged in the seconds before."""

    def __init__(self, folder: Path, executable: str) -> None:
        self._folder, self._executable = folder, executable
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as one:
            self._port: int = one.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self._port}/{ACCOUNT}"

    @property
    def environment(self) -> dict[str, str]:
        return environment_of(self.endpoint)

    def start(self) -> None:
        words = ["--location", str(self._folder), "--blobPort", str(self._port), "--silent", "--disableTelemetry"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # The library asks for a version of the interface that Azurite does not know yet.
                [self._executable, "--skipApiVersionCheck", *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
            )
        deadline = time.monotonic() + LONGEST_START_S
        while True:
            try:
                self.make_container(CONTAINER)
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self._folder / "log").read_text(errors="replace")[-3000:]) from error
            time.sleep(0.1)

    def make_container(self, name: str) -> None:
        """Make a container, unless it exists."""
        date = formatdate(usegmt=True)
        headers = f"x-ms-date:{date}\nx-ms-version:{VERSION}\n"
        # The account is part of the path, so it stands there twice.
        asked = f"PUT{chr(10) * 12}{headers}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        signed = base64.b64encode(hmac.digest(base64.b64decode(KEY), asked.encode(), hashlib.sha256)).decode()
        request = urllib.request.Request(
            f"{self.endpoint}/{name}?restype=container",
            method="PUT",
            headers={"x-ms-date": date, "x-ms-version": VERSION, "Authorization": f"SharedKey {ACCOUNT}:{signed}"},
        )
        try:
            with urllib.request.urlopen(request):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 409:
                raise

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def refuse_missing() -> str:
    """The command. Skips the test, with the reason, where Azurite is not installed."""
    executable = command()
    if executable is None:
        pytest.skip(MISSING)
    return executable


@contextmanager
def serving(folder: Path) -> Iterator[Azurite]:
    executable = refuse_missing()
    server = Azurite(folder, executable)
    try:
        server.start()
        yield server
    finally:
        server.stop()
