"""The default embedder: the vocabulary of `wordllama`, averaged over a text's tokens. Offline, no model server.

Only the weights and the tokenizer of the package are used. Importing it takes 0.7 s and configures logging, and its own
`embed` pads every text to the longest of the batch. Texts are not truncated, as there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.model.items import Vectors
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.embedders.wordllama_model import Model

_MODEL, _DIMENSIONS = "l2_supercat", 256

# Tokenizer threads want many texts at once.
_TOKENISED = 256


class WordLlamaEmbedder:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._model: Model | None = None

    @property
    def fingerprint(self) -> str:
        return f"wordllama:{_MODEL}:{_DIMENSIONS}:1"

    @property
    def dimensions(self) -> int:
        return _DIMENSIONS

    async def warm_up(self) -> None:
        await self.embed(["warm"])

    async def embed(self, texts: Sequence[str]) -> Vectors:
        parts = []
        for start in range(0, len(texts), _TOKENISED):
            part = texts[start : start + _TOKENISED]
            # Embedding takes some four times as long as other work on the same bytes; loading is never quick.
            size = 4 * sum(map(len, part)) if self._model is not None else 1 << 30
            parts.append(await self._runtime.run_sized("cpu", size, self._embed, part))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _embed(self, texts: Sequence[str]) -> Vectors:
        if self._model is None:
            from penstock.embedders.wordllama_model import load

            self._model = load(_MODEL, _DIMENSIONS)
        return self._model.embed(texts)


def _joined(parts: list[Vectors]) -> Vectors:
    import numpy as np

    return np.concatenate([np.zeros((0, _DIMENSIONS), dtype=np.float32), *parts])
