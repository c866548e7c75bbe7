"""Compute the vectors of tokens: by ONNX Runtime, or for the safetensors of a BERT in numpy."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


class Encoder(Protocol):
    alone: bool
    """Whether each text must be encoded alone, because its vectors would depend on the others in its batch."""

    def encode(self, ids: Ids, mask: Ids, types: Ids) -> Floats:
        """The vectors of the tokens (texts, tokens, dimensions), or of whole texts (texts, dimensions)."""

    def classify(self, ids: Ids, mask: Ids, types: Ids) -> Floats:
        """The answers of the last layer for whole texts (texts, classes). A cross-encoder has one class."""


def load(weights: Path, config: dict[str, Any]) -> Encoder:
    return BertEncoder(weights, config) if weights.suffix == ".safetensors" else OnnxEncoder(weights)


class OnnxEncoder:
    def __init__(self, weights: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ConfigError("ONNX models need ONNX Runtime: pip install 'penstock-rag[onnx]'") from error
        options = onnxruntime.SessionOptions()
        # Threads that spin while they wait take the processor from the other work of the machine.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                str(weights), options, providers=onnxruntime.get_available_providers()
            )
        except Exception as error:
            raise ConfigError(f"{weights} cannot be loaded: {error}") from error
        self._inputs = {one.name for one in self._session.get_inputs()}
        # 8-bit models scale each batch by its largest value.
        self.alone = b"DynamicQuantizeLinear" in weights.read_bytes()

    def encode(self, ids: Ids, mask: Ids, types: Ids) -> Floats:
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        found = self._session.run(None, {name: value for name, value in given.items() if name in self._inputs})
        vectors: Floats = np.asarray(found[0], dtype=np.float32)
        return vectors

    def classify(self, ids: Ids, mask: Ids, types: Ids) -> Floats:
        found = self.encode(ids, mask, types)
        # One class may come without its axis. The vectors of tokens are no classes: their width is reported.
        return found[:, None] if found.ndim == 1 else found.reshape(len(ids), -1)


class BertEncoder:
    alone = False

    def __init__(self, weights: Path, config: dict[str, Any]) -> None:
        from safetensors.numpy import load_file

        if config.get("model_type") != "bert":
            raise ConfigError(f"{weights}: only BERT models can be read without ONNX, not {config.get('model_type')!r}")
        found = load_file(weights)
        prefix = "bert." if any(name.startswith("bert.") for name in found) else ""
        self._weights = {name.removeprefix(prefix): value.astype(np.float32) for name, value in found.items()}
        self._layers = int(config["num_hidden_layers"])
        self._heads = int(config["num_attention_heads"])
        self._epsilon = float(config.get("layer_norm_eps", 1e-12))

    def encode(self, ids: Ids, mask: Ids, types: Ids) -> Floats:
        w = self._weights
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types]
        x = self._normal(x + w["embeddings.position_embeddings.weight"][: ids.shape[1]], "embeddings.LayerNorm")
        hidden = np.where(mask[:, None, None, :] > 0, np.float32(0), np.float32(-1e9))
        for number in range(self._layers):
            x = self._layer(x, hidden, f"encoder.layer.{number}.")
        return x

    def classify(self, ids: Ids, mask: Ids, types: Ids) -> Floats:
        if "classifier.weight" not in self._weights:
            raise ConfigError("this BERT has no classifier: it makes vectors, and cannot rerank")
        first = self.encode(ids, mask, types)[:, 0]
        return self._linear(np.tanh(self._linear(first, "pooler.dense")), "classifier")

    def _layer(self, x: Floats, hidden: Floats, name: str) -> Floats:
        texts, tokens, width = x.shape
        size = width // self._heads

        def heads(which: str) -> Floats:
            y = self._linear(x, f"{name}attention.self.{which}")
            return y.reshape(texts, tokens, self._heads, size).transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").transpose(0, 1, 3, 2) / np.float32(np.sqrt(size)) + hidden
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ heads("value")
        mixed = mixed.transpose(0, 2, 1, 3).reshape(texts, tokens, width)
        x = self._normal(x + self._linear(mixed, f"{name}attention.output.dense"), f"{name}attention.output.LayerNorm")
        inner = _gelu(self._linear(x, f"{name}intermediate.dense"))
        return self._normal(x + self._linear(inner, f"{name}output.dense"), f"{name}output.LayerNorm")

    def _linear(self, x: Floats, name: str) -> Floats:
        y: Floats = x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return y

    def _normal(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(self._epsilon))
        y: Floats = centred / scale * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return y


def _gelu(x: Floats) -> Floats:
    """The exact form. The error function is that of Abramowitz and Stegun, 7.1.26, with an error below 2e-7."""
    z = np.abs(x) / np.float32(np.sqrt(2))
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = np.sign(x) * (1 - series * np.exp(-z * z))
    y: Floats = (0.5 * x * (1 + erf)).astype(np.float32)
    return y
