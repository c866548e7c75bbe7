"""Images with text, and PDFs without a text layer."""

import io
from collections.abc import Sequence
from typing import Any

from tests.kit.pdfs import Pages


def picture(*lines: str, mode: str = "L") -> Any:
    """A small image with a few lines of text."""
    from PIL import Image, ImageDraw, ImageFont

    made = Image.new("L", (1000, 60 * len(lines) + 60), 255)
    pen = ImageDraw.Draw(made)
    for number, line in enumerate(lines):
        pen.text((40, 40 + 60 * number), line, fill=0, font=ImageFont.load_default(size=36))
    return made.convert(mode)


def encoded(image: Any, kind: str, **options: Any) -> bytes:
    made = io.BytesIO()
    image.save(made, kind, **options)
    return made.getvalue()


def tiff(*pages: Sequence[str], mode: str = "1", compression: str = "group4") -> bytes:
    first, *others = (picture(*lines, mode=mode) for lines in pages)
    return encoded(first, "TIFF", save_all=True, append_images=others, compression=compression, dpi=(200, 200))


def scan(*pages: Sequence[str] | bytes) -> bytes:
    """A PDF: lines of text are a scanned page; bytes are the content of a page with a text layer. In the content, `/I`
    is the image of the first scanned page."""
    made = Pages()
    images: list[int] = []
    contents: list[bytes] = []
    for one in pages:
        if isinstance(one, bytes):
            contents.append(one)
            continue
        grey = picture(*one)
        entries = b"/Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceGray /BitsPerComponent 8"
        images.append(made.stream(grey.tobytes(), entries % grey.size))
        height = 500 * grey.height // grey.width
        contents.append(b"q 500 0 0 %d 50 %d cm /I%d Do Q" % (height, 760 - height, len(images)))
    names = b" ".join(b"/I%d %d 0 R" % (number, image) for number, image in enumerate(images, 1))
    made.resources = b"/XObject <<%b>>" % names
    made.contents = contents
    return made.write()


def words(number: int) -> list[str]:
    return [f"Page {number} is about marvel{number}", "and it was scanned."]
