"""Milvus Lite as a server process. It can be killed, and started again with the same data."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

LONGEST_START_S = 120.0


class MilvusServer:
    """`stop` kills it. The address stays the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> "MilvusServer":
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [os.path.join(os.path.dirname(sys.executable), "milvus-lite"), "server"]
        if not Path(command[0]).exists():
            command[:1] = [sys.executable, "-m", "milvus_lite"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--data-dir", str(self._folder / "data"), "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=log,
                stderr=log,
                # It needs pandas, which other processes of the tests do not find.
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            )
        until = time.monotonic() + LONGEST_START_S
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.05)
        raise RuntimeError(f"milvus-lite did not start: {(self._folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
