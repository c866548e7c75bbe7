"""Files that contain other files: archives, and messages with attachments. The pages of the file itself come first,
then the files inside it, as children."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import msgspec

from penstock.config import LimitsConfig
from penstock.errors import ParserBreach, Permanent, SourceError
from penstock.extractors.base import Child, Extracted, MemberStream, Raw
from penstock.extractors.formats import Format, Parts
from penstock.extractors.members import BAD, BEGIN, DATA, END, FILE, Member, Problem
from penstock.extractors.numbered import PARTS
from penstock.extractors.whole import WholeFileExtractor

BATCH = 256
BATCH_BYTES = 4 << 20
"""Small children are passed on together, up to this size."""
NAMED = 5
"""How many members with a problem an error names."""
MOST_BAD = 1000
"""How many of them a cursor lists."""


def make(row: Format, parts: Parts) -> "ContainerExtractor":
    return ContainerExtractor(row, parts)


class ContainerExtractor:
    """The cursor counts the entries of the file (`entry`) and the children among them (`children`), and lists entries
    that could not be read (`bad`). After an interruption, or when it is retried with a password, only the rest and the
    bad ones are read."""

    paid = False

    def __init__(self, row: Format, parts: Parts) -> None:
        assert row.members is not None
        self._pages = WholeFileExtractor(parts.parsers, row) if row.reader is not None else None
        self._parsers = parts.parsers
        self._reader = row.members.name
        self._version = row.whole_version
        limits = parts.limits or LimitsConfig()
        self._limits = {
            "members": limits.members,
            "megabytes": limits.members_megabytes,
            "ratio": limits.unpacked_ratio,
        }

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        return self._version

    async def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        read: dict[str, Any] = {key: cursor[key] for key in ("pages", "of", PARTS) if key in cursor}
        if self._pages is not None and "entry" not in cursor:
            async for batch in self._pages.extract(raw, media_type, params, read):
                read = batch.cursor
                yield batch
        place = _Place(read, cursor)
        arguments = {
            "media_type": media_type,
            "name": raw.name,
            "start": place.entry,
            "again": place.bad,
            "password": await raw.password(),
            "limits": self._limits,
        }
        async with (
            raw.file() as path,
            self._parsers.members(self._reader, arguments, source=raw, document=path) as stream,
        ):
            async for batch in _batches(stream, place):
                yield batch
            try:
                await stream.result()
            except (Permanent, ParserBreach) as error:
                raise _failed(error, place) from error
        if place.problems:
            raise _incomplete(place)


def _failed(error: Permanent | ParserBreach, place: "_Place") -> Exception:
    """The error of an archive that could not be read to its end. A crash may not happen again."""
    if error.reason in ("parser_crash", "unsupported_type"):
        return error
    documents = f"{place.children:,} document{'' if place.children == 1 else 's'}"
    kept = f" ({documents} in it could be read and {'is' if place.children == 1 else 'are'} kept)"
    return Permanent(str(error) + (kept if place.children else ""), reason=error.reason)


def _incomplete(place: "_Place") -> Permanent:
    """The error of an archive with members that could not be read."""
    problems, count = place.problems, len(place.problems)
    reasons = [problem.reason for problem in problems]
    reason = "encrypted" if "encrypted" in reasons else reasons[0]
    named = "; ".join(f"{problem.path!r}: {problem.message}" for problem in problems[:NAMED])
    more = f"; and {count - NAMED:,} more" if count > NAMED else ""
    advice = ". Give its password: `penstock retry ID --password-file FILE`" if reason == "encrypted" else ""
    return Permanent(
        f"{count:,} of {count + place.children:,} files in it could not be read ({named}{more}). "
        f"The others are kept{advice}",
        reason=reason,
    )


class _Place:
    """How far the entries were read, over all attempts."""

    def __init__(self, read: dict[str, Any], cursor: dict[str, Any]) -> None:
        self._read = read
        self.entry: int = cursor.get("entry", 0)
        self.children: int = cursor.get("children", 0)
        self.bad: list[int] = list(cursor.get("bad", []))
        """Those of earlier attempts."""
        self.problems: list[Problem] = []

    @property
    def cursor(self) -> dict[str, Any]:
        # An entry that was bad and is not read yet in this attempt stays on the list.
        seen = [problem.number for problem in self.problems]
        bad = sorted({*seen, *self.bad})
        # With very many bad entries, those after them are read again.
        entry = min(self.entry, bad[MOST_BAD]) if len(bad) > MOST_BAD else self.entry
        listed = {"bad": bad[:MOST_BAD]} if bad else {}
        return {**self._read, "entry": entry, "children": self.children, **listed}

    def passed(self, number: int, *, good: bool) -> None:
        self.entry = max(self.entry, number + 1)
        self.children += good
        if good and number in self.bad:
            self.bad.remove(number)


async def _batches(stream: MemberStream, place: _Place) -> AsyncGenerator[Extracted, None]:
    small: list[Child] = []
    size = 0
    while (frame := await stream.next()) is not None:
        if frame.kind == FILE:
            member = msgspec.msgpack.decode(frame.data, type=Member)
            small.append(Child(member.path, _name(member.path), _nothing, member.data))
            size += len(member.data)
            place.passed(member.number, good=True)
        elif frame.kind == BEGIN:
            if small:
                yield Extracted([], place.cursor, children=small)
                small, size = [], 0
            member = msgspec.msgpack.decode(frame.data, type=Member)
            large = _Large(stream)
            yield Extracted([], place.cursor, children=[Child(member.path, _name(member.path), large.pieces)])
            await large.drain()
            place.passed(member.number, good=large.is_whole)
            if large.problem is not None:
                place.problems.append(large.problem)
        elif frame.kind == BAD:
            problem = msgspec.msgpack.decode(frame.data, type=Problem)
            place.problems.append(problem)
            place.passed(problem.number, good=False)
        if len(small) >= BATCH or size >= BATCH_BYTES:
            yield Extracted([], place.cursor, children=small)
            small, size = [], 0
    if small:
        yield Extracted([], place.cursor, children=small)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


async def _nothing() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for piece in nothing:
        yield piece


class _Large:
    """A member that arrives in pieces."""

    def __init__(self, stream: MemberStream) -> None:
        self._stream = stream
        self._ended = False
        self.is_whole = False
        self.problem: Problem | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        while not self._ended:
            frame = await self._stream.next()
            if frame is not None and frame.kind == DATA:
                yield frame.data
                continue
            self._ended = True
            self.is_whole = frame is not None and frame.kind == END
            if frame is not None and frame.kind == BAD:
                self.problem = msgspec.msgpack.decode(frame.data, type=Problem)
            if not self.is_whole:
                raise SourceError(self.problem.message if self.problem else "the parser process ended")

    async def drain(self) -> None:
        """Read the rest, if the bytes were not wanted."""
        try:
            async for _ in self.pieces():
                pass
        except SourceError:
            pass
