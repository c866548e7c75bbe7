"""The default embedder: the vocabulary of `wordllama`, averaged over a text's tokens. Offline, no model server.

Only the weights and the tokenizer of the package are used. Importing it takes 0.7 s and configures logging, and its own
`embed` pads every text to the longest of the batch. Texts are not truncated, as there.
"""

import importlib.util
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.embedders.base import unit
from penstock.errors import ConfigError
from penstock.model.items import Vectors
from penstock.runtime import Runtime

_MODEL, _DIMENSIONS = "l2_supercat", 256

# Tokenizer threads want many texts at once; the count matrix of a slice should stay small.
_TOKENISED, _POOLED = 256, 64


class _Model(NamedTuple):
    rows: NDArray[np.float32]
    tokenizer: Any


class WordLlamaEmbedder:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._model: _Model | None = None

    @property
    def fingerprint(self) -> str:
        return f"wordllama:{_MODEL}:{_DIMENSIONS}:1"

    @property
    def dimensions(self) -> int:
        return _DIMENSIONS

    async def warm_up(self) -> None:
        await self.embed(["warm"])

    async def embed(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), _DIMENSIONS), dtype=np.float32)
        for start in range(0, len(texts), _TOKENISED):
            part = list(texts[start : start + _TOKENISED])
            # Embedding takes some four times as long as other work on the same bytes; loading is never quick.
            size = 4 * sum(map(len, part)) if self._model is not None else 1 << 30
            vectors[start : start + len(part)] = await self._runtime.run_sized("cpu", size, self._embed, part)
        return vectors

    def _embed(self, texts: list[str]) -> Vectors:
        if self._model is None:
            self._model = _load()
        rows, tokenizer = self._model
        tokens = [encoded.ids for encoded in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        return np.concatenate(
            [_pooled(rows, tokens[start : start + _POOLED]) for start in range(0, len(tokens), _POOLED)]
        )


def _load() -> _Model:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    spec = importlib.util.find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the embedder wordllama is not installed: pip install wordllama")
    folder = Path(spec.submodule_search_locations[0])
    weights = load_file(folder / "weights" / f"{_MODEL}_{_DIMENSIONS}.safetensors")["embedding.weight"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / f"{_MODEL}_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return _Model(np.ascontiguousarray(weights, dtype=np.float32), tokenizer)


def _pooled(rows: NDArray[np.float32], tokens: list[list[int]]) -> Vectors:
    """The direction of each text's mean row, as one product of a count matrix with the rows that occur.

    Few long calls: a call a text hands the interpreter lock over a hundred times as often beside a busy thread."""
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    ids = np.fromiter(chain.from_iterable(tokens), dtype=np.int64, count=int(lengths.sum()))
    np.minimum(ids, len(rows) - 1, out=ids)
    column = np.zeros(len(rows), dtype=np.int64)
    column[ids] = 1
    used = np.flatnonzero(column)
    column[used] = np.arange(len(used))
    cells = column[ids] + np.repeat(np.arange(len(tokens)) * len(used), lengths)
    counts = np.bincount(cells, minlength=len(tokens) * len(used)).reshape(len(tokens), len(used))
    return unit(counts.astype(np.float32) @ rows[used])
