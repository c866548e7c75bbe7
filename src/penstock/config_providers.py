"""Settings of providers."""

from typing import Annotated

import msgspec
from msgspec import Meta


class TargetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one provider, by the name of its adapter, such as `azure`. All workers share them."""

    calls: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Maximum number of calls in flight. Default: 3 for `azure`, else 8."""
    requests_per_minute: Annotated[float, Meta(gt=0, le=10**9)] | None = None
    """Default: what the provider states in its answers, or else what is learnt when it refuses calls (429)."""
    tokens_per_minute: Annotated[float, Meta(gt=0, le=10**9)] | None = None
    """Default: what the provider states in its answers, or else no limit."""
