"""Read JSON, Jupyter notebooks and XML in a parser process. A file that cannot be parsed is read as plain text."""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.parsers import expat

from penstock.extractors import formats
from penstock.extractors.base import FileContent
from penstock.extractors.charsets import decoded
from penstock.extractors.pieces import Piece, render
from penstock.extractors.records import lines
from penstock.extractors.text import markdown_pages

_HEADINGS = {"title", "head", "article-title"}
_LONGEST_VALUE = 12
"""An element with more words than this is prose, and its name is not shown."""
_DEEPEST = 200


def read(document: BinaryIO, media_type: str) -> FileContent:
    data = document.read()
    readers = {formats.JSON: _json, formats.NOTEBOOK: _notebook, formats.XML: _xml}
    try:
        return FileContent(markdown_pages(readers[media_type](data)))
    except (ValueError, RecursionError, expat.ExpatError, LookupError):
        return FileContent(markdown_pages(decoded(data)))


def _json(data: bytes) -> str:
    value = json.loads(_text(data))
    records = value if isinstance(value, list) else [value]
    return "\n\n".join("\n".join(lines(record)) for record in records)


def _text(data: bytes) -> str:
    """JSON is Unicode in one of three widths; some files are not."""
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError:
        return decoded(data)


def _notebook(data: bytes) -> str:
    notebook = json.loads(_text(data))
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        return _json(data)
    language = str(_inner(notebook, "metadata", "language_info").get("name") or "")
    return "\n\n".join(
        text for cell in notebook["cells"] if isinstance(cell, dict) for text in _cell(cell, language) if text
    )


def _cell(cell: dict[str, Any], language: str) -> Iterator[str]:
    source = _joined(cell.get("source"))
    if cell.get("cell_type") == "markdown":
        yield source.replace("\f", "\n").strip()
    else:
        yield render([Piece("code", source, label=language)])
    for output in cell.get("outputs") or ():
        if isinstance(output, dict):
            shown = output.get("text") or _inner(output, "data").get("text/plain")
            yield render([Piece("code", _joined(shown))])


def _inner(value: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        inner = value.get(name)
        value = inner if isinstance(inner, dict) else {}
    return value


def _joined(value: object) -> str:
    """The text of a field, which may be a list of lines."""
    return "".join(map(str, value)) if isinstance(value, list) else value if isinstance(value, str) else ""


def _xml(data: bytes) -> str:
    reader = _XmlReader()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    # Entities of the document are not expanded, and nothing is fetched: both can be used for attacks.
    parser.EntityDeclHandler = _refuse
    parser.Parse(data, True)
    return render(reader.pieces)


def _refuse(*_: object) -> None:
    raise ValueError("the file declares entities")


class _Element:
    def __init__(self, name: str, attributes: str) -> None:
        self.name = name
        self.attributes = attributes
        self.rope: list[Any] = []
        """Its text: strings, and the ropes of inner elements."""
        self.has_text = False
        self.pieces: list[Piece] = []
        """Of the inner elements."""
        self.has_children = False


class _XmlReader:
    """An element with text and elements is one paragraph. Short values show the name of their element."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._open: list[_Element] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) >= _DEEPEST:
            raise ValueError("the elements are nested too deeply")
        if self._open:
            self._open[-1].has_children = True
        shown = ", ".join(f"{_local(key)}: {value}" for key, value in attributes.items() if value.strip())
        self._open.append(_Element(_local(name), shown))

    def text(self, text: str) -> None:
        element = self._open[-1]
        element.rope.append(text)
        element.has_text = element.has_text or not text.isspace()

    def end(self, name: str) -> None:
        element = self._open.pop()
        pieces = self._pieces(element) if element.has_text or not element.has_children else element.pieces
        if self._open:
            self._open[-1].rope.append(element.rope)
            self._open[-1].pieces += pieces
        else:
            self.pieces = pieces

    def _pieces(self, element: _Element) -> list[Piece]:
        text = " ".join("".join(_strings(element.rope)).split())
        if element.name.lower() in _HEADINGS and text:
            return [Piece("heading", text, min(len(self._open), 6) or 1)]
        details = f" ({element.attributes})" if element.attributes else ""
        if not text:
            return [Piece("paragraph", element.name + details)] if details else []
        if element.has_children or len(text.split()) > _LONGEST_VALUE:
            return [Piece("paragraph", text)]
        return [Piece("item", f"{element.name}{details}: {text}", label="-")]


def _strings(rope: list[Any]) -> Iterator[str]:
    for part in rope:
        if isinstance(part, str):
            yield part
        else:
            yield from _strings(part)


def _local(name: str) -> str:
    return name.rpartition(" ")[2]
