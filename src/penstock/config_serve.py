"""The settings of `serve`."""

from typing import Annotated

import msgspec
from msgspec import Meta


class ServeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `penstock serve`."""

    host: str = "127.0.0.1"
    """The address to listen on. Without keys, only an address of this machine is accepted."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8440
    """The port to listen on; 0: any free port."""
    tls_certificate: str | None = None
    """File with the certificate chain, in PEM. With it, the server speaks HTTPS only."""
    tls_key: str | None = None
    """File with the private key of the certificate, in PEM."""
    origins: tuple[str, ...] = ()
    """Origins (`https://app.example.com`) whose web pages may call the API from a browser (CORS). Default: none."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` headers are believed."""
    requests_per_s: Annotated[float, Meta(gt=0, le=1_000_000)] = 1_000.0
    """Maximum number of requests per second of one owner, averaged over ten seconds."""
    upload_megabytes: Annotated[int, Meta(ge=1, le=10**9)] = 4_096
    """Maximum number of megabytes that one owner has in uploads in progress. Uploads above it are told to come again
    (429)."""
    reserve_megabytes: Annotated[int, Meta(ge=0, le=10**9)] = 512
    """Free space of the disks of ledger and blobs below which no upload is accepted (507)."""
    idle_s: Annotated[float, Meta(gt=0, le=3_600)] = 30.0
    """Seconds without a byte after which an upload is ended (408)."""
    bytes_per_s: Annotated[int, Meta(ge=0, le=10**9)] = 1_024
    """Minimum speed of an upload, averaged since its start, after the first `idle_s` seconds; 0: none."""
