"""PORT: extract pages with structure from raw bytes, starting at any cursor."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from penstock.extractors.members import Frame
from penstock.model.items import Page
from penstock.net.providers import Providers


@cache
def library(name: str) -> str:
    """The name and version of a library, for the version of an extractor."""
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
        """Seconds that parser processes have worked on the document."""

    @property
    def flow(self) -> tuple[str, str]:
        """Owner and document id. Parser processes are shared fairly between these."""

    async def read_range(self, offset: int, length: int) -> bytes: ...

    async def password(self) -> str | None:
        """The password of the document, if one was given at submit. It is never logged or shown."""

    def file(self) -> AbstractAsyncContextManager[Path]:
        """The bytes as a file on this machine, for readers in other processes."""

    def waiting(self, on: str | None) -> None:
        """Report what the extraction waits for; None: it continues."""

    @property
    def providers(self) -> Providers:
        """For an extractor that calls a provider."""

    def may_parse(self) -> None:
        """Raises if parser processes have used up their time limit for the document."""

    def parsed(self, seconds: float) -> None:
        """Add the time that a parser process has worked on the document, whether or not it succeeded."""


class StoredRaw(Raw, Protocol):
    async def verify(self) -> None:
        """Raises Permanent if the bytes are not those that were submitted."""


class MemberStream(Protocol):
    """The members of a file, as a parser process sends them."""

    async def next(self) -> Frame | None:
        """The next frame; None when the parser process has sent everything."""

    async def result(self) -> bytes:
        """The encoded result of the reader, after the last frame. Raises a StepError if it failed."""


class Parsers(Protocol):
    """The parser processes. A crash, a hang or excessive memory use in one of them raises a StepError here."""

    @property
    def width(self) -> int:
        """Number of parser processes."""

    async def call(self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path | None = None) -> bytes:
        """Call a reader (by its name in `formats.READERS`) with the open `document` and arguments, and return its
        encoded result. The parser process gets no path and cannot open other files."""


class MemberParsers(Parsers, Protocol):
    """Parser processes that also send the files inside a file."""

    def members(
        self, reader: str, arguments: dict[str, Any], *, source: Raw, document: Path
    ) -> AbstractAsyncContextManager[MemberStream]:
        """Call a reader that sends the files inside the document while it reads."""


class FileContent(msgspec.Struct, frozen=True, array_like=True):
    """What a reader returns for a whole file, or for some of its parts."""

    pages: list[Page]
    metadata: dict[str, Any] = {}
    labels: list[str] = []
    """The labels of all its parts, if it was asked for some of them."""


class PdfPart(msgspec.Struct, frozen=True, array_like=True):
    """What the reader of PDF files returns: the number of pages, a part of them, and, with the first page, the metadata
    of the document."""

    total: int
    pages: list[Page]
    metadata: dict[str, Any] = {}
    scans: list[int] = []
    """The numbers of the pages that are scanned."""


class Child(NamedTuple):
    """A file inside another file, such as an attachment or a member of an archive."""

    member: str
    """Its path in the parent, unique within the parent. The source URI of the child is `parent!/member`."""
    name: str
    pieces: Callable[[], AsyncIterator[bytes]]
    """The bytes. It is called at most once, and before the next batch is requested. If they turn out to be damaged, it
    raises SourceError."""
    data: bytes | None = None
    """The bytes of a small child. `pieces` is not called then."""


class Extracted(NamedTuple):
    """A batch of pages, and the cursor at which extraction continues after it."""

    pages: list[Page]
    cursor: dict[str, Any]
    keep: bool = False
    """Store the batch at once, because extracting it was expensive."""
    metadata: Mapping[str, Any] = MappingProxyType({})
    """Metadata of the document: title, author, dates, language. A batch adds to what the batches before it had."""
    children: Sequence[Child] = ()
    """Files inside the document. They are submitted before the cursor is stored."""


class CloudExtractor(Protocol):
    """An extractor that reads several formats with a provider. It has also all methods of `Extractor`."""

    @property
    def paid(self) -> bool: ...

    @property
    def target(self) -> str:
        """The name of the target, under which outages and limits are counted."""

    def reads(self, media_type: str) -> bool:
        """Whether it reads this format. Others are read locally."""

    def version(self, media_type: str, params: Mapping[str, Any]) -> str: ...

    def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]: ...

    async def close(self) -> None: ...


class Extractor(Protocol):
    @property
    def paid(self) -> bool:
        """Whether each call costs money. If so, its result is stored durably before anything else happens."""

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        """A part of the artifact's fingerprint. It changes whenever the output for the same input and parameters
        changes."""

    def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        """Yield pages in order. An empty cursor is the beginning. The ends of batches depend only on the input."""


@runtime_checkable
class Scanning(Protocol):
    """An extractor of documents that may have scanned pages. What reads these is not a part of `version`, so that
    documents without such pages do not depend on it."""

    def scan_version(self, media_type: str, params: Mapping[str, Any]) -> str | None:
        """What determines the text of scanned pages."""
