"""A tiny BERT made on the spot, as safetensors and as ONNX: real files, real arithmetic, no training."""

import json
from pathlib import Path

import numpy as np

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *["water", "pipe", "carries", "the", "judge", "court", "sat", "seven", "in", "text", "number", "flows", "down"],
]
WIDTH, INNER = 16, 32


def tiny_cross_encoder(folder: Path, weights: dict[str, float]) -> Path:
    """ONNX, without a config. The score of a pair is the mean of the weights of its words; other words weigh 0."""
    from onnx import TensorProto, helper, numpy_helper, save

    folder.mkdir(parents=True)
    _tokenizer(folder)
    of_words = np.array([[weights.get(word, 0.0)] for word in WORDS], np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["words", "input_ids"], ["found"]),
            helper.make_node("ReduceMean", ["found"], ["logits"], axes=[1], keepdims=0),
        ],
        "pair",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["texts", "tokens"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["texts", 1])],
        [numpy_helper.from_array(of_words, "words")],
    )
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(folder / "model.onnx")
    )
    return folder


def tiny_bert(folder: Path, *, onnx: bool = False, positions: int = 64, classifier: bool = False) -> Path:
    folder.mkdir(parents=True)
    random = np.random.default_rng(7)
    config = {
        "model_type": "bert", "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": positions, "layer_norm_eps": 1e-12,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    _tokenizer(folder)

    def weights(*shape: int) -> "np.typing.NDArray[np.float32]":
        return random.normal(0, 0.3, shape).astype(np.float32)

    # Words dominate, so that texts with common words are near to each other.
    tensors = {
        "embeddings.word_embeddings.weight": 4 * weights(len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": 0.01 * weights(positions, WIDTH),
        "embeddings.token_type_embeddings.weight": 0.01 * weights(2, WIDTH),
    }
    shapes = {f"attention.self.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")}
    shapes |= {
        "attention.output.dense": (WIDTH, WIDTH),
        "intermediate.dense": (INNER, WIDTH),
        "output.dense": (WIDTH, INNER),
    }
    for name, shape in shapes.items():
        tensors[f"encoder.layer.0.{name}.weight"] = 0.2 * weights(*shape)
        tensors[f"encoder.layer.0.{name}.bias"] = 0.2 * weights(shape[0])
    for name in (
        "embeddings.LayerNorm",
        "encoder.layer.0.attention.output.LayerNorm",
        "encoder.layer.0.output.LayerNorm",
    ):
        tensors |= {f"{name}.weight": np.ones(WIDTH, np.float32), f"{name}.bias": np.zeros(WIDTH, np.float32)}
    if classifier:
        tensors |= {"pooler.dense.weight": weights(WIDTH, WIDTH), "pooler.dense.bias": weights(WIDTH)}
        tensors |= {"classifier.weight": weights(1, WIDTH), "classifier.bias": weights(1)}
    if onnx:
        _onnx(folder / "model.onnx", tensors["embeddings.word_embeddings.weight"])
    else:
        from safetensors.numpy import save_file

        save_file(tensors, folder / "model.safetensors")
    return folder


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))


def _onnx(path: Path, vectors: "np.typing.NDArray[np.float32]") -> None:
    """The vectors of the words, without further layers."""
    from onnx import TensorProto, helper, numpy_helper, save

    graph = helper.make_graph(
        [helper.make_node("Gather", ["words", "input_ids"], ["last_hidden_state"])],
        "words",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["texts", "tokens"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["texts", "tokens"]),
        ],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["texts", "tokens", WIDTH])],
        [numpy_helper.from_array(vectors, "words")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    save(made, str(path))
