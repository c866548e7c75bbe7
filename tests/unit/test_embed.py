import importlib.util
import logging
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.embedders import wordllama_model
from penstock.embedders.fake import FakeEmbedder
from penstock.embedders.wordllama import WordLlamaEmbedder
from penstock.errors import ConfigError
from penstock.runtime import Runtime

TEXTS = [
    "Water falls.",
    "The penstock carries water from the reservoir to the turbine. " * 30,
    "日本語のテキストと emoji 🎉 und Umlaute äöü",
    "x",
    "a " * 3000,
]


async def test_vectors_equal_those_of_the_package() -> None:
    level, handlers = logging.root.level, list(logging.root.handlers)
    import wordllama  # type: ignore[import-untyped]

    logging.root.setLevel(level)
    logging.root.handlers[:] = handlers
    theirs = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    runtime = Runtime()
    ours = await WordLlamaEmbedder(runtime).embed_documents(TEXTS * 70)
    runtime.close()
    assert np.abs(ours - theirs.embed(TEXTS * 70, norm=True)).max() < 1e-5


async def test_nothing_is_loaded_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordllama_model, "load", lambda name, dimensions: pytest.fail("loaded too early"))
    runtime = Runtime()
    embedder = WordLlamaEmbedder(runtime)
    assert (await embedder.embed_documents([])).shape == (0, embedder.model.dimensions)
    runtime.close()


async def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordllama", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    runtime = Runtime()
    with pytest.raises(ConfigError, match="pip install wordllama"):
        await WordLlamaEmbedder(runtime).embed_documents(["text"])
    runtime.close()


async def test_texts_that_share_words_are_near_in_the_fake() -> None:
    near, other, far = await FakeEmbedder(64).embed_documents(
        ["red green blue", "blue red green yellow", "one two three"]
    )
    assert near @ other > 0.7 > near @ far
