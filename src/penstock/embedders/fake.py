"""An embedder without a model, for tests and simulations. It hashes words to directions, so texts that share words have
similar vectors. The same text gives the same vector on every machine."""

import hashlib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.embedders.base import Model, unit
from penstock.model.items import Vector, Vectors

_WORD = re.compile(r"\w+|[^\w\s]")


class FakeEmbedder:
    target = "fake"

    def __init__(self, dimensions: int = 16, *, max_texts: int = 4096) -> None:
        self._model = Model(f"fake:{dimensions}:1", dimensions, max_texts=max_texts)

    @property
    def model(self) -> Model:
        return self._model

    async def warm_up(self) -> None:
        """Does nothing."""

    async def embed_query(self, text: str) -> Vector:
        vector: Vector = self._embed([text])[0]
        return vector

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts)

    def _embed(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), self.model.dimensions))
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()):
                vectors[row] += self._direction(word)
        return unit(vectors)

    def _direction(self, word: str) -> NDArray[np.float64]:
        digest = hashlib.shake_128(word.encode()).digest(self.model.dimensions)
        return np.frombuffer(digest, dtype=np.uint8).astype(np.float64) - 127.5
