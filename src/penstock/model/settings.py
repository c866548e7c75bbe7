"""The settings of a run as one text: fingerprints of everything that decides its outcome besides the bytes.

`WHOLE:BASE,FORMAT,FORMAT,…` WHOLE covers everything. BASE covers everything but the versions of extractors, and each
FORMAT names a media type and the version of its extractor. A text without a colon is from an earlier release, which
stored WHOLE only.
"""

import hashlib
from collections.abc import Mapping

SCANNED = "+scanned"
"""Added to a media type: what reads the scanned pages of such documents."""
_KEY = 8
_BASE = 16


def join(whole: str, base: str, formats: Mapping[str, str]) -> str:
    """`formats`: the fingerprint of the extractor's version, by media type."""
    parts = (_key(media_type) + version[:_KEY] for media_type, version in sorted(formats.items()))
    return f"{whole}:{','.join((base[:_BASE], *parts))}"


def whole(text: str) -> str:
    """The fingerprint that covers everything. It stands for the text, which is stored once."""
    return text.partition(":")[0]


def same(old: str, new: str, media_type: str | None, *, scanned: bool = True) -> bool:
    """True if both have the same outcome for a document of this media type. None: the type is not known yet, so the
    versions of all extractors count. `scanned`: it may have scanned pages, so the version of OCR counts too."""
    old_whole, _, old_parts = old.partition(":")
    new_whole, _, new_parts = new.partition(":")
    if old_whole == new_whole:
        return True
    if media_type is None or not (old_parts and new_parts):
        return False
    types = [media_type, media_type + SCANNED] if scanned else [media_type]
    return all(_of(old_parts, name) == _of(new_parts, name) for name in types)


def _of(parts: str, media_type: str) -> tuple[str, list[str]]:
    base, *formats = parts.split(",")
    key = _key(media_type)
    return base, [part for part in formats if part.startswith(key)]


def _key(media_type: str) -> str:
    return hashlib.sha256(media_type.encode()).hexdigest()[:_KEY]
