"""A parser process with readers that misbehave."""

import os
import signal
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, BinaryIO

from penstock.errors import Permanent, Transient
from penstock.extractors import pdf_pages
from penstock.worker.parsers import child


def echo(value: Any = None, seconds: float = 0, size: int = 0) -> Any:
    time.sleep(seconds)
    return "x" * size if size else value


def slurp(file: BinaryIO, seconds: float) -> bytes:
    data = file.read()
    time.sleep(seconds)
    return data


def pdf(file: BinaryIO, **arguments: Any) -> Any:
    """Crashes where it is asked for several pages behind the first batch."""
    if arguments["count"] > 1 and arguments["first"] > 0:
        crash()
    return pdf_pages.read(file, **arguments)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(code: int) -> None:
    print("last words", file=sys.stderr)
    sys.exit(code)


def hang() -> None:
    while True:
        time.sleep(0.01)


def eat(megabytes: int) -> int:
    return len(bytearray(megabytes << 20))


def chatter() -> str:
    """Libraries print, also those in C, and read what they are given."""
    print("printed", flush=True)
    os.write(1, b"written")
    return sys.stdin.read()


def garble(data: bytes) -> None:
    """Nonsense, where an answer is expected."""
    os.write(_answers(), data)
    time.sleep(30)


def _answers() -> int:
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, b"")
            return descriptor
        except OSError:
            continue
    raise LookupError


def look() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "environment": dict(os.environ),
        # Which ones are open it may not ask.
        "files": sorted(
            os.readlink(f"/proc/self/fd/{fd}") for fd in range(256) if os.path.lexists(f"/proc/self/fd/{fd}")
        ),
    }


def refuse() -> None:
    raise Permanent("no such page", reason="damaged", page=7)


def postpone() -> None:
    raise Transient("not now", reason="busy")


def stumble() -> None:
    raise LookupError("nothing there")


READERS: list[Callable[..., Any]] = [
    echo, slurp, pdf, crash, leave, hang, eat, chatter, garble, look, refuse, postpone, stumble,
]  # fmt: skip

if __name__ == "__main__":
    for reader in READERS:
        name = reader.__name__
        sys.modules[f"odd.{name}"] = SimpleNamespace(read=reader)  # type: ignore[assignment]
        child.READERS[name] = f"odd.{name}"
    child.main()
