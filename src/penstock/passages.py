"""What retrievers of other frameworks return of a hit."""

import asyncio
from typing import Any

from penstock.errors import UsageError
from penstock.search.results import Hit, SearchResult
from penstock.sync import SyncScope
from penstock.verbs.owner import OwnerScope

Searchable = OwnerScope | SyncScope
"""An app, or its methods for one owner, with or without `await`."""


def search(app: Searchable, query: str, k: int, options: dict[str, Any]) -> SearchResult:
    if isinstance(app, OwnerScope):
        raise UsageError("this app is async: use the async methods of the retriever, or open it with penstock.sync")
    return app.search(query, k, **options)


async def search_async(app: Searchable, query: str, k: int, options: dict[str, Any]) -> SearchResult:
    if isinstance(app, OwnerScope):
        return await app.search(query, k, **options)
    return await asyncio.get_running_loop().run_in_executor(None, search, app, query, k, options)


def chunk_id(hit: Hit) -> str:
    return f"{hit.document_id}_chunk_{hit.ordinal}"


def metadata(hit: Hit) -> dict[str, Any]:
    """The metadata of the document, and where the passage is. `source` is what chains cite by default."""
    return {
        **hit.metadata,
        "source": hit.source,
        "name": hit.name,
        "document_id": hit.document_id,
        "collection": hit.collection,
        "page": hit.page,
        "page_end": hit.page_end,
        "start": hit.start,
        "end": hit.end,
        "headings": list(hit.headings),
        "score": hit.score,
        "relevance": hit.relevance,
    }
