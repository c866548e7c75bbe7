"""Archives (ZIP, TAR, GZ, BZ2, XZ, 7Z), read in a parser process: the files inside are sent one after the other."""

import bz2
import gzip
import lzma
import os
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any, BinaryIO

from penstock.extractors import formats
from penstock.extractors.members import Limits, MemberDamaged, Output, Report, Sender
from penstock.extractors.unpacking import UNREADABLE, damaged, stream

ENCRYPTED = "encrypted"
DAMAGED = "damaged"
_FLAG_ENCRYPTED, _FLAG_UTF8 = 0x1, 0x800
_AES = 99


def read(
    document: BinaryIO,
    output: Output,
    *,
    media_type: str,
    name: str,
    start: int,
    again: list[int],
    password: str | None,
    limits: dict[str, int],
) -> Report:
    """Send the members from entry number `start` on, and those in `again`."""
    size = os.fstat(document.fileno()).st_size
    sender = Sender(output, start, frozenset(again), Limits(**limits), size)
    if media_type == formats.ZIP:
        _zip(document, sender, password)
    elif media_type == formats.SEVEN_ZIP:
        from penstock.extractors import seven_zip

        seven_zip.send(document, sender, password)
    elif media_type == formats.TAR:
        from penstock.extractors import tar

        tar.send(document, sender, seekable=True)
    else:
        _compressed(document, sender, media_type, name)
    return sender.report()


def _zip(document: BinaryIO, sender: Sender, password: str | None) -> None:
    try:
        archive = zipfile.ZipFile(document)
    except (*UNREADABLE, NotImplementedError) as error:
        raise damaged(error, "ZIP") from error
    with archive:
        for info in archive.infolist():
            name = _zip_name(info)
            if (info.external_attr >> 16) & 0o170000 == 0o120000:
                sender.skip("link")
            else:
                sender.send(name, _zip_member(archive, info, password), info.compress_size)


def _zip_name(info: zipfile.ZipInfo) -> str:
    """The name of a member. Without a flag its encoding is unknown: UTF-8 if it is valid, else that of DOS. The library
    cuts names at the first NUL; the original name says more."""
    name = info.orig_filename
    if info.flag_bits & _FLAG_UTF8:
        return name
    try:
        return name.encode("cp437").decode("utf-8")
    except UnicodeError:
        return name


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, password: str | None) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        locked = info.flag_bits & _FLAG_ENCRYPTED
        if info.compress_type == _AES:
            raise MemberDamaged("it is encrypted with AES, which Penstock cannot decrypt", reason=ENCRYPTED)
        if locked and password is None:
            raise MemberDamaged("it is encrypted", reason=ENCRYPTED)
        try:
            with archive.open(info, pwd=password.encode() if locked and password else None) as member:
                yield from stream(member)
        except NotImplementedError as error:
            raise MemberDamaged(str(error), reason="unsupported_compression") from error
        except RuntimeError as error:
            raise MemberDamaged("the password is wrong" if locked else str(error), reason=ENCRYPTED) from error
        except UNREADABLE as error:
            # A wrong password passes the check of one byte now and then: the content is then garbage.
            raise MemberDamaged(" ".join(str(error).split()), reason=ENCRYPTED if locked else DAMAGED) from error

    return pieces


_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    formats.GZIP: gzip.open,
    formats.BZIP2: bz2.open,
    formats.XZ: lzma.open,
}
_SUFFIXES = {
    formats.GZIP: ((".tgz", ".tar"), (".svgz", ".svg"), (".gz", "")),
    formats.BZIP2: ((".tbz2", ".tar"), (".tbz", ".tar"), (".bz2", "")),
    formats.XZ: ((".txz", ".tar"), (".xz", "")),
}
_BLOCK = 512


def _compressed(document: BinaryIO, sender: Sender, media_type: str, name: str) -> None:
    """A compressed file, or a compressed TAR archive: its first block says which."""
    from penstock.extractors import tar

    try:
        with _OPENERS[media_type](document) as unpacked:
            head = unpacked.read(_BLOCK)
            if tar.is_tar(head):
                tar.send(_Joined(head, unpacked), sender, seekable=False)
                return
            sender.send(_inner_name(name, media_type), lambda: _rest(head, unpacked), None)
    except UNREADABLE as error:
        raise damaged(error, formats.of(media_type).label) from error


def _rest(head: bytes, file: IO[bytes]) -> Iterator[bytes]:
    try:
        yield head
        yield from stream(file)
    except UNREADABLE as error:
        raise MemberDamaged(" ".join(str(error).split()), reason=DAMAGED) from error


def _inner_name(name: str, media_type: str) -> str:
    for suffix, other in _SUFFIXES[media_type]:
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)] + other
    return f"{name} content" if name else "content"


class _Joined:
    """A file whose first block was read already."""

    def __init__(self, head: bytes, file: Any) -> None:
        self._head = head
        self._file = file

    def read(self, size: int) -> bytes:
        if not self._head:
            data: bytes = self._file.read(size)
            return data
        part, self._head = self._head[:size], self._head[size:]
        return part + self._file.read(size - len(part)) if len(part) < size else part
