"""The retrievers for LangChain, which pass its own standard tests, and for LlamaIndex. Both are imported by the tests
themselves: they take seconds, in each process that collects tests."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.sync
from penstock.errors import UsageError
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


STANDARD = (
    "test_ainvoke_returns_documents",
    "test_invoke_returns_documents",
    "test_invoke_with_k_kwarg",
    "test_k_constructor_param",
    "test_no_overrides_DO_NOT_OVERRIDE",
)


def standard_tests(app: SyncApp) -> Any:
    """LangChain's own tests of a retriever."""
    from langchain_tests.integration_tests import RetrieversIntegrationTests

    from penstock.langchain import PenstockRetriever

    class Standard(RetrieversIntegrationTests):
        retriever_constructor = PenstockRetriever
        retriever_query_example = QUERY

        @property
        def retriever_constructor_params(self) -> dict[str, Any]:
            return {"app": app}

    return Standard()


def test_all_standard_tests_of_langchain_are_run(app: SyncApp) -> None:
    assert tuple(name for name in dir(standard_tests(app)) if name.startswith("test_")) == STANDARD


@pytest.mark.parametrize("name", STANDARD)
async def test_it_passes_the_standard_tests_of_langchain(app: SyncApp, name: str) -> None:
    from penstock.langchain import PenstockRetriever

    test = getattr(standard_tests(app), name)
    takes = inspect.signature(test).parameters
    outcome = test(**({"retriever": PenstockRetriever(app=app)} if "retriever" in takes else {}))
    if inspect.isawaitable(outcome):
        await outcome


def test_a_document_of_langchain_says_where_its_passage_is(app: SyncApp) -> None:
    from penstock.langchain import PenstockRetriever

    [found] = PenstockRetriever(app=app, k=1, options={"filter": {"hall": 2}}).invoke(QUERY)
    [listed] = app.list_documents(name="hall2.txt")
    assert found.page_content == "The machine of hall 2 presses 20 plates an hour."
    assert found.id == f"{listed.id}_chunk_0"
    # Where the passage is takes precedence over metadata of the same name.
    assert found.metadata["source"] == listed.source
    assert (found.metadata["hall"], found.metadata["page"], found.metadata["document_id"]) == (2, 1, listed.id)
    assert found.page_content == (app.search(QUERY, 1)[0].text)


def test_arguments_of_invoke_override_those_of_the_retriever(app: SyncApp) -> None:
    from penstock.langchain import PenstockRetriever

    retriever = PenstockRetriever(app=app, options={"filter": {"hall": 2}})
    [found] = retriever.invoke(QUERY, filter={"hall": 3})
    assert found.metadata["hall"] == 3


def test_a_node_of_llamaindex_says_where_its_passage_is(app: SyncApp) -> None:
    from penstock.llamaindex import PenstockRetriever as LlamaRetriever

    [found] = LlamaRetriever(app, 1, options={"filter": {"hall": 2}}).retrieve(QUERY)
    [listed] = app.list_documents(name="hall2.txt")
    assert found.node.get_content() == "The machine of hall 2 presses 20 plates an hour."
    assert found.node.id_ == f"{listed.id}_chunk_0"
    assert found.node.source_node is not None
    assert found.node.source_node.node_id == listed.id
    assert (found.node.metadata["hall"], found.node.metadata["page"]) == (2, 1)
    assert found.score == app.search(QUERY, 1, filter={"hall": 2})[0].score


async def test_both_retrievers_search_an_async_app(home: Path) -> None:
    from penstock.langchain import PenstockRetriever
    from penstock.llamaindex import PenstockRetriever as LlamaRetriever

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
    from penstock.llamaindex import PenstockRetriever as LlamaRetriever

    assert len(await LlamaRetriever(app, 3).aretrieve(QUERY)) == 3


def test_a_retriever_sees_only_the_documents_of_its_owner(app: SyncApp) -> None:
    from penstock.langchain import PenstockRetriever

    app.for_owner("other").ingest(data=b"The machine of hall 9 belongs to another.", name="hall9.txt")
    names = {found.metadata["name"] for found in PenstockRetriever(app=app, k=50).invoke(QUERY)}
    assert names == {"hall1.txt", "hall2.txt", "hall3.txt", "hall4.txt"}
    [theirs] = PenstockRetriever(app=app.for_owner("other"), k=50).invoke(QUERY)
    assert theirs.metadata["name"] == "hall9.txt"
