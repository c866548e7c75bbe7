"""Decides when the text indexes of a Lance table are loaded whole."""

from typing import Any

from penstock.indexes.lance_upkeep import TEXT

AFTER = 4
"""Text searches after which the indexes are loaded. A command that searches once does not load them."""
MOST_BYTES = 128 * 2**20
"""Larger indexes are not loaded whole. In the cache, an index takes three times its size on disk."""


class Warmth:
    """Counts the searches since the indexes have changed."""

    def __init__(self) -> None:
        self._segments: frozenset[str] = frozenset()
        self._searches = 0
        self._small = False

    def use(self, dataset: Any) -> None:
        """Count a search of this version."""
        segments = [part for index in dataset.describe_indices() if index.name in TEXT for part in index.segments]
        names = frozenset(str(part.uuid) for part in segments)
        if names != self._segments:
            self._segments, self._searches = names, 0
            self._small = sum(part.size_bytes or 0 for part in segments) <= MOST_BYTES
        self._searches += 1

    def is_due(self) -> bool:
        if self._searches < AFTER or not self._small:
            return False
        self._small = False
        return True


def text_indexes(dataset: Any) -> list[str]:
    return [index.name for index in dataset.describe_indices() if index.name in TEXT]
