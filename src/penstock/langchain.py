"""A retriever for LangChain (extra `langchain`).

    import penstock.sync
    from penstock.langchain import PenstockRetriever

    with penstock.sync.open_app(home="./.penstock") as app:
        retriever = PenstockRetriever(app=app, k=5)
        retriever.invoke("how fast does the turbine turn?")

`app` is an app of `penstock.sync` or an async one; `app.for_owner(…)` searches for one owner."""

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field

from penstock import passages
from penstock.search.results import Hit


class PenstockRetriever(BaseRetriever):
    """Returns passages as LangChain documents, best first."""

    app: Any
    """An app, or the methods for one owner, of `penstock.sync` or async."""
    k: int = Field(default=5, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `search`, such as `collection`, `mode`, `filter` or `min_score`. `invoke` overrides them."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **options: Any
    ) -> list[Document]:
        found = passages.search(self.app, query, k or self.k, {**self.options, **options})
        return [_document(hit) for hit in found]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None, **options: Any
    ) -> list[Document]:
        found = await passages.search_async(self.app, query, k or self.k, {**self.options, **options})
        return [_document(hit) for hit in found]


def _document(hit: Hit) -> Document:
    return Document(id=passages.chunk_id(hit), page_content=hit.text, metadata=passages.metadata(hit))
