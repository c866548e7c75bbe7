"""`search`: find passages in the documents of an owner."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.verbs import arguments
from penstock.verbs.scope import Scope, chosen_collection

if TYPE_CHECKING:
    from penstock.search.query import Hit
    from penstock.search.ranking import Mode


async def search(
    scope: Scope,
    query: str,
    k: int = 5,
    *,
    collection: str | None = None,
    mode: "Mode" = "hybrid",
    filter: Mapping[str, Any] | None = None,
) -> "list[Hit]":
    """Return the `k` best passages for a query, best first. `mode` is `text` (by words), `vector` (by meaning) or
    `hybrid` (by both). `filter` restricts the documents, for example `{"author": "ann", "year": {"$gte": 2020}}`."""
    from penstock.search.filters import compiled
    from penstock.search.query import search

    where = chosen_collection(scope, collection)
    if not isinstance(query, str):
        raise UsageError(f"query {query!r}: expected text")
    arguments.number("k", k)
    if mode not in ("hybrid", "vector", "text"):
        raise UsageError(f"mode {mode!r}: use one of hybrid, vector, text")
    accepts = None if not filter else compiled(filter)
    ports = scope.ports
    stores = (scope.ledger, ports.index, ports.embedder, ports.relevance)
    return await search(*stores, scope.owner, query, k, where, mode, accepts)
