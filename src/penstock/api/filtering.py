"""Filters of requests, narrowed to what a caller may see."""

import json
from collections.abc import Mapping
from typing import Any

from penstock.api.callers import Access
from penstock.api.problems import Problem

LARGEST = 100_000


def as_filter(text: str | None) -> dict[str, Any] | None:
    """A filter that a query parameter holds as JSON."""
    if text is None:
        return None
    try:
        found = json.loads(text[: LARGEST + 1])
    except (ValueError, RecursionError):
        raise Problem("invalid", "filter: expected a JSON object") from None
    if not isinstance(found, dict):
        raise Problem("invalid", "filter: expected a JSON object")
    return found


def narrowed(
    access: Access, collection: str | None, wanted: Mapping[str, Any] | None
) -> tuple[str | None, Mapping[str, Any] | None]:
    """The collection and the filter that a list of documents uses for this caller."""
    caller = access.caller
    if collection is not None:
        collection = access.collection(collection)
    elif caller.collections is not None and len(caller.collections) == 1:
        [collection] = caller.collections
    filters = [dict(one) for one in (wanted, caller.filter) if one]
    if collection is None and caller.collections is not None:
        # No collection has the name "-": a key for none sees none.
        filters.append({"collection": {"$in": list(caller.collections) or ["-"]}})
    if len(filters) > 1:
        return collection, {"$and": filters}
    return collection, filters[0] if filters else None
