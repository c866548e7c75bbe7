"""An embedder without a model: words are hashed to directions, so texts that share words are near. For tests and
simulations; the same text gives the same vector on every machine."""

import hashlib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.embedders.base import unit
from penstock.model.items import Vectors

_WORD = re.compile(r"\w+|[^\w\s]")


class FakeEmbedder:
    def __init__(self, dimensions: int = 16) -> None:
        self._dimensions = dimensions

    @property
    def fingerprint(self) -> str:
        return f"fake:{self._dimensions}:1"

    @property
    def former_names(self) -> tuple[str, ...]:
        return ()

    @property
    def dimensions(self) -> int:
        return self._dimensions

    async def warm_up(self) -> None:
        """There is nothing to load."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), self._dimensions))
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()):
                vectors[row] += self._direction(word)
        return unit(vectors)

    def _direction(self, word: str) -> NDArray[np.float64]:
        digest = hashlib.shake_128(word.encode()).digest(self._dimensions)
        return np.frombuffer(digest, dtype=np.uint8).astype(np.float64) - 127.5
