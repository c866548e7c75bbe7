"""A cross-encoder in a local folder: ONNX, or the safetensors of a BERT. It uses no network and no torch."""

from collections.abc import Sequence
from functools import cached_property

from penstock.embedders.folder import ModelFolder
from penstock.errors import ConfigError
from penstock.runtime import Runtime


class LocalReranker:
    def __init__(self, files: ModelFolder, runtime: Runtime) -> None:
        self._files, self._runtime = files, runtime

    @cached_property
    def name(self) -> str:
        return f"onnx:{self._files.name}:{self._files.digest}"

    async def warm_up(self) -> None:
        if not self._files.is_loaded:
            await self._runtime.run_blocking("cpu", self._score, "warm", "warm")

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        # One text a call, so that other work of the thread is not kept waiting. Models of 8 bits need it anyway.
        return [await self._runtime.run_blocking("cpu", self._score, query, text) for text in texts]

    def _score(self, query: str, text: str) -> float:
        import numpy as np

        pair = self._files.tokenizer.encode(query, text)
        ids = np.array([pair.ids], dtype=np.int64)
        types = np.array([pair.type_ids], dtype=np.int64)
        found = self._files.encoder.classify(ids, np.ones_like(ids), types)
        if found.shape != (1, 1):
            raise ConfigError(
                f"the model {self._files.name!r} is no cross-encoder: it returns {found.shape[-1]} numbers for a pair "
                "of texts, instead of one"
            )
        return float(found[0, 0])
