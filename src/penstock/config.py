"""Settings from penstock.yaml, then PENSTOCK_* variables, then flags; later sources override earlier ones. They are
read once and passed down."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.errors import ConfigError
from penstock.model.events import EventKind

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,99}")


MOST = 10**9
"""The highest value of a limit."""


class ChunkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How documents are split into chunks. Changes apply to documents that are submitted later."""

    unit: str = "characters"
    """`characters` or `tokens`."""
    size: int | None = None
    """Maximum size of a chunk. Default: 1000 characters, or 512 tokens."""
    overlap: int | None = None
    """How much of a chunk the next one repeats. Default: 200 characters, or 50 tokens; at most a fifth of the size."""


class CollectionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one collection, by its name."""

    chunk: ChunkConfig | None = None
    """Chunk settings of this collection. Default: the global settings."""
    workflow: str | None = None
    """The workflow of this collection, by id or file."""
    params: str | None = None
    """The parameter set of this collection, by id or file."""
    keep_artifacts: int | str | None = None
    """How long pages, chunks and vectors of this collection are kept. Default: the global setting."""


class RetentionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `penstock prune` and workers remove."""

    history_days: float = 30.0
    """Days for which replaced runs, closed dead letters and records of forced lock releases are kept. The last run of
    a document is always kept."""


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of each process that executes steps: `ingest`, `run` and `worker`."""

    slots: int = 8
    """Number of steps that run concurrently."""
    lease_s: float = 15.0
    """Seconds after which other workers take the steps of a worker that sends no heartbeats."""
    metrics_port: int | None = None
    """Port on which `penstock worker` serves its metrics, at /metrics; 0: any free port."""
    metrics_host: str = "127.0.0.1"
    """Address of that port. There is no access control."""


class WebhookConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook that receives events by HTTP. URL and secret are never written to the ledger or to logs."""

    url: str = ""
    """The address that events are posted to: `http://…` or `https://…`."""
    secret: str = ""
    """The key that signs the requests."""
    events: tuple[str, ...] = ("group_end", "item_failed")
    """Events of all new runs that are posted. If empty, only workflows that name this webhook use it."""
    retries: int = 8
    """Maximum number of attempts."""
    timeout: float = 10.0
    """Seconds for one attempt."""

    def __repr__(self) -> str:
        return f"WebhookConfig(events={self.events!r})"


class ParsersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the parser processes, which read PDF, HTML and Office files."""

    children: int | None = None
    """Number of parser processes. Default: one per core."""
    memory_mb: int = 1024
    """Memory limit of each process, in addition to the memory of its libraries; 0: no limit."""
    timeout_s: float = 60.0
    """Time limit for one batch of pages, or for a file that is read as a whole."""


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits for each document. A document that exceeds one fails; a retry with a higher limit continues it."""

    megabytes: int = 10_000
    """Maximum file size."""
    pages: int = 100_000
    """Maximum number of pages."""
    parser_s: float = 7200.0
    """Maximum total time of parser processes, over all attempts, in seconds."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings."""

    home: str = ".penstock"
    """The folder for all data that no other setting places elsewhere."""
    database: str | None = None
    """The ledger: `sqlite:///FILE`, or `postgresql://…` if several machines share the work. Default: `ledger.db` in the
    home."""
    blobs: str | None = None
    """Where raw bytes and artifacts are stored: `file:///FOLDER`, or the URL of an adapter from a package. Default:
    `blobs` in the home."""
    index: str | None = None
    """Where the index is stored: `lancedb:///FOLDER`, or the URL of an adapter from a package. Default: `index` in the
    home."""
    embedder: str = "wordllama"
    """The embedder: `wordllama` runs offline on the CPU, `fake` is for tests. Packages can add others: `NAME` or
    `NAME:ARGUMENT`."""
    owner: str = "default"
    """The default owner. Data of one owner is never visible to another."""
    collection: str = "default"
    """The default collection."""
    chunk: ChunkConfig = ChunkConfig()
    collections: dict[str, CollectionConfig] = {}
    keep_artifacts: int | str = "always"
    """How long the pages, chunks and vectors of a searchable document are kept: `always`, `until_completed`, or days
    since it became searchable. Raw bytes and the index are not touched."""
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
    parsers: ParsersConfig = ParsersConfig()
    limits: LimitsConfig = LimitsConfig()
    webhooks: dict[str, WebhookConfig] = {}
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
        own = self.collections.get(collection)
        chosen = own.keep_artifacts if own is not None and own.keep_artifacts is not None else self.keep_artifacts
        if chosen == "always":
            return None
        if chosen == "until_completed":
            return 0.0
        if not re.fullmatch(r"[1-9]\d{0,5}", str(chosen)):
            raise ConfigError(f"keep_artifacts {chosen!r}: use always, until_completed, or a number of days")
        return float(chosen)

    def chunk_parameters(self, collection: str) -> dict[str, Any]:
        own = self.collections.get(collection)
        chosen = own.chunk if own is not None and own.chunk is not None else self.chunk
        if chosen.unit not in ("characters", "tokens"):
            raise ConfigError(f"chunk unit {chosen.unit!r}: use characters or tokens")
        size, overlap = (1000, 200) if chosen.unit == "characters" else (512, 50)
        size = chosen.size if chosen.size is not None else size
        overlap = chosen.overlap if chosen.overlap is not None else min(overlap, size // 5)
        if size < 1 or not 0 <= overlap < size:
            raise ConfigError(f"chunk size {size} with overlap {overlap}: the overlap must be smaller than the size")
        return {"unit": chosen.unit, "size": size, "overlap": overlap}


def check_url(url: str) -> None:
    """Raise ConfigError for a bad URL. The message does not contain the URL, which may hold a secret."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or any(letter.isspace() for letter in url):
        raise ConfigError("the URL must begin with http:// or https:// and name a host")


def _check_webhook(name: str, webhook: WebhookConfig) -> None:
    check_name("webhook", name)
    try:
        check_url(webhook.url)
    except ConfigError as error:
        raise ConfigError(f"webhook {name}: {error}") from error
    if not webhook.secret:
        raise ConfigError(f"webhook {name}: it needs a `secret`, which signs the requests")
    if webhook.retries < 1 or not 0 < webhook.timeout <= 3600:
        raise ConfigError(f"webhook {name}: retries must be at least 1, and the timeout at most 3600 seconds")
    known = [kind.lower() for kind in EventKind]
    if unknown := [event for event in webhook.events if event not in known]:
        raise ConfigError(f"webhook {name}: unknown event {unknown[0]!r}: use some of {', '.join(known)}")


def _local_folder(url: str, scheme: str) -> Path | None:
    path = url.removeprefix(scheme)
    return Path(path).expanduser().absolute() if url.startswith(scheme) and path else None


def load_config(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """Read the settings. `flags` override the environment, which overrides the file (./penstock.yaml, or the one that
    PENSTOCK_CONFIG names)."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    named = file or (Path(environment["PENSTOCK_CONFIG"]) if environment.get("PENSTOCK_CONFIG") else None)
    path = named or Path("penstock.yaml")
    if named is not None or path.exists():
        values.update(_read(path))
    _merge(values, _from_environment(environment))
    values.update({key: value for key, value in (flags or {}).items() if value is not None})
    try:
        config = msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the configuration is wrong: {error} ({path} and PENSTOCK_* variables)") from error
    check_name("owner", config.owner)
    check_name("collection", config.collection)
    for name in (config.collection, *config.collections):
        check_name("collection", name)
        config.chunk_parameters(name)
        config.keep_days(name)
    config.keep_days("")
    if not 0 < config.retention.history_days < float("inf"):
        raise ConfigError(f"retention.history_days {config.retention.history_days}: use a number of days above 0")
    for name in LimitsConfig.__struct_fields__:
        if not 0 < (limit := getattr(config.limits, name)) <= MOST:
            raise ConfigError(f"limits.{name} {limit}: use a number above 0, at most {MOST:,}")
    for name, webhook in config.webhooks.items():
        _check_webhook(name, webhook)
    return config


def _merge(values: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Merge nested settings: a variable for one setting of a section keeps the others."""
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value


def check_name(what: str, name: object) -> str:
    """Names of owners and collections become folder names, so they must not contain path elements."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name!r}: use at most 100 letters, digits and _ . @ + -, beginning with a letter or a digit"
        )
    return name


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"{path} could not be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must be a mapping of settings")
    return values


_NO_SETTINGS = ("PENSTOCK_CONFIG", "PENSTOCK_PASSWORD")
"""Variables that are not settings: the settings file, and the password of documents."""


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings from variables. Two underscores stand for a dot: PENSTOCK_WORKER__SLOTS=4."""
    values: dict[str, Any] = {}
    known = set(Config.__struct_fields__)
    for variable, value in environment.items():
        if not variable.startswith("PENSTOCK_") or variable in _NO_SETTINGS:
            continue
        first, *rest = variable.removeprefix("PENSTOCK_").lower().split("__")
        if first not in known:
            raise ConfigError(f"{variable} is not a setting: `penstock config show` lists them")
        place = values
        for name, following in zip([first, *rest], rest, strict=False):
            place = place.setdefault(name, {})
            del following
        place[[first, *rest][-1]] = value
    return values
