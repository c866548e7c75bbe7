"""Outlook messages (MSG): a container of properties, each in a stream of its own."""

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, BinaryIO, TypeVar

from penstock.errors import Permanent
from penstock.extractors import rtf
from penstock.extractors.charsets import decoded
from penstock.extractors.compressed_rtf import decompress
from penstock.extractors.html import markdown
from penstock.extractors.message import Message, plain_markdown
from penstock.extractors.office import damaged

T = TypeVar("T")

_SUBJECT, _SENDER, _SENDER_ADDRESS, _TO, _CC = "0037", "0C1A", "5D01", "0E04", "0E03"
_BODY, _HTML, _RTF, _CLASS = "1000", "1013", "1009", "001A"
_LONG_NAME, _NAME = "3707", "3704"
_SENT, _DELIVERED = 0x0039, 0x0E06
_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)
_ENCLOSED = "__substg1.0_3701000D"
_DATA = "__substg1.0_37010102"
_DEEPEST = 16


def messages(document: BinaryIO) -> Iterator[Message]:
    return _read(document, _message)


def attachments(document: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The names and bytes of the attachments, also of enclosed messages."""
    return _read(document, _attachments)


def _read(document: BinaryIO, look: "Callable[[_Folder, int], Iterator[T]]") -> Iterator[T]:
    import olefile

    try:
        container = olefile.OleFileIO(document)
    except Exception as error:
        # The library raises many kinds of error for damaged containers.
        raise damaged("Outlook message", error) from error
    with container:
        try:
            yield from look(_Folder(container, ()), 0)
        except (OSError, ValueError, IndexError, struct.error) as error:
            raise damaged("Outlook message", error) from error


class _Folder:
    def __init__(self, container: Any, path: tuple[str, ...]) -> None:
        self._container = container
        self._path = path

    def folders(self, start: str) -> list["_Folder"]:
        depth = len(self._path)
        inner = {
            entry[depth]
            for entry in self._container.listdir(streams=True, storages=True)
            if tuple(entry[:depth]) == self._path and len(entry) > depth and entry[depth].startswith(start)
        }
        return [_Folder(self._container, (*self._path, name)) for name in sorted(inner)]

    def stream(self, name: str) -> bytes:
        path = [*self._path, name]
        if not self._container.exists(path):
            return b""
        with self._container.openstream(path) as stream:
            data: bytes = stream.read()
            return data

    def text(self, key: str) -> str:
        if wide := self.stream(f"__substg1.0_{key}001F"):
            return wide.decode("utf-16-le", "replace").rstrip("\0")
        return decoded(self.stream(f"__substg1.0_{key}001E")).rstrip("\0")

    def moment(self, tag: int) -> str:
        """A date from the properties of fixed length, which begin after a header of 32 or 24 bytes."""
        data = self.stream("__properties_version1.0")
        for start in range((len(data) % 16 and 24) or 32, len(data) - 15, 16):
            kind, found, _, ticks = struct.unpack_from("<HHIQ", data, start)
            if kind == 0x0040 and found == tag:
                return (_EPOCH + timedelta(microseconds=ticks // 10)).strftime("%Y-%m-%d %H:%M UTC")
        return ""


def _message(folder: _Folder, depth: int) -> Iterator[Message]:
    if "SMIME" in folder.text(_CLASS).upper() and not folder.text(_BODY):
        raise Permanent(
            "the message is encrypted (S/MIME), and Penstock cannot decrypt it: save it decrypted and submit that",
            reason="encrypted",
        )
    attachments = folder.folders("__attach_version1.0_")
    enclosed = [inner for one in attachments for inner in one.folders(_ENCLOSED)]
    names = [one.text(_LONG_NAME) or one.text(_NAME) for one in attachments if not one.folders(_ENCLOSED)]
    sender = " ".join(dict.fromkeys(part for part in (folder.text(_SENDER), folder.text(_SENDER_ADDRESS)) if part))
    date = folder.moment(_SENT) or folder.moment(_DELIVERED)
    headers = [("From", sender), ("To", folder.text(_TO)), ("Cc", folder.text(_CC)), ("Date", date)]
    subject = " ".join(folder.text(_SUBJECT).split())
    yield Message(subject, headers, partial(_body, folder), [name for name in names if name])
    for one in enclosed if depth < _DEEPEST else ():
        yield from _message(one, depth + 1)


def _attachments(folder: _Folder, depth: int) -> Iterator[tuple[str, bytes]]:
    for one in folder.folders("__attach_version1.0_"):
        enclosed = one.folders(_ENCLOSED)
        if not enclosed:
            yield one.text(_LONG_NAME) or one.text(_NAME), one.stream(_DATA)
        for inner in enclosed if depth < _DEEPEST else ():
            yield from _attachments(inner, depth + 1)


def _body(folder: _Folder) -> str:
    if text := folder.text(_BODY).strip():
        return plain_markdown(text)
    if html := folder.stream(f"__substg1.0_{_HTML}0102") or folder.text(_HTML).encode():
        return markdown(decoded(html))
    if packed := folder.stream(f"__substg1.0_{_RTF}0102"):
        return rtf.markdown(decompress(packed))
    return ""
