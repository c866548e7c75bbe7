"""A sentence-embedding model in a local folder: ONNX, or the safetensors of a BERT. It uses no network and no torch."""

from collections.abc import Sequence
from functools import cached_property

from penstock.embedders.base import Model, unit
from penstock.embedders.folder import ModelFolder
from penstock.model.items import Vector, Vectors
from penstock.runtime import Runtime

BATCH = 32
"""Texts that are encoded together. They are sorted by length, so that little is padded."""


class LocalEmbedder:
    def __init__(self, files: ModelFolder, runtime: Runtime) -> None:
        self._files, self._runtime = files, runtime

    @property
    def target(self) -> str:
        return f"onnx:{self._files.name}"

    @cached_property
    def model(self) -> Model:
        files = self._files
        return Model(f"onnx:{files.name}:{files.dimensions}:{files.digest}", files.dimensions, max_texts=256)

    async def warm_up(self) -> None:
        await self.embed_query("warm")

    async def embed_query(self, text: str) -> Vector:
        vector: Vector = (await self._run([self._files.prefixes[1] + text]))[0]
        return vector

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        found = np.zeros((len(texts), self.model.dimensions), dtype=np.float32)
        filled = [at for at, text in enumerate(texts) if text.strip()]
        if filled:
            found[filled] = await self._run([self._files.prefixes[0] + texts[at] for at in filled])
        return found

    async def _run(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        # Small calls, so that other work of the thread is not kept waiting.
        parts = [
            await self._runtime.run_blocking("cpu", self._embed, texts[at : at + BATCH])
            for at in range(0, len(texts), BATCH)
        ]
        joined: Vectors = np.concatenate(parts)
        return joined

    def _embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        tokens = [encoding.ids for encoding in self._files.tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(texts)), key=lambda at: len(tokens[at]))
        size = 1 if self._files.encoder.alone else 8
        found = np.zeros((len(texts), self._files.dimensions), dtype=np.float32)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            found[part] = self._pooled([tokens[at] for at in part])
        return unit(found)

    def _pooled(self, tokens: Sequence[Sequence[int]]) -> Vectors:
        import numpy as np

        longest = max(1, *map(len, tokens))
        ids = np.zeros((len(tokens), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, one in enumerate(tokens):
            ids[row, : len(one)] = one
            mask[row, : len(one)] = 1
        vectors = self._files.encoder.encode(ids, mask, np.zeros_like(ids))
        if vectors.ndim == 2:
            return vectors
        if self._files.first_token:
            first: Vectors = vectors[:, 0]
            return first
        weight = mask[:, :, None].astype(np.float32)
        mean: Vectors = (vectors * weight).sum(axis=1) / np.maximum(weight.sum(axis=1), 1)
        return mean
