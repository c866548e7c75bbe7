"""`embedder:` in the settings → an adapter."""

from penstock.embedders.base import Embedder
from penstock.errors import ConfigError
from penstock.runtime import Runtime


def choose_embedder(name: str, runtime: Runtime) -> Embedder:
    if name == "wordllama":
        from penstock.embedders.wordllama import WordLlamaEmbedder

        return WordLlamaEmbedder(runtime)
    if name == "fake":
        from penstock.embedders.fake import FakeEmbedder

        return FakeEmbedder()
    raise ConfigError(f"embedder {name!r}: use wordllama (or fake, for tests)")
