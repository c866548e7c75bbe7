"""A parser process whose PDF reader is slow, or fails at one page: PYTHON_CURSE=crash:20, PYTHON_CURSE=slow:0.3. Other
readers fail at the parts with these labels: PYTHON_CURSE='crash:slide 3|chapter 3'."""

import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any, BinaryIO

from penstock.extractors import labelled, pdf_pages
from penstock.worker.parsers import child

CURSE, _, WHERE = os.environ.get("PYTHON_CURSE", "none:0").partition(":")


def read(file: BinaryIO, password: str | None, first: int, count: int) -> Any:
    if CURSE == "slow":
        time.sleep(float(WHERE))
    elif WHERE.isdecimal() and first <= int(WHERE) - 1 < first + count:
        _fail()
    return pdf_pages.read(file, password, first, count)


def _fail() -> None:
    if CURSE == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif CURSE == "hang":
        time.sleep(60)
    elif CURSE == "memory":
        raise MemoryError
    elif CURSE == "stumble":
        raise AssertionError("an object that nobody expected")


def pages(part: labelled.Part) -> Any:
    if part.label in WHERE.split("|"):
        _fail()
    return PAGES(part)


PAGES = labelled._pages

if __name__ == "__main__":
    labelled._pages = pages
    sys.modules["cursed"] = SimpleNamespace(read=read)  # type: ignore[assignment]
    child.READERS["pdf"] = "cursed"
    child.main()
