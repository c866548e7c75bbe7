"""Cut pages out of a PDF, in a parser process, for a provider that reads them. Pages with too many bytes become JPEG
images."""

import io
from typing import Any, BinaryIO

import pypdfium2

from penstock.errors import Permanent

RESOLUTIONS = (200, 150, 110, 80)
"""Dots per inch, tried in order until the pages are small enough."""
QUALITY = 75
LONGEST_SIDE = 6000
"""Pixels of the longer side of a page, whatever its size."""


def read(document: BinaryIO, password: str | None, first: int, count: int, most: int) -> dict[str, Any]:
    """The pages from `first` on, as a PDF of at most `most` bytes if possible. `reduced`: the number of bytes without
    reduction, if the pages became images."""
    try:
        source = pypdfium2.PdfDocument(document.read(), password=password)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise Permanent("it is locked: submit it with its password", reason="encrypted") from None
        raise Permanent("it is damaged beyond reading: get another copy, and ingest that", reason="damaged") from None
    try:
        total = len(source)
        pages = list(range(first, min(first + count, total)))
        if not pages:
            return {"total": total, "count": 0, "data": b"", "reduced": None}
        part = pypdfium2.PdfDocument.new()
        part.import_pages(source, pages)
        data = _saved(part)
        before, size = len(data), len(data)
        for resolution in RESOLUTIONS:
            if size <= most:
                break
            data = _as_images(source, pages, resolution)
            size = len(data)
        return {"total": total, "count": len(pages), "data": data, "reduced": None if size == before else before}
    finally:
        source.close()


def _as_images(source: Any, pages: list[int], resolution: int) -> bytes:
    made = pypdfium2.PdfDocument.new()
    for index in pages:
        page = source[index]
        width, height = page.get_size()
        scale = min(resolution / 72, LONGEST_SIDE / max(width, height, 1))
        image = page.render(scale=scale).to_pil().convert("RGB")
        jpeg = io.BytesIO()
        image.save(jpeg, "JPEG", quality=QUALITY)
        jpeg.seek(0)
        picture = pypdfium2.PdfImage.new(made)
        picture.load_jpeg(jpeg, inline=True)
        picture.set_matrix(pypdfium2.PdfMatrix().scale(width, height))
        new = made.new_page(width, height)
        new.insert_obj(picture)
        new.gen_content()
    return _saved(made)


def _saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    document.close()
    return buffer.getvalue()
