"""Settings of what Penstock calls: providers and webhooks."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.yaml_file import Place

LOCAL = "local"
EXTRACTORS = (LOCAL, "azure", "docling")
"""The values of the setting `extractor`."""


class TargetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one provider, by its name: `azure_documents`, `docling`, or the name of an embedder such as `openai`.
    All workers share them."""

    calls: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Maximum number of calls in flight. Default: 3 for `azure_documents`, else 8."""
    requests_per_minute: Annotated[float, Meta(gt=0, le=10**9)] | None = None
    """Default: what the provider states in its answers, or else what is learnt when it refuses calls (429)."""
    tokens_per_minute: Annotated[float, Meta(gt=0, le=10**9)] | None = None
    """Default: what the provider states in its answers, or else no limit."""


def extractor_problems(chosen: str, by_collection: Mapping[str, str]) -> Iterator[tuple[Place, str]]:
    """What is wrong with the settings `extractor`: the place of each, and a message."""
    places: list[tuple[Place, str]] = [(("extractor",), chosen)]
    places += [(("collections", name, "extractor"), own) for name, own in by_collection.items()]
    for place, name in places:
        if name not in EXTRACTORS:
            yield place, f"extractor {name!r}: use one of {', '.join(EXTRACTORS)}"


class WebhookConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook that receives events by HTTP. URL and secret are never written to the ledger or to logs."""

    url: str = ""
    """The address that events are posted to: `http://…` or `https://…`."""
    secret: str = ""
    """The key that signs the requests."""
    events: tuple[str, ...] = ("group_end", "item_failed")
    """Events of all new runs that are posted. If empty, only workflows that name this webhook use it."""
    retries: Annotated[int, Meta(ge=1, le=1_000)] = 8
    """Maximum number of attempts."""
    timeout: Annotated[float, Meta(gt=0, le=3_600)] = 10.0
    """Seconds for one attempt."""

    def __repr__(self) -> str:
        return f"WebhookConfig(events={self.events!r})"
