"""Settings from penstock.yaml, then PENSTOCK_* variables, then flags; later sources override earlier ones. They are
read once and passed down."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from penstock.config_http import HttpConfig
from penstock.config_limits import MOST, QuotaConfig
from penstock.config_limits import LimitsConfig as LimitsConfig
from penstock.config_providers import LOCAL, TargetConfig, extractor_problems
from penstock.config_providers import WebhookConfig as WebhookConfig
from penstock.config_serve import ServeConfig
from penstock.config_values import GivenValues, wrong
from penstock.config_workers import ParsersConfig as ParsersConfig
from penstock.config_workers import WorkerConfig as WorkerConfig
from penstock.errors import ConfigError
from penstock.model.events import EventKind
from penstock.yaml_file import Place, suggestion

UNITS = {"characters": (1000, 200), "tokens": (512, 50)}
"""The default size and overlap of a chunk, by unit."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,99}")


class ChunkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How documents are split into chunks. Changes apply to documents that are submitted later."""

    unit: str = "characters"
    """`characters` or `tokens`."""
    size: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Maximum size of a chunk. Default: 1000 characters, or 512 tokens."""
    overlap: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """How much of a chunk the next one repeats. Default: 200 characters, or 50 tokens; at most a fifth of the size."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Size and overlap, with the defaults of the unit."""
        size, overlap = UNITS[self.unit]
        size = self.size if self.size is not None else size
        return size, self.overlap if self.overlap is not None else min(overlap, size // 5)


OCR_MODES = ("auto", "off", "always")

UNLESS_SMALL = "unless_small"


class OcrConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How scanned pages and images are read. Changes apply to documents that are submitted later."""

    mode: str = "auto"
    """`auto`: pages without a text layer, and images; `always`: every page of a PDF too; `off`: nothing."""
    languages: tuple[str, ...] = ("eng",)
    """Languages of the text, as Tesseract names them. Each one makes it slower."""
    dpi: Annotated[int, Meta(ge=70, le=600)] = 200
    """Resolution at which pages of a PDF are rendered."""
    tessdata: str | None = None
    """Folder with the language files (`*.traineddata`). Default: the folder that comes with Tesseract."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of an extract step, if they are not the default."""
        default = OcrConfig()
        found = {"ocr": self.mode, "languages": list(self.languages), "dpi": self.dpi}
        return {} if found == {"ocr": default.mode, "languages": [*default.languages], "dpi": default.dpi} else found


class CollectionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one collection, by its name."""

    chunk: ChunkConfig | None = None
    """Chunk settings of this collection. Default: the global settings."""
    ocr: OcrConfig | None = None
    """OCR settings of this collection, except for `tessdata`. Default: the global settings."""
    workflow: str | None = None
    """The workflow of this collection, by id or file."""
    params: str | None = None
    """The parameter set of this collection, by id or file."""
    extractor: str | None = None
    """The extractor of this collection. Default: the global setting."""
    embedder: str | None = None
    """The embedder of this collection. Default: the global setting. Once documents were embedded, a change
    takes effect with `penstock reindex`."""
    keep_artifacts: int | str | None = None
    """How long pages, chunks and vectors of this collection are kept. Default: the global setting."""


class RetentionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `penstock prune` and workers remove."""

    history_days: Annotated[float, Meta(gt=0, le=100_000)] = 30.0
    """Days for which replaced runs, closed dead letters and records of forced lock releases are kept. The last run of
    a document is always kept."""
    bought_days: Annotated[float, Meta(gt=0, le=100_000)] = 90.0
    """Days for which answers of paid calls (vectors, pages) are kept after their last use, so that they are not bought
    again. Those of unfinished runs are always kept."""
    bought_megabytes: Annotated[int, Meta(ge=0, le=MOST)] = 10_000
    """Total size of these answers. Above it, those that were not used for longest are removed."""
    former_index_days: Annotated[float, Meta(ge=0, le=100_000)] = 7.0
    """Days for which the former index of a collection is kept after a re-index, for `penstock reindex --undo`."""
    share_bought: bool = False
    """Whether all owners share the vectors that one of them has bought. An owner can then learn from the cost of a text
    that another owner has it too."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings."""

    home: str = ".penstock"
    """The folder for all data that no other setting places elsewhere."""
    database: str | None = None
    """The ledger: `sqlite:///FILE`, or `postgresql://…` if several machines share the work. Default: `ledger.db` in the
    home."""
    blobs: str | None = None
    """Where raw bytes and artifacts are stored: `file:///FOLDER`, a bucket (`s3://BUCKET/PREFIX`, `gs://…` or
    `az://…`), or the URL of an adapter from a package. Default: `blobs` in the home."""
    blob_cache_megabytes: Annotated[int, Meta(ge=0, le=MOST)] = 2048
    """Size of the local copies of blobs in a bucket, which parser processes read. Copies in use are kept above it."""
    small_bytes: Annotated[int, Meta(ge=0, le=65_536)] = 4096
    """Files and segments of up to this many bytes are stored in the ledger instead of as blobs; 0: none."""
    index: str | None = None
    """Where the index is stored: `lancedb:///FOLDER`; `pgvector` for the database of the ledger, or
    `postgresql://HOST/DATABASE` for another one with the extension pgvector; `qdrant://HOST:PORT`,
    `milvus://HOST:PORT` or `pinecone://INDEX`; or the URL of an adapter from a package. Default: `index` in the
    home."""
    indexes: dict[str, str] = {}
    """Other indexes by name, for `penstock reindex --index NAME`. The ledger stores only the name of an index, or its
    URL without the password."""
    embedder: str = "wordllama"
    """The embedder: `wordllama` runs offline on the CPU; `openai:MODEL`, `azure:DEPLOYMENT`, `ollama:MODEL` and
    `cohere:MODEL` call a server; `onnx:NAME` or `onnx:FOLDER` is a local model, and `minilm` the added one of that
    name; `fake` is for tests. Packages can add others."""
    prices: dict[str, Annotated[float, Meta(ge=0, le=MOST)]] = {}
    """Prices of models in US dollars per million tokens, by name (`openai:text-embedding-3-small: 0.02`). They replace
    the only prices that Penstock knows, those that OpenAI publishes. A model on this machine that has a price is a paid
    one: its server may pass calls on."""
    extractor: str = LOCAL
    """What reads PDF, Office and image files: `local` reads them in parser processes, `azure` sends them to Azure
    Document Intelligence, `docling` to a Docling Serve server. Formats that these do not read are read locally."""
    owner: str = "default"
    """The default owner. Data of one owner is never visible to another."""
    collection: str = "default"
    """The default collection."""
    chunk: ChunkConfig = ChunkConfig()
    collections: dict[str, CollectionConfig] = {}
    keep_artifacts: int | str = UNLESS_SMALL
    """How long the pages, chunks and vectors of a searchable document are kept: `always`, `until_completed`, or days
    since it became searchable. `unless_small`: always, except those that free steps made of text files up to
    `small_bytes`; a worker drops these at once, and `show` makes them again. Raw bytes and index are not touched."""
    retention: RetentionConfig = RetentionConfig()
    workflow: str = "default"
    """The default workflow of collections, by id or file."""
    params: str | None = None
    """The default parameter set of collections, by id or file."""
    workflows: str | None = None
    """The folder of workflow definitions. Default: `workflows` in the home."""
    parameter_sets: str | None = None
    """The folder of parameter sets. Default: `params` in the home."""
    worker: WorkerConfig = WorkerConfig()
    transcriber: str = "auto"
    """What turns speech into text: `moonshine` is the small English model of the extra `audio`, `whisper:FOLDER` is a
    Whisper model in the format of CTranslate2, `off` is none. `auto`: `moonshine` if it is installed."""
    parsers: ParsersConfig = ParsersConfig()
    limits: LimitsConfig = LimitsConfig()
    quota: QuotaConfig = QuotaConfig()
    targets: dict[str, TargetConfig] = {}
    ocr: OcrConfig = OcrConfig()
    http: HttpConfig = HttpConfig()
    webhooks: dict[str, WebhookConfig] = {}
    serve: ServeConfig = ServeConfig()
    failpoints: str = ""
    """For crash tests: `provider.answer.after=kill@3` kills the process the third time it reaches that failpoint."""

    @property
    def home_path(self) -> Path:
        return Path(self.home).expanduser().absolute()

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.home_path / 'ledger.db'}"

    @property
    def blobs_url(self) -> str:
        return self.blobs or f"file://{self.home_path / 'blobs'}"

    @property
    def index_url(self) -> str:
        return self.index or f"lancedb://{self.home_path / 'index'}"

    @property
    def blobs_path(self) -> Path | None:
        """The folder of the blobs; None where another adapter keeps them elsewhere."""
        return _local_folder(self.blobs_url, "file://")

    @property
    def index_path(self) -> Path | None:
        """The folder of the index; None where another adapter keeps it elsewhere."""
        return _local_folder(self.index_url, "lancedb://")

    def folder(self, chosen: str | None, name: str) -> Path:
        return Path(chosen).expanduser().absolute() if chosen is not None else self.home_path / name

    def keep_days(self, collection: str) -> float | None:
        """Days for which the artifacts of completed documents are kept; None: no limit."""
        chosen = self._kept(collection)
        if chosen in ("always", UNLESS_SMALL):
            return None
        if chosen == "until_completed":
            return 0.0
        return float(chosen)

    def drops_small(self, collection: str) -> bool:
        """Whether the artifacts of small documents are dropped as soon as they are searchable."""
        return self._kept(collection) == UNLESS_SMALL

    def _kept(self, collection: str) -> int | str:
        own = self.collections.get(collection)
        return own.keep_artifacts if own is not None and own.keep_artifacts is not None else self.keep_artifacts

    def extract_parameters(self, collection: str) -> dict[str, Any]:
        own = self.collections.get(collection)
        ocr = (own.ocr if own is not None and own.ocr is not None else self.ocr).parameters
        chosen = own.extractor if own is not None and own.extractor is not None else self.extractor
        return ocr if chosen == LOCAL else {**ocr, "extractor": chosen}

    def embed_parameters(self, collection: str) -> dict[str, Any]:
        """The parameters of embed steps: the embedder of the collection, if it is not the default."""
        own = self.collections.get(collection)
        chosen = own.embedder if own is not None else None
        return {} if chosen in (None, self.embedder) else {"embedder": chosen}

    def chunk_parameters(self, collection: str) -> dict[str, Any]:
        """The parameters of chunk steps, with all values."""
        return completed_chunk_parameters(self.given_chunk_parameters(collection))

    def given_chunk_parameters(self, collection: str) -> dict[str, Any]:
        """The parameters of chunk steps that the settings name. The others depend on these."""
        own = self.collections.get(collection)
        chosen = own.chunk if own is not None and own.chunk is not None else self.chunk
        values = {"size": chosen.size, "overlap": chosen.overlap}
        return {"unit": chosen.unit, **{name: value for name, value in values.items() if value is not None}}


class ConfigKeywords(TypedDict, total=False):
    """The settings as keyword arguments of `open_app`: those of Config. A section may be a mapping."""

    home: str | Path
    database: str
    blobs: str
    blob_cache_megabytes: int
    small_bytes: int
    index: str
    indexes: Mapping[str, str]
    embedder: str
    prices: Mapping[str, float]
    extractor: str
    owner: str
    collection: str
    chunk: ChunkConfig | Mapping[str, Any]
    collections: Mapping[str, CollectionConfig | Mapping[str, Any]]
    keep_artifacts: int | str
    retention: RetentionConfig | Mapping[str, Any]
    workflow: str
    params: str
    workflows: str | Path
    parameter_sets: str | Path
    worker: WorkerConfig | Mapping[str, Any]
    transcriber: str
    parsers: ParsersConfig | Mapping[str, Any]
    limits: LimitsConfig | Mapping[str, Any]
    quota: QuotaConfig | Mapping[str, Any]
    targets: Mapping[str, TargetConfig | Mapping[str, Any]]
    ocr: OcrConfig | Mapping[str, Any]
    http: HttpConfig | Mapping[str, Any]
    webhooks: Mapping[str, WebhookConfig | Mapping[str, Any]]
    serve: ServeConfig | Mapping[str, Any]
    failpoints: str


def check_url(url: str) -> None:
    """Raise ConfigError for a bad URL. The message does not contain the URL, which may hold a secret."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or any(letter.isspace() for letter in url):
        raise ConfigError("the URL must begin with http:// or https:// and name a host")


def _local_folder(url: str, scheme: str) -> Path | None:
    path = url.removeprefix(scheme)
    return local_path(path) if url.startswith(scheme) and path else None


def local_path(text: str) -> Path:
    """Return the folder that a URL names behind `//`. `localhost` stands for this machine."""
    return Path(text.removeprefix("localhost") if text.startswith("localhost/") else text).expanduser().absolute()


def load_config(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """Read the settings. `flags` override the environment, which overrides the file (./penstock.yaml, or the one that
    PENSTOCK_CONFIG names). Raise ConfigError with the place of each wrong value."""
    environment = os.environ if environment is None else environment
    given = GivenValues(Config)
    named = file or (Path(environment["PENSTOCK_CONFIG"]) if environment.get("PENSTOCK_CONFIG") else None)
    path = named or Path("penstock.yaml")
    if named is not None or path.exists():
        given.add_file(path)
    given.add_environment(environment)
    given.add_keywords(flags or {})
    return _checked(given)


def check_config(config: object) -> Config:
    """Check settings that a program has made itself. Raise ConfigError if one is wrong."""
    if not isinstance(config, Config):
        raise ConfigError(f"{config!r} is not a Config: use open_app(home=…), or open_app(load_config(…))")
    given = GivenValues(Config)
    given.add_keywords({name: getattr(config, name) for name in Config.__struct_fields__})
    return _checked(given)


def _checked(given: GivenValues) -> Config:
    config: Config = given.convert()
    for path, message in _problems(config):
        given.complain(path, message)
    given.refuse()
    return config


def _problems(config: Config) -> Iterator[tuple[Place, str]]:
    """What the types of the settings do not say."""
    yield from _name_problem(("owner",), "owner", config.owner)
    yield from _name_problem(("collection",), "collection", config.collection)
    yield from chunk_problems(config.chunk, ("chunk",))
    yield from _ocr_problem(("ocr",), config.ocr)
    yield from _keep_problem(("keep_artifacts",), config.keep_artifacts)
    for name, own in config.collections.items():
        place = ("collections", name)
        yield from _name_problem(place, "collection", name)
        if own.chunk is not None:
            yield from chunk_problems(own.chunk, (*place, "chunk"))
        if own.ocr is not None:
            yield from _ocr_problem((*place, "ocr"), own.ocr)
        if own.keep_artifacts is not None:
            yield from _keep_problem((*place, "keep_artifacts"), own.keep_artifacts)
    chosen = {name: own.extractor for name, own in config.collections.items() if own.extractor is not None}
    yield from extractor_problems(config.extractor, chosen)
    for name, webhook in config.webhooks.items():
        yield from _webhook_problems(("webhooks", name), name, webhook)


def _name_problem(path: Place, what: str, name: str) -> Iterator[tuple[Place, str]]:
    try:
        check_name(what, name)
    except ConfigError as error:
        yield path, str(error)


def chunk_problems(chunk: ChunkConfig, path: Place) -> Iterator[tuple[Place, str]]:
    if chunk.unit not in UNITS:
        yield (*path, "unit"), f"chunk unit {chunk.unit!r}: use characters or tokens"
        return
    size, overlap = chunk.sizes
    if overlap >= size:
        where = "size" if chunk.overlap is None else "overlap"
        yield (
            (*path, where),
            f"chunk size {size} with overlap {overlap}: the overlap must be smaller than the size: set both",
        )


def completed_chunk_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a chunk step with the defaults of those that are not given. The overlap follows the size."""
    chosen = msgspec.convert(given, ChunkConfig)
    size, overlap = chosen.sizes
    return {"unit": chosen.unit, "size": size, "overlap": overlap}


def chunk_parameter_problems(parameters: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """What is wrong with the parameters of a chunk step, with the place of each in them."""
    try:
        chosen = msgspec.convert(parameters, ChunkConfig)
    except msgspec.ValidationError:
        found = wrong(parameters, ChunkConfig, ("chunk",))
    else:
        found = chunk_problems(chosen, ("chunk",))
    for path, message in found:
        yield path[1:], message


def _ocr_problem(path: Place, ocr: OcrConfig) -> Iterator[tuple[Place, str]]:
    if ocr.mode not in OCR_MODES:
        yield (*path, "mode"), f"ocr mode {ocr.mode!r}: use one of {', '.join(OCR_MODES)}"
    if not ocr.languages:
        yield (*path, "languages"), "ocr languages: name at least one, such as eng"


def _keep_problem(path: Place, chosen: int | str) -> Iterator[tuple[Place, str]]:
    if chosen not in ("always", UNLESS_SMALL, "until_completed") and not re.fullmatch(r"[1-9]\d{0,5}", str(chosen)):
        yield path, f"keep_artifacts {chosen!r}: use always, unless_small, until_completed, or a number of days"


def _webhook_problems(path: Place, name: str, webhook: WebhookConfig) -> Iterator[tuple[Place, str]]:
    yield from _name_problem(path, "webhook", name)
    try:
        check_url(webhook.url)
    except ConfigError as error:
        yield (*path, "url"), f"webhook {name}: {error}"
    if not webhook.secret:
        yield path, f"webhook {name}: it needs a `secret`, which signs the requests"
    known = [kind.lower() for kind in EventKind]
    for number, event in enumerate(webhook.events):
        if event not in known:
            meant = suggestion(event, known)
            hint = f"did you mean {meant!r}?" if meant else f"use some of {', '.join(known)}"
            yield (*path, "events", number), f"webhook {name}: unknown event {event!r}: {hint}"


def check_name(what: str, name: object) -> str:
    """Names of owners and collections become folder names, so they must not contain path elements."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name!r}: use at most 100 letters, digits and _ . @ + -, beginning with a letter or a digit"
        )
    return name
