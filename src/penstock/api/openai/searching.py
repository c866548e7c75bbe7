"""Search in a vector store, with OpenAI's filters."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from penstock.api.callers import Access
from penstock.api.openai.words import attributes_of, file_id, id_of_store_file
from penstock.api.problems import Problem
from penstock.errors import NotFound
from penstock.ledger.engine import vector_stores
from penstock.ledger.engine.vector_stores import Store
from penstock.model.nouns import Owner
from penstock.search.filters import DEEPEST
from penstock.search.results import Hit

COMPARISONS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")
MOST_QUERIES = 10
LONGEST_QUERY = 20_000


def as_filter(given: Any, depth: int = 0) -> dict[str, Any]:
    """OpenAI's filter as one of ours. Raise Problem if it is none."""
    if not isinstance(given, Mapping) or depth > DEEPEST:
        raise Problem("invalid", "filters: expected an object with type, key and value, or type and filters")
    kind = given.get("type")
    if kind in ("and", "or"):
        inner = given.get("filters")
        if not isinstance(inner, list) or not inner or set(given) != {"type", "filters"}:
            raise Problem("invalid", f"filters: {kind!r} needs a list of filters")
        return {f"${kind}": [as_filter(one, depth + 1) for one in inner]}
    if kind not in COMPARISONS:
        raise Problem("invalid", f"filters: type {str(kind)[:100]!r}: use one of {', '.join(COMPARISONS)}, and, or")
    key = given.get("key")
    if set(given) != {"type", "key", "value"} or not isinstance(key, str) or not key:
        raise Problem("invalid", f"filters: {kind!r} needs a key and a value")
    # A key of OpenAI's filters is always an attribute, also one with the name of a field.
    return {f"meta.{key}": {f"${kind}": given["value"]}}


async def search(
    access: Access, store: Store, queries: Sequence[str], most: int, filters: Any, least: float | None
) -> list[dict[str, Any]]:
    """The best passages for any of the queries, best first. A passage that several of them find counts once."""
    if any(len(query) > LONGEST_QUERY for query in queries):
        raise Problem("invalid", f"query: it has more than {LONGEST_QUERY:,} characters")
    wanted = [one for one in (None if filters is None else as_filter(filters), access.caller.filter) if one]
    chosen: Mapping[str, Any] | None = {"$and": wanted} if len(wanted) > 1 else wanted[0] if wanted else None
    found: dict[tuple[str, int], tuple[float, Hit]] = {}
    for query in queries:
        try:
            hits = await access.scope.search(query, most, collection=store.collection, filter=chosen, min_score=least)
        except NotFound:
            # The store exists, but has no document yet.
            return []
        for hit in hits:
            score = hit.score if hit.relevance is None else hit.relevance
            place = (hit.document_id, hit.ordinal)
            if place not in found or found[place][0] < score:
                found[place] = (score, hit)
    best = list(found.values())
    if len(queries) > 1:
        best.sort(key=lambda pair: -pair[0])
    best = best[:most]
    roots = await access.scope.ledger.read(
        partial(vector_stores.roots, Owner(access.owner)), sorted({hit.document_id for _, hit in best})
    )
    shown = []
    for score, hit in best:
        root = roots.get(hit.document_id)
        shown.append(
            {
                "file_id": file_id(hit.document_id) if root is None else id_of_store_file(root),
                "filename": hit.name,
                "score": max(0.0, min(1.0, score)),
                "attributes": {} if root is None else attributes_of(root),
                "content": [{"type": "text", "text": hit.text}],
            }
        )
    return shown
