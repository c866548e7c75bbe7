"""Verbs for many documents: in pieces, so that nobody waits for all of them, and again where they were interrupted."""

from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.ledger import Desk

from penstock.app import App
from penstock.errors import NotFound, StorageError
from penstock.ledger.engine import runs
from penstock.model.nouns import DocumentId, Owner

MANY = 2_500
MOST = 1_000
"""Of one transaction."""
ANNA = Owner("anna")


@pytest.fixture
async def app(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url, owner=ANNA)


async def _submitted(app: App, count: int = MANY) -> list[DocumentId]:
    return [answer.document_id for answer in await Desk(app.ledger).submit(*(f"/{i}" for i in range(count)))]


def _watch(app: App, fail_after: int | None = None) -> list[int]:
    """How many documents each transaction is about. One of them fails."""
    write, sizes = app.ledger.write, list[int]()

    async def watched(verb: Any, item: Any) -> Any:
        if isinstance(item, runs.Selected):
            if len(sizes) == fail_after:
                raise StorageError("the disk is full")
            sizes.append(len(item.documents))
        return await write(verb, item)

    vars(app.ledger)["write"] = watched
    return sizes


@pytest.mark.parametrize("verb", ["cancel", "delete"])
async def test_many_documents_are_changed_in_pieces(app: App, verb: str) -> None:
    ids = await _submitted(app)
    sizes = _watch(app)
    assert await getattr(app, verb)(ids) == set(ids)
    assert (sum(sizes), max(sizes)) == (MANY, MOST)
    left = await app.status()
    assert left.documents == ({"CANCELLED": MANY} if verb == "cancel" else {})


async def test_i6_a_delete_that_was_interrupted_goes_on_when_it_is_called_again(app: App) -> None:
    ids = await _submitted(app)
    sizes = _watch(app, fail_after=2)
    with pytest.raises(StorageError):
        await app.delete(ids)
    assert (await app.status()).documents == {"PENDING": MANY - 2 * MOST}
    del vars(app.ledger)["write"]
    assert await app.delete(ids) == set(ids[2 * MOST :])
    assert sum(sizes) == 2 * MOST
    assert (await app.status()).documents == {}
    assert await app.delete(ids) == set()


async def test_what_is_deleted_is_not_there_for_any_other_verb(app: App) -> None:
    document, other = await _submitted(app, 2)
    await app.delete([document, other])
    for change in (app.cancel, app.retry):
        with pytest.raises(NotFound):
            await change([document])
    for name in (document[:25], "01" + "Z" * 24):
        with pytest.raises(NotFound):
            await app.delete([name])
