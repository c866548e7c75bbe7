"""E-books (EPUB): one or more pages for each chapter, in reading order. Chapters are read like HTML files."""

import posixpath
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from penstock.errors import Permanent
from penstock.extractors.base import FileContent
from penstock.extractors.charsets import decoded
from penstock.extractors.html import markdown
from penstock.extractors.labelled import Part, labelled_pages
from penstock.extractors.omml import child, local
from penstock.extractors.ooxml import read_part
from penstock.extractors.properties import MOST_VALUES
from penstock.extractors.properties import properties as plain_properties

_HTML = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")
_ALGORITHM = "EncryptionMethod"
_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Ways to obfuscate fonts. The text of such a book is not encrypted."""


def pages(archive: zipfile.ZipFile, span: Sequence[int] | None = None) -> FileContent:
    _refuse_encrypted(read_part(archive, "META-INF/encryption.xml"))
    return labelled_pages(_chapters(archive), span)


def properties(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The metadata of the package."""
    found: dict[str, list[str]] = {}
    listed = child(_package(archive)[1], "metadata")
    for element in listed if listed is not None else ():
        key = (element.get("property") or "").rpartition(":")[2] if local(element) == "meta" else local(element)
        if (element.text or "").strip() and len(found.setdefault(key, [])) < MOST_VALUES:
            found[key].append(element.text or "")
    first = {key: values[0] for key, values in found.items() if values}
    return plain_properties(
        first.get("title"), found.get("creator"), first.get("date"), first.get("modified"), first.get("language")
    )


def _package(archive: zipfile.ZipFile) -> tuple[str | None, Element | None]:
    """The name and the root of the part that lists the contents of the book."""
    container = read_part(archive, "META-INF/container.xml")
    listed = container.iter() if container is not None else ()
    main = next((found.get("full-path") for found in listed if local(found) == "rootfile"), None)
    return main, read_part(archive, main)


def _refuse_encrypted(root: Element | None) -> None:
    for found in root.iter() if root is not None else ():
        if local(found) == _ALGORITHM and found.get("Algorithm") not in _FONTS:
            raise Permanent(
                "the book is protected (DRM), and Penstock cannot decrypt it: submit a copy without protection",
                reason="encrypted",
            )


def _chapters(archive: zipfile.ZipFile) -> Iterator[Part]:
    for number, name in enumerate(_order(archive), 1):
        if name in archive.NameToInfo:
            yield Part(f"chapter {number}", partial(_text, archive, name), titled=True)


def _text(archive: zipfile.ZipFile, name: str) -> list[str]:
    return [markdown(decoded(archive.read(name)))]


def _order(archive: zipfile.ZipFile) -> list[str]:
    """The names of the chapters in reading order; all HTML files if the book has no such list."""
    main, package = _package(archive)
    if main is None or package is None:
        return sorted(name for name in archive.namelist() if name.endswith((".xhtml", ".html", ".htm")))
    folder = posixpath.dirname(main)
    manifest, spine = child(package, "manifest"), child(package, "spine")
    items = {
        item.get("id"): posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))
        for item in (manifest if manifest is not None else ())
        if item.get("media-type") in _HTML
    }
    return [items[ref.get("idref")] for ref in (spine if spine is not None else ()) if ref.get("idref") in items]
