"""The settings of `serve`."""

from typing import Annotated

import msgspec
from msgspec import Meta


class OidcConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A provider of OpenID Connect, whose accounts may sign in to the dashboard."""

    issuer: str = ""
    """URL of the provider, as in `https://login.example.com`. Empty: nobody signs in with an account."""
    client_id: str = ""
    """What the provider calls this server."""
    client_secret: str = ""
    """The secret that the provider gave to this server."""
    public_url: str = ""
    """URL of this server, as users reach it. The provider sends them back to `/login/oidc/callback` there. Default: as
    in the request."""
    request_scopes: tuple[str, ...] = ("openid", "email", "profile")
    """What the provider is asked for."""
    owner_claim: str = "sub"
    """The claim (a text, or a list of texts) that says which owner an account belongs to."""
    owners: dict[str, str] = {}
    """Owners by the values of that claim."""
    scopes_claim: str = "groups"
    """The claim (a text, or a list of texts) that says what an account may do."""
    grants: dict[str, tuple[str, ...]] = {}
    """Scopes of keys by the values of that claim."""

    def __repr__(self) -> str:
        return f"OidcConfig(issuer={self.issuer!r})"


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
    hosts: tuple[str, ...] = ()
    """Names in the URL of the server (`docs.example.com`, or `*.example.com` for all below one). Requests for another
    host are refused (400). Default: any."""
    origins: tuple[str, ...] = ()
    """Origins (`https://app.example.com`) whose web pages may call the API from a browser (CORS). Default: none."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` headers are believed."""
    oidc: OidcConfig = OidcConfig()
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
    methods: tuple[str, ...] = ()
    """Functions (`package.module.function`, with `*` for any characters) that a workflow may run if a request names the
    workflow. Default: none. The default workflows of the settings and of collections may run any."""
    private_webhooks: bool = False
    """Whether webhooks that owners create may be posted to private addresses, such as 10.0.0.1 or localhost. Webhooks
    of the settings always may."""
