"""The files of a local model, as sentence-transformers and ONNX exports lay them out."""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.embedders import known
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.embedders.encoders import Encoder

WEIGHTS = ("model.onnx", "onnx/model.onnx", "model_quantized.onnx", "onnx/model_quantized.onnx", "model.safetensors")
SMALL = (
    "config.json",
    "tokenizer.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
"""What a model needs besides its weights. Only the tokenizer is always required, and for vectors the config too."""
TOKENS = 512
"""Of a text or pair, if no file says how many the model can read."""
_CLS = ("bge-", "bge_", "snowflake-arctic", "mxbai", "gte-")
"""Beginnings of the names of models whose first token stands for the text."""


class ModelFolder:
    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.folder = folder
        self.name = name or folder.name
        if not (folder / "tokenizer.json").is_file():
            raise ConfigError(f"the model folder {folder} has no tokenizer.json")

    @cached_property
    def weights(self) -> Path:
        for name in WEIGHTS:
            if (self.folder / name).is_file():
                return self.folder / name
        raise ConfigError(f"the model folder {self.folder} has no weights: {', '.join(WEIGHTS)}")

    @cached_property
    def config(self) -> dict[str, Any]:
        return self._json("config.json")

    @property
    def dimensions(self) -> int:
        size = self.stated_dimensions
        if size is None:
            raise ConfigError(f"the model folder {self.folder} has no config.json with hidden_size")
        return size

    @property
    def stated_dimensions(self) -> int | None:
        size = self.config.get("hidden_size") or self.config.get("dim")
        return size if isinstance(size, int) else None

    @property
    def max_tokens(self) -> int:
        """Longer texts are cut here, as the authors of the model do."""
        own = self._json("sentence_bert_config.json").get("max_seq_length")
        positions = self.config.get("max_position_embeddings")
        found = [value for value in (own, positions) if isinstance(value, int) and value > 0]
        return min([*found, 8192]) if found else TOKENS

    @property
    def first_token(self) -> bool:
        """Whether the vector of the first token stands for the text, instead of the mean of all."""
        pooling = self._json("1_Pooling/config.json")
        if pooling:
            return bool(pooling.get("pooling_mode_cls_token"))
        return self._known_name.startswith(_CLS)

    @property
    def prefixes(self) -> tuple[str, str]:
        """What is put in front of documents and of queries."""
        prompts = self._json("config_sentence_transformers.json").get("prompts") or {}
        if isinstance(prompts, dict) and prompts.get("query"):
            return str(prompts.get("document") or ""), str(prompts["query"])
        facts = known.of(self._known_name)
        return facts.document_prefix, facts.query_prefix

    @cached_property
    def encoder(self) -> "Encoder":
        """The loaded weights."""
        from penstock.embedders.encoders import load

        return load(self.weights, self.config)

    @property
    def is_loaded(self) -> bool:
        return "encoder" in vars(self)

    @cached_property
    def tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.enable_truncation(self.max_tokens)
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def digest(self) -> str:
        """A hash of everything that affects the vectors."""
        digest = hashlib.sha256()
        for path in (self.weights, *(self.folder / name for name in SMALL)):
            if path.is_file():
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()[:16]

    @property
    def _known_name(self) -> str:
        stated = str(self.config.get("_name_or_path") or "").rpartition("/")[2]
        return (stated or self.name).lower()

    def _json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            found = json.loads(path.read_bytes()) if path.is_file() else {}
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}") from error
        return found if isinstance(found, dict) else {}
