"""The metadata of a document comes from several origins: the submit, the extractor, and enrich steps."""

from collections.abc import Sequence
from typing import Any

import msgspec


def merged(origins: Sequence[str | None]) -> dict[str, Any]:
    """The metadata of a document, from the JSON of each origin, the most important one first: its keys hide the same
    keys of later ones."""
    result: dict[str, Any] = {}
    for text in reversed(origins):
        if text is not None and text != "{}":
            result |= msgspec.json.decode(text)
    return result
