"""A parser process. It reads documents for a worker until the worker's pipe closes or the worker dies.

It is started as `python -m penstock.worker.parsers.child PARENT MEGABYTES SECONDS DOCUMENTS [PROGRAM DATA]`. DOCUMENTS
is a socket that transfers the open file of each document. The process opens no documents itself: it gives up that right
before it receives the first one. If PROGRAM is not empty, the process executes that program for images, with the files
in DATA, and reads no documents.
"""

import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, BinaryIO

import msgspec

from penstock.errors import StepError, Transient
from penstock.extractors import formats
from penstock.extractors.members import Output
from penstock.worker.parsers import isolation
from penstock.worker.parsers.messages import HEADER, Answer, Request, packed
from penstock.worker.parsers.tesseract import executables

OCR = "ocr"
READERS = {name: reader.module for name, reader in formats.READERS.items()} | {OCR: "penstock.worker.parsers.tesseract"}
"""Modules with a function `read`. It takes the document, if the request has one, and the arguments of the request."""
LATE = tuple({module for reader in formats.READERS.values() for module in reader.late})

Reader = Callable[..., Any]

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, megabytes, seconds, documents = map(int, sys.argv[1:5])
    program, data = (*sys.argv[5:], "", "")[:2]
    _die_with(parent)
    # The worker decides when this process ends. A Ctrl-C in its terminal reaches this process too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    requests, answers = _private_streams()
    files = socket.socket(fileno=documents)
    files.shutdown(socket.SHUT_WR)
    readers = _Readers(megabytes << 20)
    code = isolation.code_folders()
    # Most documents are PDFs. If modules cannot be loaded later, all are loaded now.
    for name in [OCR] if program else READERS if code is None else ["pdf"]:
        with suppress(ImportError):
            readers.get(name)
    for module in LATE if code is None and not program else ():
        with suppress(ImportError):
            importlib.import_module(module)
    isolation.isolate([*(code or ()), data] if program else code or (), executables(program) if program else ())
    answers.write(packed(Answer()))
    answers.flush()
    while header := requests.read(HEADER.size):
        (size,) = HEADER.unpack(header)
        request = msgspec.msgpack.decode(requests.read(size), type=Request)
        _limit_time(seconds)
        answers.write(packed(_answer(readers, request, files, partial(_limit_time, seconds))))
        answers.flush()


def _die_with(parent: int) -> None:
    """End this process when the worker is killed, even if it is busy. On systems other than Linux, only the closed pipe
    ends it."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return the two pipes on new descriptors, so that libraries that print do not write to them."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, answers


class _Readers:
    """The reading functions, each loaded on first use. A library may use any amount of memory while it loads; `cage`
    limits what is used after that."""

    def __init__(self, cage: int) -> None:
        self._cage = cage
        self._loaded: dict[str, Reader] = {}
        # After the isolation it cannot be opened.
        self._usage = os.open("/proc/self/statm", os.O_RDONLY) if cage and sys.platform == "linux" else None

    def get(self, name: str) -> Reader:
        if name not in self._loaded:
            self._loaded[name] = self._load(READERS[name])
        return self._loaded[name]

    def _load(self, module: str) -> Reader:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        read: Reader = importlib.import_module(module).read
        if self._usage is not None:
            used = int(os.pread(self._usage, 100, 0).split()[0]) * resource.getpagesize()
            limit = used + self._cage if most == resource.RLIM_INFINITY else min(used + self._cage, most)
            resource.setrlimit(resource.RLIMIT_AS, (limit, most))
        return read


def _answer(readers: _Readers, request: Request, files: socket.socket, progress: Callable[[], None]) -> Answer:
    try:
        with ExitStack() as opened:
            arguments: list[Any] = []
            if request.document:
                document, pipe = _received(files, 2 if request.output else 1)
                arguments.append(opened.enter_context(document))
                if request.output:
                    arguments.append(Output(opened.enter_context(pipe), progress))
            read = readers.get(request.reader)
            return Answer(msgspec.msgpack.encode(read(*arguments, **request.arguments)))
    except StepError as error:
        return Answer(b"", error.reason, str(error), error.page, not isinstance(error, Transient))
    except MemoryError:
        return Answer(b"", "parser_memory", "out of memory")
    except Exception as error:
        trace = "".join(traceback.format_exception(error)[-3:]).strip()
        return Answer(b"", "parser_error", f"{type(error).__name__}: {error}\n{trace}", permanent=False)


def _received(files: socket.socket, count: int) -> tuple[BinaryIO, BinaryIO]:
    """The document, and the pipe for its members if there is one."""
    _, descriptors, _, _ = socket.recv_fds(files, 1, count)
    if len(descriptors) != count:
        for descriptor in descriptors:
            os.close(descriptor)
        raise Transient("the stored file could not be passed to the parser", reason="raw_unreadable")
    document = os.fdopen(descriptors[0], "rb")
    return document, os.fdopen(descriptors[1], "wb", buffering=0) if count == 2 else document


def _limit_time(seconds: int) -> None:
    """Limit the processor time, in case the worker is suspended and cannot enforce the timeout."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    limit = int(usage.ru_utime + usage.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


if __name__ == "__main__":
    main()
