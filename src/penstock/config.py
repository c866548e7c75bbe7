"""Settings: penstock.yaml, then PENSTOCK_* variables, then flags; the later wins. Read once, passed down."""

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
"""The highest limit: as good as none."""


class ChunkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How documents are cut into the pieces that are embedded and found. Changed settings hold for what comes next."""

    unit: str = "characters"
    """`characters` or `tokens`."""
    size: int | None = None
    """The most that a chunk holds: 1000 characters, or 512 tokens, if not set."""
    overlap: int | None = None
    """What neighbours share: 200 characters, or 50 tokens, and at most a fifth of the size, if not set."""


class CollectionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one collection, by its name."""

    chunk: ChunkConfig | None = None
    """Chunks of this collection; not set: as everywhere."""
    workflow: str | None = None
    """Its workflow, by id or file."""
    params: str | None = None
    """Its parameter set, by id or file."""
    keep_artifacts: int | str | None = None
    """How long its pages, chunks and vectors are kept; not set: as everywhere."""


class RetentionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `prune` takes, and a worker now and then."""

    history_days: float = 30.0
    """How long runs that were replaced, closed dead letters and forced releases of locks are kept. The last run of a
    document always is."""


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process that works: `ingest` and `run`."""

    slots: int = 8
    """Steps that run side by side."""
    lease_s: float = 15.0
    """How long a step belongs to a worker that no longer says so."""
    metrics_port: int | None = None
    """Where `penstock worker` shows its metrics, at /metrics; 0: any port that is free."""
    metrics_host: str = "127.0.0.1"
    """The address of that port. Whoever reaches it may read."""


class WebhookConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is told of events by HTTP, by its name. URL and secret stay here: the ledger and the logs never see them."""

    url: str = ""
    """Where events are posted to: `http://…` or `https://…`."""
    secret: str = ""
    """What signs them."""
    events: tuple[str, ...] = ("group_end", "item_failed")
    """Which, of every run that starts from now on; none: those of the workflows that name this webhook."""
    retries: int = 8
    """Attempts in all."""
    timeout: float = 10.0
    """Seconds for one attempt."""

    def __repr__(self) -> str:
        return f"WebhookConfig(events={self.events!r})"


class ParsersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processes that read PDF, HTML and Office files."""

    children: int | None = None
    """How many; one for each core, if none is named."""
    memory_mb: int = 1024
    """Memory of each, on top of what its libraries take; 0: no limit."""
    timeout_s: float = 60.0
    """Time for one batch of pages, or for a file that is read whole."""


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that one document may take. One that takes more fails; a retry with a higher limit goes on."""

    megabytes: int = 10_000
    """The size of its file."""
    pages: int = 100_000
    """Its pages."""
    parser_s: float = 7200.0
    """The time that parser processes work on it, in all its attempts, in seconds."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    home: str = ".penstock"
    """The folder of everything that no other setting puts elsewhere."""
    database: str | None = None
    """The ledger: `sqlite:///FILE`, or `postgresql://…` where several machines share the work. Not set: `ledger.db` in
    the home."""
    blobs: str | None = None
    """Raw bytes and artifacts: `file:///FOLDER`, or the URL of an adapter that a package adds. Not set: `blobs` in the
    home."""
    index: str | None = None
    """Chunks and vectors: `lancedb:///FOLDER`, or the URL of an adapter that a package adds. Not set: `index` in the
    home."""
    embedder: str = "wordllama"
    """What makes the vectors: `wordllama` runs offline on the CPU, `fake` is for tests. Packages add others: `NAME` or
    `NAME:ARGUMENT`."""
    owner: str = "default"
    """Whose documents, where no owner is named. Nothing of another owner is ever readable."""
    collection: str = "default"
    """The collection, where none is named."""
    chunk: ChunkConfig = ChunkConfig()
    collections: dict[str, CollectionConfig] = {}
    keep_artifacts: int | str = "always"
    """How long the pages, chunks and vectors of a searchable document are kept: `always`, `until_completed`, or days
    since it became searchable. Raw bytes and the index are not touched."""
    retention: RetentionConfig = RetentionConfig()
    workflow: str = "default"
    """The workflow of collections that name none, by id or file."""
    params: str | None = None
    """The parameter set of collections that name none."""
    workflows: str | None = None
    """The folder of workflow definitions; `workflows` in the home, if none is named."""
    parameter_sets: str | None = None
    """The folder of parameter sets; `params` in the home, if none is named."""
    worker: WorkerConfig = WorkerConfig()
    parsers: ParsersConfig = ParsersConfig()
    limits: LimitsConfig = LimitsConfig()
    webhooks: dict[str, WebhookConfig] = {}
    failpoints: str = ""
    """For tests of crashes: `provider.answer.after=kill@3` dies at the third passage of that place."""

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
        """Days for which the artifacts of completed documents are kept; None: for ever."""
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
    """Says what is wrong without saying the URL, which may hold a secret."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or any(letter.isspace() for letter in url):
        raise ConfigError("its URL begins with http:// or https:// and names a host")


def _check_webhook(name: str, webhook: WebhookConfig) -> None:
    check_name("webhook", name)
    try:
        check_url(webhook.url)
    except ConfigError as error:
        raise ConfigError(f"webhook {name}: {error}") from error
    if not webhook.secret:
        raise ConfigError(f"webhook {name}: it needs a `secret`, which signs what is posted")
    if webhook.retries < 1 or not 0 < webhook.timeout <= 3600:
        raise ConfigError(f"webhook {name}: retries are at least 1, and the timeout is up to 3600 seconds")
    known = [kind.lower() for kind in EventKind]
    if unknown := [event for event in webhook.events if event not in known]:
        raise ConfigError(f"webhook {name}: there is no event {unknown[0]!r}: use some of {', '.join(known)}")


def _local_folder(url: str, scheme: str) -> Path | None:
    path = url.removeprefix(scheme)
    return Path(path).expanduser().absolute() if url.startswith(scheme) and path else None


def load_config(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """`flags` win over the environment, which wins over the file (./penstock.yaml unless PENSTOCK_CONFIG names one)."""
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
        raise ConfigError(f"retention.history_days {config.retention.history_days}: use a number of days, more than 0")
    for name in LimitsConfig.__struct_fields__:
        if not 0 < (limit := getattr(config.limits, name)) <= MOST:
            raise ConfigError(f"limits.{name} {limit}: use a number more than 0, at most {MOST:,}")
    for name, webhook in config.webhooks.items():
        _check_webhook(name, webhook)
    return config


def _merge(values: dict[str, Any], over: Mapping[str, Any]) -> None:
    """A variable for one setting of a section leaves the others of it as they are."""
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value


def check_name(what: str, name: object) -> str:
    """Owners and collections become folders: nothing in their names may lead elsewhere."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name!r}: use letters, digits and _ . @ + -, beginning with a letter or a digit, at most 100"
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
        raise ConfigError(f"{path} must hold settings by name")
    return values


_NO_SETTINGS = ("PENSTOCK_CONFIG", "PENSTOCK_PASSWORD")
"""Variables of the command: which file to read, and what unlocks documents."""


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """PENSTOCK_HOME=…, and a dot becomes two underscores: PENSTOCK_WORKER__SLOTS=4."""
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
