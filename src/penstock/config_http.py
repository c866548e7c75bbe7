"""The settings of `http`."""

from typing import Annotated

import msgspec
from msgspec import Meta


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How `ingest https://…` fetches documents. `limits.megabytes` is the largest that it fetches. `timeout_s` and
    `patience_s` also apply to buckets (`s3://…`)."""

    allow_private: bool = False
    """Whether private addresses are allowed: those of private networks (10.0.0.1), of this machine (127.0.0.1) and
    link-local ones (169.254.169.254). They are refused also after redirects."""
    robots: bool = True
    """Whether to obey the `robots.txt` of each host, as user agent `penstock`."""
    requests_per_s: Annotated[float, Meta(gt=0, le=10_000)] = 5.0
    """Maximum number of requests per second to one host. A `Crawl-delay` of its `robots.txt` also counts."""
    connections: Annotated[int, Meta(ge=1, le=32)] = 4
    """Maximum number of connections to one host."""
    timeout_s: Annotated[float, Meta(gt=0, le=3_600)] = 30.0
    """Seconds to wait for a connection, and for the next part of an answer."""
    patience_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """Seconds to wait for a host that does not answer, or that asks to wait, before its documents are refused."""
