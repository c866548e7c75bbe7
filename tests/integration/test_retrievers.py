"""The retrievers for LangChain, which pass its own standard tests, and for LlamaIndex."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

import penstock
import penstock.sync
from penstock.errors import UsageError
from penstock.langchain import PenstockRetriever
from penstock.llamaindex import PenstockRetriever as LlamaRetriever
from penstock.sync import SyncApp

QUERY = "what does the machine of hall 2 do?"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retrievers")
    with penstock.sync.open_app(home=str(folder / "home")) as app:
        for hall in range(1, 5):
            text = f"The machine of hall {hall} presses {hall * 10} plates an hour."
            app.ingest(data=text.encode(), name=f"hall{hall}.txt", metadata={"hall": hall, "source": "theirs"})
    return folder / "home"


@pytest.fixture(scope="module")
def app(home: Path) -> Iterator[SyncApp]:
    with penstock.sync.open_app(home=str(home)) as opened:
        yield opened


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _open(self, app: SyncApp) -> None:
        self._app = app

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return PenstockRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"app": self._app}

    @property
    def retriever_query_example(self) -> str:
        return QUERY


def test_a_document_of_langchain_says_where_its_passage_is(app: SyncApp) -> None:
    [found] = PenstockRetriever(app=app, k=1, options={"filter": {"hall": 2}}).invoke(QUERY)
    [listed] = app.list_documents(name="hall2.txt")
    assert found.page_content == "The machine of hall 2 presses 20 plates an hour."
    assert found.id == f"{listed.id}_chunk_0"
    # Where the passage is takes precedence over metadata of the same name.
    assert found.metadata["source"] == listed.source
    assert (found.metadata["hall"], found.metadata["page"], found.metadata["document_id"]) == (2, 1, listed.id)
    assert found.page_content == (app.search(QUERY, 1)[0].text)


def test_arguments_of_invoke_override_those_of_the_retriever(app: SyncApp) -> None:
    retriever = PenstockRetriever(app=app, options={"filter": {"hall": 2}})
    [found] = retriever.invoke(QUERY, filter={"hall": 3})
    assert found.metadata["hall"] == 3


def test_a_node_of_llamaindex_says_where_its_passage_is(app: SyncApp) -> None:
    [found] = LlamaRetriever(app, 1, options={"filter": {"hall": 2}}).retrieve(QUERY)
    [listed] = app.list_documents(name="hall2.txt")
    assert found.node.get_content() == "The machine of hall 2 presses 20 plates an hour."
    assert found.node.id_ == f"{listed.id}_chunk_0"
    assert found.node.source_node is not None
    assert found.node.source_node.node_id == listed.id
    assert (found.node.metadata["hall"], found.node.metadata["page"]) == (2, 1)
    assert found.score == app.search(QUERY, 1, filter={"hall": 2})[0].score


async def test_both_retrievers_search_an_async_app(home: Path) -> None:
    async with penstock.open_app(home=str(home)) as app:
        chain, llama = PenstockRetriever(app=app, k=2), LlamaRetriever(app, 2)
        expected = [hit.text for hit in await app.search(QUERY, 2)]
        assert [found.page_content for found in await chain.ainvoke(QUERY)] == expected
        assert [found.node.get_content() for found in await llama.aretrieve(QUERY)] == expected
        with pytest.raises(UsageError, match=r"penstock\.sync"):
            chain.invoke(QUERY)
        with pytest.raises(UsageError, match=r"penstock\.sync"):
            llama.retrieve(QUERY)


async def test_an_app_without_await_is_searched_beside_the_event_loop(app: SyncApp) -> None:
    assert len(await LlamaRetriever(app, 3).aretrieve(QUERY)) == 3


def test_a_retriever_sees_only_the_documents_of_its_owner(app: SyncApp) -> None:
    app.for_owner("other").ingest(data=b"The machine of hall 9 belongs to another.", name="hall9.txt")
    names = {found.metadata["name"] for found in PenstockRetriever(app=app, k=50).invoke(QUERY)}
    assert names == {"hall1.txt", "hall2.txt", "hall3.txt", "hall4.txt"}
    [theirs] = PenstockRetriever(app=app.for_owner("other"), k=50).invoke(QUERY)
    assert theirs.metadata["name"] == "hall9.txt"
