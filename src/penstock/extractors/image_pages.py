"""Decode images with Pillow, in a parser process: each becomes a grey image for OCR. A TIFF file may contain many."""

import os
from importlib import import_module
from typing import Any, BinaryIO, Literal

from penstock.errors import Permanent

LARGEST = 40_000_000
"""Pixels of the image that OCR gets. A larger one is reduced."""
_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "GIF")
MOST_IMAGES = 1_000_000
"""Images of one file that are counted."""
_RESOLUTIONS = range(70, 1201)


def read(file: BinaryIO, index: int, megapixels: int) -> tuple[int, bytes, int | None]:
    """The number of images in the file; image `index` as PGM, empty if `index` is negative; and its resolution."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    for kind in ("Tiff", "WebP"):
        # Otherwise Pillow imports the modules of all formats.
        import_module(f"PIL.{kind}ImagePlugin")

    # The size is compared with the limit below, before anything is decoded.
    Image.MAX_IMAGE_PIXELS = None
    try:
        total = max(1, count(file))
        if index < 0:
            return total, b"", None
        with Image.open(file, formats=_FORMATS) as image:
            if index:
                image.seek(index)
            _refuse_large(image.size, index, megapixels)
            dpi = _resolution(image)
            image.draft("L", (5000, 5000))
            grey = _grey(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        raise Permanent(
            f"the image is damaged and cannot be read ({error}): get another copy", reason="damaged"
        ) from error
    except (OSError, SyntaxError, ValueError, EOFError, TypeError, KeyError, IndexError, ArithmeticError) as error:
        raise Permanent(
            f"image {index + 1} is damaged and cannot be read ({error}): get another copy",
            reason="damaged",
            page=index + 1,
        ) from error
    return total, b"P5 %d %d 255\n%b" % (*grey.size, grey.tobytes()), dpi


def count(file: BinaryIO) -> int:
    """The number of images in a TIFF file; 0 for other files. Pillow cannot count them if one is damaged."""
    file.seek(0)
    head = file.read(16)
    order: Literal["little", "big"] = "little" if head[:2] == b"II" else "big"
    version = int.from_bytes(head[2:4], order)
    if head[:2] not in (b"II", b"MM") or version not in (42, 43):
        file.seek(0)
        return 0
    # The lengths of an offset, of the number of entries, and of an entry; larger in a BigTIFF file.
    wide, counted, entry = (8, 8, 20) if version == 43 else (4, 2, 12)
    at = int.from_bytes(head[8:16] if version == 43 else head[4:8], order)
    seen: set[int] = set()
    while at and at not in seen and len(seen) < MOST_IMAGES:
        file.seek(at)
        found = file.read(counted)
        if len(found) < counted:
            break
        seen.add(at)
        file.seek(int.from_bytes(found, order) * entry, os.SEEK_CUR)
        at = int.from_bytes(file.read(wide), order)
    file.seek(0)
    return len(seen)


def _refuse_large(size: tuple[int, int], index: int, megapixels: int) -> None:
    width, height = size
    if width * height > megapixels * 1_000_000:
        raise Permanent(
            f"image {index + 1} has {width:,} × {height:,} pixels, and the limit is {megapixels:,} million "
            "(limits.megapixels): raise it, then retry",
            reason="too_many_pixels",
            page=index + 1,
        )


def _resolution(image: Any) -> int | None:
    given = image.info.get("dpi")
    try:
        dpi = round(float(given[0]))
    except (TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError):
        return None
    return dpi if dpi in _RESOLUTIONS else None


def _grey(image: Any) -> Any:
    """The image in grey on white, not larger than `LARGEST`."""
    from PIL import Image

    width, height = image.size
    if width * height > LARGEST:
        image = image.reduce(int((width * height / LARGEST) ** 0.5) + 1)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        white.alpha_composite(clear)
        image = white
    elif image.mode.startswith(("I;16", "I")):
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    return image.convert("L")
