"""Draw a page of a PDF for OCR, in a parser process."""

from typing import BinaryIO

from penstock.extractors import pdf_pages


def read(file: BinaryIO, password: str | None, index: int, dpi: int, most: int) -> bytes:
    return pdf_pages.draw(file, password, index, dpi, most)
