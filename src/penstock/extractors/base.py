"""PORT: raw bytes in, pages with structure out, from any cursor on."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from penstock.model.items import Page


@cache
def library(name: str) -> str:
    """A library and its version, for what decides the output of a step."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{name}-{version(name)}"
    except PackageNotFoundError:
        return name


class Raw(Protocol):
    """The raw bytes of one document, read in ranges."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def parser_s(self) -> float:
        """How long parser processes have worked on it."""

    @property
    def flow(self) -> tuple[str, str]:
        """Owner and document: parser processes are shared by these."""

    async def read_range(self, offset: int, length: int) -> bytes: ...

    async def password(self) -> str | None:
        """What unlocks it, if its submitter gave one. Never logged, never shown."""

    def file(self) -> AbstractAsyncContextManager[Path]:
        """The bytes as a file on this machine, for readers in other processes."""

    def waiting(self, on: str | None) -> None:
        """Say what the extraction waits on; None: it works again."""

    def may_parse(self) -> None:
        """Raises where parsers have worked on it for as long as they may."""

    def parsed(self, seconds: float) -> None:
        """So long a parser process has worked on it, with or without an answer."""


class StoredRaw(Raw, Protocol):
    async def verify(self) -> None:
        """Permanent, if these are other bytes than were accepted."""


class Parsers(Protocol):
    """Isolated child processes. What crashes, hangs or eats memory there is a StepError here."""

    @property
    def width(self) -> int:
        """How many children there are."""

    async def call(self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path | None = None) -> bytes:
        """Run a reading function (a name that the child knows) on the open `document` and arguments; its answer,
        encoded. The child sees no path and can open no other file."""


class Child(NamedTuple):
    """A file found inside another: an attachment, a member of an archive."""

    member: str
    """Its place in the parent, unique there: the source URI of the child is `parent!/member`."""
    name: str
    pieces: Callable[[], AsyncIterator[bytes]]


class Extracted(NamedTuple):
    """A batch of what was found, and the cursor from which extraction goes on after it."""

    pages: list[Page]
    cursor: dict[str, Any]
    keep: bool = False
    """It cost so much that it is stored at once."""
    metadata: Mapping[str, Any] = MappingProxyType({})
    """Of the document: title, author, dates, language. Nothing stores it yet."""
    children: Sequence[Child] = ()
    """Nothing submits them yet."""


class Extractor(Protocol):
    @property
    def paid(self) -> bool:
        """Each call costs money: what it brings is stored durably before anything else happens."""

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        """Changes whenever the output for the same input and parameters does: part of the artifact's fingerprint."""

    def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        """Pages in order. An empty cursor is the beginning. Where a batch ends depends on the input alone."""
