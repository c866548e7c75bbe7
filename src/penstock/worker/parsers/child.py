"""A parser process: reads documents for a worker until the worker's pipe closes or the worker dies.

Started as `python -m penstock.worker.parsers.child PARENT MEGABYTES`. Nothing heavy is loaded before it is asked for.
"""

import importlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec

from penstock.errors import StepError, Transient
from penstock.worker.parsers.messages import HEADER, Answer, Request, packed

READERS = {
    "pdf": "penstock.extractors.pdf_pages",
    "office": "penstock.extractors.office",
    "html": "penstock.extractors.html",
}
"""Modules with a function `read` that takes the arguments of a request and gives what msgpack can encode."""

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, megabytes = int(sys.argv[1]), int(sys.argv[2])
    _die_with(parent)
    # The worker decides when we end: a Ctrl-C in its terminal reaches us too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, answers = _private_streams()
    answers.write(packed(Answer()))
    answers.flush()
    readers: dict[str, Callable[..., Any]] = {}
    with suppress(ImportError):
        # Most documents are PDFs, and nobody has to wait for this one yet.
        readers["pdf"] = _load("pdf", megabytes << 20)
    while header := requests.read(HEADER.size):
        (size,) = HEADER.unpack(header)
        request = msgspec.msgpack.decode(requests.read(size), type=Request)
        answers.write(packed(_answer(readers, request, megabytes << 20)))
        answers.flush()


def _die_with(parent: int) -> None:
    """A busy child must not outlive a worker that was killed. Elsewhere than on Linux the closed pipe has to do."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    """The two pipes, out of reach of libraries that print."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, answers


def _answer(readers: dict[str, Callable[..., Any]], request: Request, cage: int) -> Answer:
    try:
        read = readers.get(request.reader)
        if read is None:
            read = readers[request.reader] = _load(request.reader, cage)
        return Answer(msgspec.msgpack.encode(read(**request.arguments)))
    except StepError as error:
        return Answer(b"", error.reason, str(error), error.page, not isinstance(error, Transient))
    except MemoryError:
        return Answer(b"", "parser_memory", "out of memory")
    except Exception as error:
        trace = "".join(traceback.format_exception(error)[-3:]).strip()
        return Answer(b"", "parser_error", f"{type(error).__name__}: {error}\n{trace}", permanent=False)


def _load(name: str, cage: int) -> Callable[..., Any]:
    """The library may take what it needs to load; `cage` counts from there on."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    read: Callable[..., Any] = importlib.import_module(READERS[name]).read
    if cage and sys.platform == "linux":
        with open("/proc/self/statm", "rb") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        limit = used + cage if most == resource.RLIM_INFINITY else min(used + cage, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    return read


if __name__ == "__main__":
    main()
