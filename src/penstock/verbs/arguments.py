"""Validation of the arguments of library calls, before the ledger is read. It is not needed for safety, because
statements bind their values. It raises errors that a user understands."""

import io
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from penstock.errors import UsageError
from penstock.sources.folder import printable

E = TypeVar("E", bound=StrEnum)

TEXT_LIMIT = 2_000
"""The maximum size in bytes of a value in an index of the ledger. PostgreSQL indexes at most 2,700 bytes."""
LARGEST = 2**63 - 1
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
PRIORITY = 10**6


def one_of(what: str, value: object, choices: type[E]) -> E | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in list(choices):
        raise UsageError(f"{what} {_shown(value)}: use one of {', '.join(choices)}")
    return choices(value)


def text(what: str, value: object) -> str:
    """Validate a name or another short text that a database can store."""
    if not isinstance(value, str):
        raise UsageError(f"{what} {_shown(value)}: expected text")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UsageError(f"{what} {_shown(value)}: it must not contain NULs or lone surrogates")
    if is_long(value):
        raise UsageError(f"{what} {_shown(value)}: at most {TEXT_LIMIT:,} bytes")
    return value


def amount(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise UsageError(f"{what} {_shown(value)}: expected a number")
    return value


def maybe(what: str, value: object) -> str | None:
    return None if value is None else text(what, value)


def is_long(value: str) -> bool:
    return len(value) > TEXT_LIMIT or len(value.encode("utf-8", "replace")) > TEXT_LIMIT


def texts(what: str, values: object) -> list[str]:
    return [text(what, value) for value in _listed(what, values)]


def numbers(what: str, values: object) -> list[int] | None:
    return None if values is None else [number(what, value) for value in _listed(what, values)]


def number(what: str, value: object, least: int = -LARGEST, most: int = LARGEST) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{what} {_shown(value)}: expected a whole number")
    if not least <= value <= most:
        raise UsageError(f"{what} {_shown(value)}: use {least:,} to {most:,}")
    return value


def count(what: str, value: object) -> int:
    return number(what, value, least=0)


def seconds(what: str, value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise UsageError(f"{what} {_shown(value)}: expected seconds, 0 or more")
    return float(value)


def share(what: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise UsageError(f"{what} {_shown(value)}: expected a share between 0 and 1")
    return float(value)


def values(given: object) -> Mapping[str, Mapping[str, Any]]:
    """Validate parameters of steps, by step and name."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(one, Mapping) for one in given.values()):
        raise UsageError(f"values {_shown(given)}: expected {{step: {{name: value}}}}")
    return given


def paths(given: object) -> list[Path | str]:
    """Validate files and folders, which must exist, and URLs of sources, which are strings: one, or a list of them. An
    empty string is refused, because it would mean the current folder."""
    found: list[Path | str] = []
    for path in [given] if isinstance(given, str | Path) else _listed("paths", given):
        if isinstance(path, str) and _URL.match(path):
            found.append(text("path", path))
            continue
        if not isinstance(path, str | Path) or path == "":
            raise UsageError(f"path {_shown(path)}: expected the name of a file or folder")
        try:
            there, shown = Path(path).exists(), printable(path)
        except (OSError, UnicodeError):
            there, shown = False, _shown(path)
        if not there:
            raise UsageError(f"{shown}: no such file or folder")
        found.append(Path(path))
    return found


def globs(given: object) -> list[str]:
    """Validate patterns of file names: one, or a list of them."""
    return texts("pattern", [given] if isinstance(given, str) else given)


def data(given: object) -> "bytes | BinaryIO":
    """Validate the content of a document: bytes, or a binary stream."""
    if isinstance(given, str):
        raise UsageError("data: expected bytes, not text: use data=text.encode(), or pass the path of a file instead")
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    if isinstance(given, io.TextIOBase):
        raise UsageError('data: expected a stream of bytes, not of text: open the file with mode "rb"')
    if not (isinstance(given, bytes) or hasattr(given, "read")):
        raise UsageError(f"data {_shown(given)}: expected bytes, or a stream of bytes")
    return cast("bytes | BinaryIO", given)


def folder(what: str, value: object) -> Path:
    """Return a folder as an absolute path. It need not exist. An empty string is refused, because it would mean the
    current folder."""
    if not isinstance(value, str | Path) or value == "":
        raise UsageError(f"{what} {_shown(value)}: expected the path of a folder")
    try:
        path = Path(value).expanduser().absolute()
        with suppress(FileNotFoundError):
            os.lstat(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{what} {_shown(value)}: cannot be the name of a folder ({error})") from None
    return path


def metadata(value: object) -> dict[str, Any]:
    """Validate metadata: it must be representable in JSON, in which the ledger stores it. Bytes of a command line that
    are not UTF-8 (lone surrogates) are replaced."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"metadata {_shown(value)}: expected a mapping of names to values")
    if odd := [key for key in value if not isinstance(key, str)]:
        raise UsageError(f"metadata {_shown(odd[0])}: expected names that are text")
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"metadata cannot be stored as JSON: {error}") from None
    stored: dict[str, Any] = json.loads(text.encode("utf-8", "replace"))
    return stored


def _listed(what: str, values: object) -> list[Any]:
    """Return the values as a list. Raise UsageError for a single string, which would be read as a list of its
    characters."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Path):
        raise UsageError(f"{what} {_shown(values)}: expected a list")
    return list(values)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 100 else f"{shown[:80]}…"
