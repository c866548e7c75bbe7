"""A parser process whose reader of HTML does what its document says."""

import os
import random
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, BinaryIO

from tests.integration.poison import PanicException

from penstock.errors import Permanent
from penstock.worker.parsers import child
from penstock.worker.parsers.messages import HEADER

RAISED: dict[str, BaseException] = {
    "panic": PanicException("index out of bounds"),
    "exit": SystemExit(0),
    "interrupt": KeyboardInterrupt(),
    "memory": MemoryError(),
    "nul": Permanent("a\0b", reason="c\0d"),
    "surrogate": ValueError("caf\udce9"),
    "rubbish_reason": Permanent("no", reason=5),  # type: ignore[arg-type]
    "rubbish_page": Permanent("no", reason="no", page="three"),  # type: ignore[arg-type]
}
ANSWERED: dict[str, Callable[[], Any]] = {
    "number": lambda: 5,
    "text": lambda: "pages",
    "nothing": lambda: None,
    "lists": lambda: [[[1, 2], ["x"]]],
    "object": object,
    "nan": lambda: [[[float("nan"), "text"]]],
    "noise": lambda: _write(random.Random(1).randbytes(5000)),
    "huge": lambda: _write(HEADER.pack(2**32 - 1)),
    "empty": lambda: _write(HEADER.pack(0)),
    "half": lambda: _write(HEADER.pack(100) + b"x"),
}


def read(file: BinaryIO, **_: Any) -> Any:
    name = file.read().decode().split()[1]
    if name in RAISED:
        raise RAISED[name]
    if name in ANSWERED:
        return ANSWERED[name]()
    return [[[1, "words enough to search for"]]]


def _write(data: bytes) -> None:
    """Onto the pipe on which the answers go, then an end without a word."""
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, data)
            break
        except OSError:
            continue
    time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    sys.modules["poison.html"] = SimpleNamespace(read=read)  # type: ignore[assignment]
    child.READERS["html"] = "poison.html"
    child.main()
