"""What every embedder keeps."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from tests.kit import embedding_server
from tests.kit.models import tiny_bert

from penstock.embedders import wordllama
from penstock.embedders.base import Embedder
from penstock.embedders.fake import FakeEmbedder
from penstock.embedders.folder import ModelFolder
from penstock.embedders.local import LocalEmbedder
from penstock.embedders.wordllama import WordLlamaEmbedder, model_files
from penstock.runtime import Runtime

TEXTS = [f"Text number {i}: water flows down the pipe. " * (i % 5 + 1) for i in range(150)]


@pytest.fixture(params=["fake", "wordllama", "openai", "azure", "ollama", "cohere", "bert", "onnx"])
async def embedder(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Embedder]:
    runtime = Runtime()
    if request.param in ("fake", "wordllama"):
        yield FakeEmbedder() if request.param == "fake" else WordLlamaEmbedder(runtime)
    elif request.param in ("bert", "onnx"):
        yield LocalEmbedder(ModelFolder(tiny_bert(tmp_path / "tiny", onnx=request.param == "onnx")), runtime)
    else:
        with embedding_server.serving() as server:
            made = embedding_server.make(request.param, server, runtime)
            yield made
            await made.close()
    runtime.close()


async def test_one_unit_vector_a_text(embedder: Embedder) -> None:
    vectors = await embedder.embed_documents(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.model.dimensions)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


async def test_vectors_are_in_the_order_of_the_texts(embedder: Embedder) -> None:
    forward, backward = await embedder.embed_documents(TEXTS), await embedder.embed_documents(TEXTS[::-1])
    assert np.allclose(forward, backward[::-1], atol=1e-6)


async def test_the_same_text_gives_the_same_vector(embedder: Embedder) -> None:
    assert np.array_equal(await embedder.embed_documents(TEXTS), await embedder.embed_documents(TEXTS))


async def test_a_text_alone_gives_what_it_gives_in_a_batch(embedder: Embedder) -> None:
    together = await embedder.embed_documents(TEXTS)
    for i in (0, 63, 64, 149):
        assert np.allclose((await embedder.embed_documents([TEXTS[i]]))[0], together[i], atol=1e-6)


async def test_no_texts_give_no_vectors(embedder: Embedder) -> None:
    assert (await embedder.embed_documents([])).shape == (0, embedder.model.dimensions)


async def test_an_empty_text_gives_the_zero_vector(embedder: Embedder) -> None:
    vectors = await embedder.embed_documents(["", "water", ""])
    assert not vectors[0].any()
    assert not vectors[2].any()
    assert vectors[1].any()


async def test_a_query_is_one_unit_vector_in_the_space_of_the_documents(embedder: Embedder) -> None:
    query = await embedder.embed_query("water in the pipe")
    assert query.shape == (embedder.model.dimensions,)
    assert query.dtype == np.float32
    assert np.isclose(np.linalg.norm(query), 1, atol=1e-5)
    near, far = await embedder.embed_documents(["The pipe carries water.", "Seven judges sat in court."])
    assert query @ near > query @ far


async def test_a_full_call_is_answered(embedder: Embedder) -> None:
    """A call may hold `max_texts` texts: callers fill it up to there."""
    many = [TEXTS[i % len(TEXTS)] for i in range(embedder.model.max_texts)]
    vectors = await embedder.embed_documents(many)
    assert vectors.shape == (len(many), embedder.model.dimensions)
    assert np.allclose(vectors[-1], (await embedder.embed_documents(many[-1:]))[0], atol=1e-6)


async def test_warming_up_changes_nothing(embedder: Embedder) -> None:
    model = embedder.model
    await embedder.warm_up()
    await embedder.warm_up()
    assert embedder.model == model


def test_the_model_says_its_limits_and_its_price(embedder: Embedder) -> None:
    model = embedder.model
    assert model.max_texts >= 1
    assert model.max_tokens is None or model.max_tokens >= 1
    assert (model.price == 0) == (not model.paid), "what is free costs nothing, what is paid may have no known price"
    assert model.fingerprint not in model.former_names


def test_a_target_is_a_name_that_can_be_shown(embedder: Embedder) -> None:
    assert embedder.target
    assert embedder.target.isprintable()
    assert len(embedder.target) <= 200


def test_the_fingerprint_names_the_dimensions(embedder: Embedder) -> None:
    assert str(embedder.model.dimensions) in embedder.model.fingerprint.split(":")


def test_a_fingerprint_names_weights_and_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    ours = WordLlamaEmbedder(runtime)
    assert ours.model.former_names == ("wordllama:l2_supercat:256:1",), "what existing collections are bound to"
    names = {ours.model.fingerprint}
    for changed in range(2):
        copies = [Path(shutil.copy(file, tmp_path)) for file in model_files("l2_supercat", 256)]
        with copies[changed].open("r+b") as file:
            file.seek(-9, os.SEEK_END)
            file.write(b"x")
        monkeypatch.setattr(wordllama, "model_files", lambda *model, copies=copies: tuple(copies))
        other = WordLlamaEmbedder(runtime)
        assert other.model.former_names == ()
        names.add(other.model.fingerprint)
    assert len(names) == 3
    runtime.close()
