"""What describes a format: how it is detected, and which module reads it. `formats.py` is the table."""

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.config import LimitsConfig
    from penstock.extractors.base import MemberParsers
    from penstock.runtime import Runtime
    from penstock.transcribers.base import Transcriber


class Text(NamedTuple):
    """A text file. It is detected by its name, or by its beginning if there is a `pattern`."""

    pattern: re.Pattern[str] | None = None


class Mark(NamedTuple):
    """A file that begins with `start`, after white space. `anywhere`: `start` may also follow later in the first
    kilobyte, if the name has a suffix of the format or the file is not text."""

    start: bytes
    anywhere: bool = False


class Office(NamedTuple):
    """A zip file whose list of contents names the `kind`, or that has members in the `folder`."""

    kind: bytes
    folder: bytes


class Ole(NamedTuple):
    """An old Office file. All of them begin with the same bytes; the suffix of the name decides."""


class Named(NamedTuple):
    """A zip file whose first member names the media type."""


class Magic(NamedTuple):
    """A file whose bytes at an offset are one of these."""

    starts: tuple[bytes, ...]
    offset: int = 0


class Reader(NamedTuple):
    """A module that reads a file, or a part of one, in a parser process."""

    name: str
    module: str
    """It has a function `read(document, **arguments)`, whose result is encoded with msgpack."""
    late: tuple[str, ...] = ()
    """Modules that it imports only when a document needs them."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    media_type: str
    label: str
    """The common name."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of file names, in lower case and without the dot."""
    sign: Text | Mark | Magic | Office | Ole | Named | None = None
    """How the format is detected; None: by the library for magic numbers."""
    adapter: str | None = None
    """`module:function` that creates the extractor from the row and the `Parts`; None: detected, but not read."""
    reader: Reader | None = None
    """None: the worker itself or another service reads the format."""
    members: Reader | None = None
    """The reader of the files inside, if it can contain any. They become documents of their own."""
    version: str = ""
    """The version of the code that reads the format. A new version makes artifacts of this format stale, and of no
    other."""
    libraries: tuple[str, ...] = ()
    """Packages that determine the output. Their versions are part of the version of the format."""
    markdown: bool = False
    """Whether the text of its pages is Markdown."""
    reads: str = ""
    """What is read, and what is not, for docs/reference/formats.md."""
    printed: bool = False
    """Whether its pages are printed pages, with running headers and page numbers. Without text, such a document is
    probably a scan."""

    @property
    def whole_version(self) -> str:
        from penstock.extractors.base import library

        return "/".join((self.version, *map(library, self.libraries)))


class Parts(NamedTuple):
    """What the functions that create extractors receive."""

    runtime: "Runtime"
    parsers: "MemberParsers"
    make_transcriber: "Callable[[], Transcriber | None]" = lambda: None
    tessdata: str | None = None
    """The folder with languages for OCR, if it is not the one that comes with Tesseract."""
    megapixels: int = 200
    """The largest image that is decoded."""
    office_megabytes: int = 500
    unpacked_ratio: int = 300
    """The largest zip file, and how many times larger it may become."""
    limits: "LimitsConfig | None" = None
    """None: the defaults."""
