"""What a parser process sends of the files inside a file: frames in a pipe, and the names that are safe to use."""

import re
import struct
import unicodedata
from collections.abc import Callable, Container, Iterable
from typing import BinaryIO, NamedTuple

import msgspec

from penstock.errors import Permanent

FRAME = struct.Struct("<cI")
"""The kind of a frame and its length."""
LONGEST_FRAME = 4 << 20
SMALL = 256 << 10
"""A member up to this size is one frame."""
PIECE = 256 << 10

FILE, BEGIN, DATA, END, BAD = b"F", b"B", b"D", b"E", b"X"
"""A whole small member · the beginning of a large one · a piece of it · its end · a member that cannot be read, also in
the middle of a large one"""

MEGABYTE = 1_000_000
RATIO_FREE = 16 << 20
"""A member below this size may be compressed as well as it likes."""


class Frame(NamedTuple):
    kind: bytes
    data: bytes


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A file inside a file. `number` counts all entries, also those that are skipped."""

    number: int
    path: str
    data: bytes = b""


class Problem(msgspec.Struct, frozen=True, array_like=True):
    """A member that cannot be read."""

    number: int
    reason: str
    path: str
    message: str


class Report(msgspec.Struct, frozen=True, array_like=True):
    """How reading the members ended."""

    entries: int
    skipped: dict[str, int] = {}
    """Entries that are no documents, by kind."""


class Limits(msgspec.Struct, frozen=True):
    """The limits for what one file may contain. See `limits` in the settings."""

    members: int
    megabytes: int
    ratio: int


class Output:
    """The pipe to the worker. A worker that no longer wants the members closes it, which raises BrokenPipeError."""

    def __init__(self, pipe: BinaryIO, progress: Callable[[], None]) -> None:
        self._pipe = pipe
        self._progress = progress

    def send(self, kind: bytes, data: bytes = b"") -> None:
        self._progress()
        view = memoryview(FRAME.pack(kind, len(data)) + data)
        while view:
            view = view[self._pipe.write(view) :]


class MemberDamaged(Exception):
    """One member cannot be read. The others may be."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Sending:
    """One member on its way: held back while it is small, else sent in pieces."""

    def __init__(self, sender: "Sender", output: Output, number: int, path: str, packed: int | None) -> None:
        self._sender = sender
        self._output = output
        self._number = number
        self._path = path
        self._packed = packed
        self._held = bytearray()
        self._size = 0
        self._large = False

    def write(self, piece: bytes) -> None:
        self._size += len(piece)
        self._sender.check(self._path, self._size, len(piece), self._packed)
        self._held += piece
        while len(self._held) > SMALL:
            if not self._large:
                self._output.send(BEGIN, msgspec.msgpack.encode(Member(self._number, self._path)))
            self._large = True
            self._output.send(DATA, bytes(self._held[:PIECE]))
            del self._held[:PIECE]

    def end(self) -> None:
        if not self._large:
            self._output.send(FILE, msgspec.msgpack.encode(Member(self._number, self._path, bytes(self._held))))
            return
        if self._held:
            self._output.send(DATA, bytes(self._held))
        self._output.send(END)


class Sender:
    """Sends the members of one file in order, and enforces the limits. `start`: entries before this number were sent
    by an earlier attempt, except those in `again`, which could not be read then. `size`: the size of the file
    itself."""

    def __init__(self, output: Output, start: int, again: Container[int], limits: Limits, size: int) -> None:
        self._output = output
        self._start = start
        self._again = again
        self._limits = limits
        self._size = size
        self._names = Names()
        self._number = -1
        self._members = 0
        self._bytes = 0
        self._skipped: dict[str, int] = {}

    def report(self) -> Report:
        return Report(self._number + 1, self._skipped)

    def skip(self, kind: str) -> None:
        """Count an entry that is no document."""
        self._number += 1
        self._skipped[kind] = self._skipped.get(kind, 0) + 1

    def _problem(self, reason: str, path: str, message: str) -> None:
        problem = Problem(self._number, reason, visible_path(path), message[:200])
        self._output.send(BAD, msgspec.msgpack.encode(problem))

    def send(self, name: str, pieces: Callable[[], Iterable[bytes]], packed: int | None = None) -> None:
        """Send one member. `packed` is its compressed size, if it is known. `pieces` may raise MemberDamaged: the
        member is then reported and left out."""

        def write(sink: Callable[[bytes], object]) -> None:
            for piece in pieces():
                sink(piece)

        self.send_written(name, write, packed)

    def send_written(
        self, name: str, write: Callable[[Callable[[bytes], object]], None], packed: int | None = None
    ) -> bool:
        """Send one member that `write` passes to a function, piece by piece. Returns whether `write` was called."""
        if kind := is_litter(name):
            self.skip(kind)
            return False
        path = self._names.unique(name)
        self._number += 1
        self._members += 1
        if self._members > self._limits.members:
            raise _beyond(f"it contains more than {self._limits.members:,} files", "members", reason="too_many_members")
        if self._number < self._start and self._number not in self._again:
            return False
        sending = _Sending(self, self._output, self._number, path, packed)
        try:
            write(sending.write)
        except MemberDamaged as error:
            self._problem(error.reason, path, str(error))
        else:
            sending.end()
        return True

    def check(self, path: str, size: int, more: int, packed: int | None) -> None:
        self._bytes += more
        most = self._limits.megabytes * MEGABYTE
        if self._bytes > most:
            raise _beyond(
                f"its files have more than {self._limits.megabytes:,} megabytes",
                "members_megabytes",
                reason="unpacked_too_large",
            )
        unpacked, source = (self._bytes, self._size) if packed is None else (size, packed)
        if unpacked > RATIO_FREE and unpacked > self._limits.ratio * max(source, 1):
            what = f"{visible_path(path)!r} is more than {self._limits.ratio:,} times as large as its compressed form"
            raise _beyond(what, "unpacked_ratio", reason="unpacked_too_large")


def _beyond(what: str, setting: str, *, reason: str) -> Permanent:
    return Permanent(
        f"{what} (limits.{setting}): it may be made to fill a disk. What was found before is kept. If it is genuine, "
        "raise the limit and retry it",
        reason=reason,
    )


_SEPARATORS = re.compile(r"[/\\]+")
_DRIVE = re.compile(r"[A-Za-z]:")
_LITTER = {".ds_store", "thumbs.db", "desktop.ini", ".localized", "ehthumbs.db", "icon\r"}
LONGEST_PART = 200
LONGEST_PATH = 1000


def is_litter(name: str) -> str | None:
    """What an entry is if it is no document: a folder, or a file that systems add to archives."""
    parts = [part for part in _SEPARATORS.split(name) if part]
    if name.endswith(("/", "\\")) or not parts:
        return "folder"
    last = parts[-1].lower()
    if "__MACOSX" in parts or last in _LITTER or last.startswith("._"):
        return "system"
    return None


def safe_path(name: str) -> str:
    """A relative path without `..`, drives, control characters and `!/`, so that it names nothing else."""
    parts = []
    for part in _SEPARATORS.split(_DRIVE.sub("", name, count=1) if _DRIVE.match(name) else name):
        if part in ("", ".", ".."):
            continue
        clean = "".join("\N{REPLACEMENT CHARACTER}" if _is_control(c) else c for c in part)
        parts.append(_shortened(clean, LONGEST_PART))
    for index in range(len(parts) - 1):
        # The source URI of a child is `parent!/member`.
        if parts[index].endswith("!"):
            parts[index] = parts[index][:-1] + "%21"
    path = "/".join(parts) or "unnamed"
    return path if len(path.encode()) <= LONGEST_PATH else "/".join(parts[-1:])


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def _shortened(text: str, most: int) -> str:
    if len(text.encode()) <= most:
        return text
    stem, dot, suffix = text.rpartition(".")
    tail = dot + suffix if dot and len(suffix.encode()) <= 10 else ""
    kept = (stem if tail else text).encode()[: most - len(tail.encode()) - 3].decode(errors="ignore")
    return f"{kept}…{tail}"


def visible_path(path: str) -> str:
    return path if len(path) <= 100 else f"{path[:60]}…{path[-39:]}"


class Names:
    """The paths of the members of one file. A path that was used before gets a number."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        """With the last number that was given to a copy of the path."""

    def unique(self, name: str) -> str:
        wanted = path = safe_path(name)
        number = self._used.get(wanted, 1)
        while path in self._used:
            number += 1
            folder, slash, last = wanted.rpartition("/")
            stem, dot, suffix = last.rpartition(".")
            path = folder + slash + (f"{stem} ({number}).{suffix}" if stem and dot else f"{last} ({number})")
        self._used[wanted] = number
        self._used.setdefault(path, 1)
        return path
