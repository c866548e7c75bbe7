"""The default embedder: the mean of the token vectors of `wordllama`. It works offline and needs no model server.

Only the weights and the tokenizer of the package are used. Importing the package takes 0.7 s and configures logging,
and its `embed` pads every text to the longest of the batch. Like the package, this embedder does not truncate texts.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.embedders.base import Model
from penstock.errors import ConfigError
from penstock.model.items import Vector, Vectors
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.embedders.wordllama_model import Weights

_MODEL, _DIMENSIONS = "l2_supercat", 256
_NAME = f"wordllama:{_MODEL}:{_DIMENSIONS}:1"
_FIRST = "461d9f720e7921ac"
"""The hash of the weights and tokenizer in use when the fingerprint was only the name of the model."""

# The threads of the tokenizer are efficient only for many texts at once.
_TOKENISED = 256


class WordLlamaEmbedder:
    target = "wordllama"

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._weights: Weights | None = None

    @cached_property
    def model(self) -> Model:
        """The fingerprint contains the hash of weights and tokenizer, because a later package may contain others."""
        fingerprint = f"{_NAME}:{digest(*model_files(_MODEL, _DIMENSIONS))}"
        former = (_NAME,) if fingerprint == f"{_NAME}:{_FIRST}" else ()
        return Model(fingerprint, _DIMENSIONS, former, static=True)

    async def warm_up(self) -> None:
        await self.embed_query("warm")

    async def embed_query(self, text: str) -> Vector:
        vector: Vector = (await self.embed_documents([text]))[0]
        return vector

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        parts = []
        for start in range(0, len(texts), _TOKENISED):
            part = texts[start : start + _TOKENISED]
            # Embedding takes about four times as long as other work on the same bytes. Loading the model is slow.
            size = 4 * sum(map(len, part)) if self._weights is not None else 1 << 30
            parts.append(await self._runtime.run_sized("cpu", size, self._embed, part))
        return parts[0] if len(parts) == 1 else _joined(parts)

    async def density(self, query: str) -> float:
        """The characters of a query for each of its tokens."""
        return await self._runtime.run_blocking("cpu", lambda: self._loaded().density(query))

    async def relevance(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text covers the tokens of the query, from 0 to 1."""
        return await self._runtime.run_blocking("cpu", lambda: self._loaded().relevance(query, texts))

    def _embed(self, texts: Sequence[str]) -> Vectors:
        return self._loaded().embed(texts)

    def _loaded(self) -> "Weights":
        if self._weights is None:
            from penstock.embedders.wordllama_model import load

            self._weights = load(*model_files(_MODEL, _DIMENSIONS))
        return self._weights


def model_files(name: str, dimensions: int) -> tuple[Path, Path]:
    """The paths of the weights and the tokenizer in the package, without importing it."""
    spec = importlib.util.find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the embedder wordllama is not installed: pip install wordllama")
    folder = Path(spec.submodule_search_locations[0])
    weights = folder / "weights" / f"{name}_{dimensions}.safetensors"
    return weights, folder / "tokenizers" / f"{name}_tokenizer_config.json"


def digest(*files: Path) -> str:
    """A hash of these files: 18 MB in 20 ms, once per process."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:16]


def _joined(parts: list[Vectors]) -> Vectors:
    import numpy as np

    return np.concatenate([np.zeros((0, _DIMENSIONS), dtype=np.float32), *parts])
