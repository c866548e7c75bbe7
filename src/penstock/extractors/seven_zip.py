"""7Z archives, by py7zr (extra `7z`). Its own loop writes files and checks a member only after it was written, so this
module calls its decompressor itself."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from penstock.errors import Permanent
from penstock.extractors.members import PIECE, MemberDamaged, Sender
from penstock.extractors.unpacking import UNREADABLE, damaged


def send(document: BinaryIO, sender: Sender, password: str | None) -> None:
    try:
        import py7zr
        from py7zr import exceptions
        from py7zr import py7zr as inner
    except ImportError as error:
        raise Permanent(
            "7Z archives need an extra: pip install 'penstock-rag[7z]'", reason="unsupported_type"
        ) from error
    # It would decompress as much at once as the memory of the machine allows.
    setattr(inner, "get_memory_limit", lambda: PIECE)  # noqa: B010
    broken = (exceptions.ArchiveError, exceptions.AbsolutePathError, *UNREADABLE)
    unreadable = (*broken, AttributeError, TypeError, AssertionError, RuntimeError, NotImplementedError)
    try:
        archive = py7zr.SevenZipFile(document, password=password)
    except exceptions.PasswordRequired as error:
        raise _locked() from error
    except unreadable as error:
        if password is not None:
            # With a wrong password, an encrypted list of files is garbage.
            document.seek(0)
            with suppress(*unreadable):
                try:
                    py7zr.SevenZipFile(document)
                except exceptions.PasswordRequired:
                    raise _locked() from error
        raise damaged(error, "7Z") from error
    with archive:
        reading = _Reading(archive, document, sender, (exceptions.PasswordRequired, RuntimeError), broken)
        reading.locked = archive.needs_password()
        reading.send_all()


def _locked() -> Permanent:
    return Permanent(
        "the archive is encrypted: give its password, as in `penstock retry ID --password-file FILE`",
        reason="encrypted",
    )


class _Reading:
    def __init__(
        self, archive: Any, document: BinaryIO, sender: Sender, locks: tuple[type[Exception], ...], broken: Any
    ) -> None:
        self._archive = archive
        self._document = document
        self._sender = sender
        self._locks = locks
        self._broken = (*broken, AttributeError, TypeError, AssertionError)
        self.locked = False

    def send_all(self) -> None:
        for file in self._archive.files:
            if file.emptystream:
                self._empty(file)
        streams = getattr(self._archive.header, "main_streams", None)
        if streams is None:
            return
        positions = [self._archive.worker.src_start + place for place in streams.packinfo.packpositions]
        for number, folder in enumerate(streams.unpackinfo.folders):
            end = positions[-1] if len(streams.unpackinfo.folders) == 1 else positions[number + 1]
            self._document.seek(positions[number])
            for file in folder.files or ():
                self._member(file, end)

    def _empty(self, file: Any) -> None:
        if file.is_directory:
            self._sender.skip("folder")
        else:
            self._sender.send(file.filename, lambda: ())

    def _member(self, file: Any, end: int) -> None:
        if file.is_symlink or file.is_junction or file.is_socket:
            self._sender.skip("link")
        elif self._sender.send_written(file.filename, lambda sink: self._unpack(file, end, sink)):
            return
        # The members after it can be unpacked only after this one. If it is damaged, they are too.
        with suppress(MemberDamaged):
            self._unpack(file, end, lambda piece: None)

    def _unpack(self, file: Any, end: int, sink: Callable[[bytes], object]) -> None:
        try:
            found = self._archive.worker.decompress(
                self._document, file.folder, _Writer(sink), file.uncompressed, file.compressed, end
            )
            if file.crc32 is not None and found != file.crc32:
                raise ValueError("its checksum is wrong")
        except self._locks as error:
            raise MemberDamaged("it is encrypted", reason="encrypted") from error
        except self._broken as error:
            # With a wrong password, the content is garbage.
            said = " ".join(str(error).split()) or type(error).__name__
            raise MemberDamaged(said, reason="encrypted" if self.locked else "damaged") from error


class _Writer:
    def __init__(self, sink: Callable[[bytes], object]) -> None:
        self.write = sink
