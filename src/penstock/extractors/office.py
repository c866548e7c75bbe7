"""Word documents (.docx), read as whole files in a parser process."""

import zipfile
import zlib
from typing import BinaryIO
from xml.etree.ElementTree import ParseError

from penstock.errors import Permanent
from penstock.extractors import docx
from penstock.extractors.pieces import render
from penstock.extractors.text import markdown_pages
from penstock.model.items import Page

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
# Exceptions of zipfile and the XML parser for damaged files.
_DAMAGES = (zipfile.BadZipFile, zlib.error, ParseError, KeyError, ValueError, EOFError, OSError, RuntimeError)


def read(document: BinaryIO, media_type: str) -> list[Page]:
    """The pages of a document, divided at its page breaks."""
    _refuse_old_files(document)
    try:
        with zipfile.ZipFile(document) as archive:
            return markdown_pages(render(docx.pieces(archive)))
    except _DAMAGES as error:
        raise Permanent(
            f"the Word document is damaged and cannot be read ({error}): open it in a word processor, save it as a new "
            ".docx and submit that",
            reason="damaged",
        ) from error


def _refuse_old_files(document: BinaryIO) -> None:
    """Raises Permanent for old Office files and for encrypted new ones. Both use the same container."""
    if document.read(len(_OLE)) != _OLE:
        return
    if _ENCRYPTED in document.read():
        raise Permanent(
            "the Word document is encrypted, and Penstock cannot decrypt it: save it without a password "
            "and submit that",
            reason="encrypted",
        )
    raise Permanent(
        "it is named .docx but is a Word document of the old format: save it as .docx and submit the new file",
        reason="unsupported_type",
    )
