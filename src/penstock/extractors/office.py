"""Office documents that are zip files of XML (Word, PowerPoint, OpenDocument text and presentations) and EPUB, read as
whole files in a parser process."""

import zipfile
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, BinaryIO

import msgspec

from penstock.errors import Permanent
from penstock.extractors import file_properties, formats
from penstock.extractors.base import FileContent
from penstock.extractors.labelled import DAMAGES

_SMALL = 20_000_000
"""A file that unpacks to less is harmless, however small it is packed."""
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")

_MODULES = {
    formats.DOCX: "penstock.extractors.docx",
    formats.PPTX: "penstock.extractors.pptx",
    formats.ODT: "penstock.extractors.opendocument",
    formats.ODP: "penstock.extractors.opendocument",
    formats.EPUB: "penstock.extractors.epub",
}
"""Modules with a function `pages(archive)`, which also takes a `span` if the format has parts, and perhaps a function
`properties(archive)` for metadata."""


def read(
    document: BinaryIO, media_type: str, unpacked: Sequence[int] = (500, 300), span: Sequence[int] | None = None
) -> FileContent:
    label = formats.of(media_type).label
    refuse_containers(document, label)
    module = import_module(_MODULES[media_type])
    pages: Callable[..., FileContent] = module.pages
    chosen = {} if span is None else {"span": span}
    properties: Callable[[zipfile.ZipFile], dict[str, Any]] = getattr(module, "properties", file_properties.of_archive)
    try:
        with zipfile.ZipFile(document) as archive:
            refuse_large(archive, label, *unpacked)
            return msgspec.structs.replace(pages(archive, **chosen), metadata=properties(archive))
    except DAMAGES as error:
        raise damaged(label, error) from error


def damaged(label: str, error: object) -> Permanent:
    return Permanent(
        f"the file ({label}) is damaged and cannot be read ({error}): open it in the program that made it, save it as "
        "a new file and submit that",
        reason="damaged",
    )


def refuse_large(archive: zipfile.ZipFile, label: str, megabytes: int, ratio: int) -> None:
    """Raises Permanent if the file would become too large when it is unpacked. `zipfile` never returns more of a member
    than the size that is compared here."""
    size = sum(member.file_size for member in archive.infolist())
    packed = sum(member.compress_size for member in archive.infolist())
    if size > megabytes * 1_000_000:
        limit = f"{megabytes:,} megabytes (limits.office_megabytes)"
    elif size > _SMALL and size > ratio * max(packed, 1):
        limit = f"{ratio:,} times its size (limits.unpacked_ratio)"
    else:
        return
    large = f"{size / 1_000_000:,.0f} megabytes"
    raise Permanent(
        f"the file ({label}) unpacks to {large}, and the limit is {limit}: raise it, then retry",
        reason="unpacked_too_large",
    )


def nested(label: str, most: int) -> Permanent:
    return Permanent(
        f"the parts of the file ({label}) are nested more than {most} deep, as no program does: it was probably made "
        "to break readers",
        reason="nested_too_deeply",
    )


def encrypted(label: str) -> Permanent:
    return Permanent(
        f"the file ({label}) is encrypted, and Penstock cannot decrypt it: save it without a password and submit that",
        reason="encrypted",
    )


def refuse_containers(document: BinaryIO, label: str) -> None:
    """Raises Permanent for old Office files and for encrypted new ones. Both use the same container."""
    if document.read(len(OLE)) != OLE:
        return
    if _ENCRYPTED in document.read():
        raise encrypted(label)
    raise Permanent(
        f"its name says {label}, but it is an Office file of the old format: save it in the new format and submit the "
        "new file",
        reason="unsupported_type",
    )
