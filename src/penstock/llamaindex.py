"""A retriever for LlamaIndex (extra `llamaindex`).

    import penstock.sync
    from penstock.llamaindex import PenstockRetriever

    with penstock.sync.open_app(home="./.penstock") as app:
        retriever = PenstockRetriever(app, k=5)
        retriever.retrieve("how fast does the turbine turn?")

`app` is an app of `penstock.sync` or an async one; `app.for_owner(…)` searches for one owner."""

from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode

from penstock import passages
from penstock.search.results import Hit


class PenstockRetriever(BaseRetriever):
    """Returns passages as nodes with scores, best first."""

    def __init__(self, app: passages.Searchable, k: int = 5, *, options: dict[str, Any] | None = None) -> None:
        """`options`: further arguments of `search`, such as `collection`, `mode`, `filter` or `min_score`."""
        super().__init__()
        self._app = app
        self._k = k
        self._options = options or {}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = passages.search(self._app, query_bundle.query_str, self._k, self._options)
        return [_node(hit) for hit in found]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = await passages.search_async(self._app, query_bundle.query_str, self._k, self._options)
        return [_node(hit) for hit in found]


def _node(hit: Hit) -> NodeWithScore:
    node = TextNode(id_=passages.chunk_id(hit), text=hit.text, metadata=passages.metadata(hit))
    node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=hit.document_id)
    # Positions say nothing to a model or an embedder.
    node.excluded_llm_metadata_keys = node.excluded_embed_metadata_keys = [
        name for name in passages.metadata(hit) if name not in hit.metadata and name not in ("name", "page", "headings")
    ]
    return NodeWithScore(node=node, score=hit.score)
