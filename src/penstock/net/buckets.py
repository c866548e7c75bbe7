"""Access to the buckets of object stores: from the usual environment variables, and what their errors mean."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from penstock.config_http import HttpConfig
from penstock.errors import (
    Away,
    ConfigError,
    PenstockError,
    RateLimited,
    SourceChanged,
    SourceDenied,
    SourceError,
    UsageError,
)
from penstock.redaction import MASK, masked

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    Store = S3Store | GCSStore | AzureStore

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STATUS = re.compile(r"status code: (\d{3})")
_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_SECRET_NAMES = re.compile(r"(AWS|AZURE|GOOGLE)_.*(KEY|SECRET|TOKEN|CONNECTION_STRING).*")
_LONGEST = 300
_FOREVER = timedelta(days=7)


@dataclass(frozen=True)
class _Service:
    credentials: str
    """The variables to set, for messages."""
    endpoints: tuple[str, ...]
    """The variables that name another server, most important first."""


EMULATOR = "STORAGE_EMULATOR_HOST"
"""The variable that the libraries of Google read for a server without credentials."""

_SERVICES = {
    "s3": _Service(
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    ),
    "gs": _Service("GOOGLE_APPLICATION_CREDENTIALS", (EMULATOR,)),
    "az": _Service(
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN)",
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    ),
}
SCHEMES = tuple(_SERVICES)


class Kind(StrEnum):
    """What an error of the library means."""

    MISSING = "missing"
    """There is no such object."""
    NO_BUCKET = "no bucket"
    CHANGED = "changed"
    """A condition of the request does not hold."""
    DENIED = "denied"
    """The server refuses our credentials, or there are none."""
    LIMITED = "limited"
    """The server asks us to come back later."""
    CUT = "cut"
    """The connection was cut: another attempt may succeed at once."""
    AWAY = "away"
    """Another attempt may succeed."""
    WRONG = "wrong"
    """Another attempt cannot succeed."""


class Trouble(NamedTuple):
    kind: Kind
    message: str


class Bucket(NamedTuple):
    scheme: str
    name: str
    secrets: tuple[str, ...]
    """Values of the environment that no message may show."""

    def __repr__(self) -> str:
        return f"{self.scheme}://{self.name}"

    @property
    def credentials(self) -> str:
        """The variables to set, for messages."""
        return _SERVICES[self.scheme].credentials

    def source_error(self, error: Exception) -> PenstockError:
        """For documents in a bucket: Away if another attempt may succeed, otherwise SourceError."""
        kind, message = self.trouble(error)
        if kind is Kind.CHANGED:
            return SourceChanged(message)
        if kind is Kind.DENIED:
            return SourceDenied(message)
        if kind is Kind.LIMITED:
            return RateLimited(message)
        return Away(message) if kind in (Kind.AWAY, Kind.CUT) else SourceError(message)

    def trouble(self, error: Exception) -> Trouble:
        text = str(error)
        if _NO_BUCKET.search(text):
            return Trouble(Kind.NO_BUCKET, "there is no such bucket: create it, or correct its name")
        if isinstance(error, FileNotFoundError):
            return Trouble(Kind.MISSING, "there is no such object")
        if type(error).__name__ == "PreconditionError":
            return Trouble(Kind.CHANGED, "it changed while it was read")
        if "169.254." in text or "metadata.google.internal" in text:
            return Trouble(Kind.DENIED, f"no credentials were found: set {self.credentials}")
        status = int(found[1]) if (found := _STATUS.search(text)) else None
        return self._failure(text) if status is None else self._refusal(status, text)

    def _refusal(self, status: int, text: str) -> Trouble:
        code = f" ({found[1]})" if (found := _CODE.search(text)) else ""
        said = f"the server answered {status}{code}"
        if status in (401, 403):
            return Trouble(Kind.DENIED, f"{said}: it refuses access; check {self.credentials}")
        if status == 404:
            return Trouble(Kind.WRONG, f"{said}: there is no such bucket, or no such object")
        if status == 429 or "SlowDown" in code:
            return Trouble(Kind.LIMITED, said)
        return Trouble(Kind.AWAY if status == 408 or status >= 500 else Kind.WRONG, said)

    def _failure(self, text: str) -> Trouble:
        if "redirect" in text:
            return Trouble(Kind.WRONG, "the bucket is in another region: set AWS_REGION")
        if "illegal character sequence" in text or "empty path segment" in text:
            return Trouble(Kind.WRONG, f"a key in it cannot be used: {self.shown(text)}")
        if "builder error" in text:
            return Trouble(Kind.WRONG, "plain http is allowed only for an endpoint that the environment names")
        if "HTTP error" in text or "Interrupted" in text or "Timeout" in text:
            if "error sending request" in text:
                return Trouble(Kind.AWAY, "the server cannot be reached")
            return Trouble(Kind.CUT, "the connection was cut")
        return Trouble(Kind.WRONG, self.shown(text))

    def shown(self, text: str) -> str:
        """The first line of a message, without secrets."""
        line = text.partition("\n\nDebug source")[0].replace("\n", " ").strip()
        for secret in self.secrets:
            line = line.replace(secret, MASK)
        return masked(line)[:_LONGEST]


def parse(scheme: str, rest: str, environment: Mapping[str, str]) -> tuple[Bucket, str]:
    """The bucket and the prefix of `scheme://BUCKET/PREFIX`. A key may contain any character, so nothing is decoded."""
    name, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(name):
        # It may contain a secret: it is not shown.
        raise UsageError(
            f"{scheme}://…: the name of the bucket is missing or wrong: use {scheme}://BUCKET or "
            f"{scheme}://BUCKET/PREFIX (credentials come from the environment: {_SERVICES[scheme].credentials})"
        )
    if "//" in prefix or any(part in (".", "..") for part in prefix.split("/")):
        raise UsageError(f"{scheme}://{name}/…: the prefix has an empty part, or one of only dots")
    secrets = {value for key, value in environment.items() if _SECRET_NAMES.fullmatch(key) and len(value) > 3}
    return Bucket(scheme, name, tuple(sorted(secrets, key=len, reverse=True))), prefix.lstrip("/")


def _place(scheme: str, endpoint: str | None) -> dict[str, Any]:
    """The options that name another server."""
    if endpoint is None:
        return {}
    if scheme != "gs":
        return {"endpoint": endpoint}
    account = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
    return {"service_account_key": json.dumps({**account, "private_key_id": ""}), "skip_signature": True}


def open_store(bucket: Bucket, environment: Mapping[str, str], config: HttpConfig, *, retries: bool) -> "Store":
    """Access to a bucket. The library reads the credentials from the environment. `retries`: it repeats a request for
    as long as `http.patience_s` says. Raises ConfigError."""
    try:
        from obstore import store as stores
    except ImportError:
        raise ConfigError(f"{bucket.scheme}:// needs another package: pip install 'penstock-rag[objects]'") from None
    service = _SERVICES[bucket.scheme]
    named = next((name for name in service.endpoints if name in environment), None)
    endpoint = None if named is None else environment[named].strip()
    if endpoint is not None and not (urlsplit(endpoint).scheme in ("http", "https") and urlsplit(endpoint).hostname):
        # The library would panic.
        raise ConfigError(f"{bucket!r}: the environment variable {named} is not a URL: correct it, or unset it")
    options: dict[str, Any] = {
        "client_options": {
            # A total limit would cut the download of a large object.
            "timeout": _FOREVER,
            "connect_timeout": timedelta(seconds=config.timeout_s),
            "read_timeout": timedelta(seconds=config.timeout_s),
            "allow_http": endpoint is not None and urlsplit(endpoint).scheme == "http",
        },
        "retry_config": {
            "max_retries": 10_000 if retries else 0,
            "retry_timeout": timedelta(seconds=config.patience_s),
            "backoff": {"max_backoff": timedelta(seconds=5)},
        },
        **_place(bucket.scheme, endpoint),
    }
    made: dict[str, Any] = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
    try:
        store: Store = made[bucket.scheme](bucket.name, **options)
    except Exception as error:
        raise ConfigError(f"{bucket!r}: {bucket.shown(str(error))}: check {service.credentials}") from None
    return store
