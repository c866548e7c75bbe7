"""Compute vectors with the weights and the tokenizer of wordllama. This module is loaded when the first text is
embedded."""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.embedders.base import unit
from penstock.model.items import Vectors

# Texts per slice, so that the count matrix of a slice stays small.
_ONE_THREAD = 262_144
"""OpenBLAS uses one thread for a product with at most this many multiplications."""
_POOLED = 64


class Weights:
    def __init__(self, rows: NDArray[np.float32], tokenizer: Any) -> None:
        self._rows = rows
        self._tokenizer = tokenizer

    def embed(self, texts: Sequence[str]) -> Vectors:
        tokens = [encoded.ids for encoded in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        return np.concatenate(
            [_pooled(self._rows, tokens[start : start + _POOLED]) for start in range(0, len(tokens), _POOLED)]
        )

    def density(self, text: str) -> float:
        """The characters of a text for each of its tokens."""
        return len(text) / max(1, len(self._tokens([text])[0]))

    def relevance(self, query: str, texts: Sequence[str]) -> list[float]:
        """For each text, the mean over the query's tokens of the best cosine with a token of the text, weighted by the
        length of the token's vector: long vectors belong to rare words."""
        asked, *tokens = (np.unique(np.asarray(ids, dtype=np.int64)) for ids in self._tokens([query, *texts]))
        if not len(asked):
            return [0.0] * len(texts)
        used = np.unique(np.concatenate(tokens)) if texts else asked
        lengths = np.linalg.norm(self._rows[asked], axis=1)
        cosines = _product(unit(self._rows[asked]), unit(self._rows[used]))
        total = float(lengths.sum()) or 1.0
        found = []
        for ids in tokens:
            best = cosines[:, np.searchsorted(used, ids)].max(axis=1) if len(ids) else np.zeros(len(asked))
            found.append(min(1.0, max(0.0, float(lengths @ best) / total)))
        return found

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        last = len(self._rows) - 1
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[min(token, last) for token in one.ids] for one in encoded]


@cache
def load(weights_file: Path, tokenizer_file: Path) -> Weights:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    weights = load_file(weights_file)["embedding.weight"]
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return Weights(np.ascontiguousarray(weights, dtype=np.float32), tokenizer)


def _product(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    """The product with the transpose of `right`, in parts that are too small for the threads of the BLAS library. Its
    threads wait for each other in a loop, which takes processor time from the other threads of a search."""
    columns = max(1, _ONE_THREAD // max(1, left.size))
    parts = [left @ right[start : start + columns].T for start in range(0, len(right), columns)]
    return np.concatenate(parts, axis=1)


def _pooled(rows: NDArray[np.float32], tokens: list[list[int]]) -> Vectors:
    """The unit vector of each text's mean row, as one product of a count matrix with the rows that occur.

    It makes a few long calls. With one call per text, the interpreter lock would be passed a hundred times as often
    while another thread is busy."""
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
