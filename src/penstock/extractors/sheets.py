"""Spreadsheets (XLSX, XLSM, XLSB, XLS, ODS), read with calamine in a parser process. Rows become Markdown tables; an
empty row ends a table."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from functools import partial
from itertools import zip_longest
from typing import Any, BinaryIO

import msgspec

from penstock.extractors import file_properties, formats
from penstock.extractors.base import FileContent
from penstock.extractors.labelled import Part, labelled_pages
from penstock.extractors.office import OLE, damaged, encrypted, refuse_large
from penstock.extractors.pieces import Piece, render, table

PAGE_ROWS = 500
"""Rows on one page. The first row of a long table is repeated on each of its pages."""
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")

Row = list[str]


def read(
    document: BinaryIO, media_type: str, unpacked: Sequence[int] = (500, 300), span: Sequence[int] | None = None
) -> FileContent:
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError, SheetTypeEnum

    label = formats.of(media_type).label
    if document.read(len(OLE)) == OLE and _ENCRYPTED in document.read():
        raise encrypted(label)
    document.seek(0)
    if zipfile.is_zipfile(document):
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(document) as archive:
            refuse_large(archive, label, *unpacked)
    document.seek(0)
    try:
        book = CalamineWorkbook.from_filelike(document)
        sheets = (sheet.name for sheet in book.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet)
        found = labelled_pages((Part(name, partial(_texts, book, name)) for name in sheets), span)
        return msgspec.structs.replace(found, metadata=file_properties.of_file(document))
    except PasswordError as error:
        raise encrypted(label) from error
    except (CalamineError, OSError, ValueError, OverflowError) as error:
        raise damaged(label, error) from error


def _texts(book: Any, name: str) -> Iterator[str]:
    from python_calamine import CalamineError

    try:
        rows = book.get_sheet_by_name(name).iter_rows()
        for pieces in _pages(name, ([_shown(cell) for cell in row] for row in rows)):
            yield render(pieces)
    except CalamineError as error:
        raise ValueError(str(error)) from error


def _pages(name: str, rows: Iterator[Row]) -> Iterator[list[Piece]]:
    pieces = [Piece("heading", name, 1)]
    block: list[Row] = []
    for row in rows:
        if any(row):
            block.append(row)
        elif block:
            pieces += _block(block)
            block = []
        if len(block) > PAGE_ROWS:
            yield [*pieces, *_block(block)]
            pieces, block = [Piece("heading", name, 1)], block[:1]
    if len(block) > 1 or (block and len(pieces) == 1) or len(pieces) > 1:
        yield [*pieces, *_block(block)]


def _block(rows: Sequence[Row]) -> list[Piece]:
    """The table of these rows, without columns that are empty in all of them. One cell alone is a paragraph."""
    used = [column for column, cells in enumerate(zip_longest(*rows, fillvalue="")) if any(cells)]
    wide = [[*row, *[""] * (used[-1] + 1 - len(row))] for row in rows] if used else []
    return table([[[Piece("paragraph", row[column])] if row[column] else [] for column in used] for row in wide])


def _shown(cell: object) -> str:
    match cell:
        case bool():
            return "TRUE" if cell else "FALSE"
        case float():
            return str(int(cell)) if cell.is_integer() and abs(cell) < 1e15 else repr(cell)
        case datetime():
            return cell.isoformat(" ", "seconds").removesuffix(" 00:00:00")
        case date() | time():
            return cell.isoformat()
        case timedelta() | int():
            return str(cell)
        case _:
            return " ".join(str(cell).split())
