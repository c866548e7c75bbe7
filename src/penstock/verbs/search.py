"""`search`: find passages in the documents of an owner."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import UsageError
from penstock.verbs import arguments
from penstock.verbs.scope import Scope, chosen_collection

if TYPE_CHECKING:
    from penstock.search.ranking import Mode
    from penstock.search.results import SearchResult

MODES = ("hybrid", "vector", "text")
CONTEXT_MOST = 20


async def search(
    scope: Scope,
    query: str,
    k: int = 5,
    *,
    collection: str | Sequence[str] | None = None,
    mode: "Mode" = "hybrid",
    filter: Mapping[str, Any] | None = None,
    group: Literal["document"] | None = None,
    context: int = 0,
    min_score: float | None = None,
    after: str | None = None,
    explain: bool = False,
    rerank: str | None = None,
) -> "SearchResult":
    """Return the `k` best passages for a query, best first.

    `collection`: one name or several. `mode`: `text` (by words), `vector` (by meaning) or `hybrid` (by both).
    `filter`: only passages of matching documents, for example `{"author": "ann", "year": {"$gte": 2020}}`. `group`:
    with `"document"`, only the best passage of each document. `context`: this number of chunks before and after each
    passage. `min_score`: only passages of at least this relevance. `after`: the `next` of the previous page. `explain`:
    the parts of each score. `rerank`: the name or folder of a model that reads query and passage together and reorders
    the ten best. Raises UsageError for a wrong argument, and NotFound for an unknown collection."""
    from penstock.search.filters import compiled
    from penstock.search.query import Queries, Request, search
    from penstock.verbs.querying import choose, query_vector

    names = (
        (collection,)
        if collection is None or isinstance(collection, str)
        else arguments.texts("collection", collection)
    )
    if not names:
        raise UsageError("collection: expected at least one name")
    collections = tuple(dict.fromkeys(chosen_collection(scope, name) for name in names))
    if not isinstance(query, str):
        raise UsageError(f"query {query!r}: expected text")
    if mode not in MODES:
        raise UsageError(f"mode {mode!r}: use one of {', '.join(MODES)}")
    if group not in (None, "document"):
        raise UsageError(f"group {group!r}: use 'document' or None")
    if not isinstance(explain, bool):
        raise UsageError(f"explain {explain!r}: expected True or False")
    ports = scope.ports
    request = Request(
        query,
        arguments.number("k", k, least=1),
        collections,
        mode,
        group,
        arguments.number("context", context, least=0, most=CONTEXT_MOST),
        None if min_score is None else arguments.share("min_score", min_score),
        arguments.maybe("after", after),
        explain,
        filter or None,
        compiled(filter) if filter else None,
        None if rerank is None else ports.reranker(arguments.text("rerank", rerank)),
    )
    queries = Queries(partial(choose, scope), partial(query_vector, scope))
    return await search(scope.ledger, ports.index, queries, ports.relevance, scope.owner, request)
