"""What every embedder keeps."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.embedders import wordllama
from penstock.embedders.base import Embedder
from penstock.embedders.fake import FakeEmbedder
from penstock.embedders.wordllama import WordLlamaEmbedder, model_files
from penstock.runtime import Runtime

TEXTS = [f"Text number {i}: water flows down the pipe. " * (i % 5 + 1) for i in range(150)]


@pytest.fixture(params=["fake", "wordllama"])
def embedder(request: pytest.FixtureRequest) -> Iterator[Embedder]:
    runtime = Runtime()
    yield FakeEmbedder() if request.param == "fake" else WordLlamaEmbedder(runtime)
    runtime.close()


async def test_one_unit_vector_a_text(embedder: Embedder) -> None:
    vectors = await embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimensions)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


async def test_vectors_are_in_the_order_of_the_texts(embedder: Embedder) -> None:
    forward, backward = await embedder.embed(TEXTS), await embedder.embed(TEXTS[::-1])
    assert np.allclose(forward, backward[::-1], atol=1e-6)


async def test_the_same_text_gives_the_same_vector(embedder: Embedder) -> None:
    assert np.array_equal(await embedder.embed(TEXTS), await embedder.embed(TEXTS))


async def test_a_text_alone_gives_what_it_gives_in_a_batch(embedder: Embedder) -> None:
    together = await embedder.embed(TEXTS)
    for i in (0, 63, 64, 149):
        assert np.allclose((await embedder.embed([TEXTS[i]]))[0], together[i], atol=1e-6)


async def test_no_texts_give_no_vectors(embedder: Embedder) -> None:
    assert (await embedder.embed([])).shape == (0, embedder.dimensions)


async def test_an_empty_text_gives_the_zero_vector(embedder: Embedder) -> None:
    vectors = await embedder.embed(["", "water", ""])
    assert not vectors[0].any()
    assert not vectors[2].any()
    assert vectors[1].any()


def test_the_fingerprint_names_the_dimensions(embedder: Embedder) -> None:
    assert str(embedder.dimensions) in embedder.fingerprint.split(":")


def test_a_fingerprint_names_weights_and_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    ours = WordLlamaEmbedder(runtime)
    assert ours.former_names == ("wordllama:l2_supercat:256:1",), "what existing collections are bound to"
    names = {ours.fingerprint}
    for changed in range(2):
        copies = [Path(shutil.copy(file, tmp_path)) for file in model_files("l2_supercat", 256)]
        with copies[changed].open("r+b") as file:
            file.seek(-9, os.SEEK_END)
            file.write(b"x")
        monkeypatch.setattr(wordllama, "model_files", lambda *model, copies=copies: tuple(copies))
        other = WordLlamaEmbedder(runtime)
        assert other.former_names == ()
        names.add(other.fingerprint)
    assert len(names) == 3
    runtime.close()
