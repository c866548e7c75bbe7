"""What the readers of archives share."""

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from penstock.errors import Permanent
from penstock.extractors.members import PIECE

UNREADABLE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, struct.error, IndexError, KeyError,
    UnicodeError, OverflowError,
)  # fmt: skip
"""What the libraries raise for damaged files. A pipe that the worker closed is an OSError too: nobody hears of it."""


def damaged(error: BaseException, label: str) -> Permanent:
    said = " ".join(str(error).split()) or type(error).__name__
    return Permanent(f"the {label} archive is damaged: {said}", reason="damaged")


def stream(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece
