"""TAR archives, compressed or not."""

import tarfile
from collections.abc import Callable, Iterator
from tarfile import HeaderError
from typing import Any, Self

from penstock.errors import Permanent
from penstock.extractors.members import MemberDamaged, Sender
from penstock.extractors.unpacking import UNREADABLE, damaged, stream

_SUM = slice(148, 156)


def is_tar(block: bytes) -> bool:
    """Whether a block of 512 bytes is the header of an entry: its sum must be right."""
    if len(block) < 512 or not block[0]:
        return False
    try:
        said = int(block[_SUM].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    return said in (256 + sum(block[:148]) + sum(block[156:512]), _signed(block))


def _signed(block: bytes) -> int:
    return 256 + sum(b - 256 if b > 127 else b for b in block[:148] + block[156:512])


class _Entry(tarfile.TarInfo):
    """Remembers why the list of entries ended: the library treats a damaged header like the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except HeaderError as error:
            vars(tarfile)["ended_by"] = type(error).__name__
            raise


def send(file: Any, sender: Sender, *, seekable: bool) -> None:
    """Send the members. If the archive is damaged, those before the damage are sent first."""
    mode = "r:" if seekable else "r|"
    try:
        with tarfile.open(fileobj=file, mode=mode, tarinfo=_Entry, errors="surrogateescape") as archive:  # type: ignore[call-overload]
            while (entry := archive.next()) is not None:
                _entry(archive, entry, sender)
                # The library keeps all entries, which this reader does not need.
                archive.members.clear()
            if vars(archive).get("ended_by") != "EOFHeaderError":
                raise Permanent("the TAR archive is damaged: it ends without its end mark", reason="damaged")
    except (tarfile.TarError, *UNREADABLE) as error:
        raise damaged(error, "TAR") from error


def _entry(archive: tarfile.TarFile, entry: tarfile.TarInfo, sender: Sender) -> None:
    if entry.isdir():
        sender.skip("folder")
    elif entry.issym() or entry.islnk():
        sender.skip("link")
    elif not entry.isreg():
        sender.skip("device")
    else:
        sender.send(_name(entry.name), _member(archive, entry))


def _name(name: str) -> str:
    """Names that are not UTF-8 are taken for Latin-1."""
    try:
        name.encode()
        return name
    except UnicodeError:
        return name.encode("utf-8", "surrogateescape").decode("latin-1")


def _member(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        file = archive.extractfile(entry)
        if file is None:
            raise MemberDamaged("it has no content", reason="damaged")
        try:
            size = 0
            for piece in stream(file):
                size += len(piece)
                yield piece
            if size != entry.size:
                raise EOFError("the archive ends within it")
        except (tarfile.TarError, EOFError) as error:
            raise MemberDamaged(str(error), reason="damaged") from error

    return pieces
