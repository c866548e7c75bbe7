"""A real server and Debian's Chromium, which `.ci/run` installs. Elsewhere these tests may be skipped."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Server:
    """`penstock serve` on a port that stays the same over restarts."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port: int = one.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["serve", "--home", str(self.home), "--port", str(self.port)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", *words],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_settings(),
        )
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=5):
                return
            assert self._process.poll() is None
            time.sleep(0.05)
        self.kill()
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def penstock(self, *words: str) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", *words, "--home", str(self.home)]
        subprocess.run(command, check=False, capture_output=True, timeout=120, env=_settings())


def _settings() -> dict[str, str]:
    """The environment without settings: `PENSTOCK_LONG` is one of the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "home")
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        assert not os.environ.get("CI"), "CI must have chromium"
        pytest.skip("there is no chromium: apt-get install chromium")
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        await launched.close()
