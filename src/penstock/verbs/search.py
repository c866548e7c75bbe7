"""`search`: find passages in the documents of an owner."""

from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.verbs import arguments
from penstock.verbs.scope import Scope, chosen_collection

if TYPE_CHECKING:
    from penstock.search.query import Hit
    from penstock.search.ranking import Mode


async def search(
    scope: Scope, query: str, k: int = 5, *, collection: str | None = None, mode: "Mode" = "hybrid"
) -> "list[Hit]":
    """Return the `k` best passages for a query, best first. `mode` is `text` (by words), `vector` (by meaning) or
    `hybrid` (by both)."""
    from penstock.search.query import search

    where = chosen_collection(scope, collection)
    if not isinstance(query, str):
        raise UsageError(f"query {query!r}: expected text")
    arguments.number("k", k)
    if mode not in ("hybrid", "vector", "text"):
        raise UsageError(f"mode {mode!r}: use one of hybrid, vector, text")
    ports = scope.ports
    return await search(scope.ledger, ports.index, ports.embedder, ports.relevance, scope.owner, query, k, where, mode)
