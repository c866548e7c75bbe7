"""Facts about models that many people use. Other models are probed, or described by the settings."""

import msgspec


class Known(msgspec.Struct, frozen=True):
    dimensions: int | None = None
    max_input: int = 8192
    """Maximum number of tokens of one text."""
    price: float | None = None
    """US dollars per million tokens, as OpenAI published it on its pages about the models in 2026; the setting `prices`
    overrides it. None: unknown. It holds for OpenAI itself, not for others that offer the same model."""
    shortens: bool = False
    """Whether the provider can return vectors with fewer dimensions."""
    document_prefix: str = ""
    query_prefix: str = ""


_PASSAGES = "Represent this sentence for searching relevant passages: "

MODELS: dict[str, Known] = {
    "text-embedding-3-small": Known(1536, 8191, 0.02, shortens=True),
    "text-embedding-3-large": Known(3072, 8191, 0.13, shortens=True),
    "text-embedding-ada-002": Known(1536, 8191),
    "embed-v4.0": Known(1536, 128_000, shortens=True),
    "embed-english-v3.0": Known(1024, 512),
    "embed-multilingual-v3.0": Known(1024, 512),
    "embed-english-light-v3.0": Known(384, 512),
    "embed-multilingual-light-v3.0": Known(384, 512),
    "nomic-embed-text": Known(768, 2048, document_prefix="search_document: ", query_prefix="search_query: "),
    "mxbai-embed-large": Known(1024, 512, query_prefix=_PASSAGES),
    "snowflake-arctic-embed": Known(1024, 512, query_prefix=_PASSAGES),
    "all-minilm": Known(384, 256),
    "bge-m3": Known(1024, 8192),
    "bge-small-en-v1.5": Known(384, 512, query_prefix=_PASSAGES),
    "bge-base-en-v1.5": Known(768, 512, query_prefix=_PASSAGES),
    "bge-large-en-v1.5": Known(1024, 512, query_prefix=_PASSAGES),
    "bge-large": Known(1024, 512, query_prefix=_PASSAGES),
}


def of(model: str) -> Known:
    """What is known about a model, with or without a tag (`nomic-embed-text:latest`) or a folder (`org/model`)."""
    name = model.rpartition("/")[2].partition(":")[0].lower()
    return MODELS.get(name, Known())
