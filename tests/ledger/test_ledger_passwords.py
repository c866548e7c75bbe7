"""A password is in the ledger for as long as somebody may need it, and no longer."""

import pytest
from tests.kit.ledger import ANNA, Desk

from penstock.ledger.engine import dead_letters, deletions, runs
from penstock.model.states import DocumentStatus

SECRET = "sesame"


async def kept(desk: Desk) -> object:
    return await desk.one("SELECT password FROM documents")


@pytest.mark.parametrize("chain", [True, False], ids=["claimed along", "claimed later"])
async def test_it_is_forgotten_when_the_pages_are_there(desk: Desk, chain: bool) -> None:
    await desk.submit("/a", password=SECRET)
    assert await kept(desk) == SECRET
    [step] = await desk.claim()
    assert await kept(desk) == SECRET
    assert (await desk.complete(step, "clean", chain=chain)).took
    if not chain:
        assert await kept(desk) == SECRET
        assert len(await desk.claim(1, "clean")) == 1
    assert await kept(desk) is None


async def test_it_stays_while_the_pages_are_not_there(desk: Desk) -> None:
    await desk.submit("/a", password=SECRET)
    [step] = await desk.claim()
    assert (await desk.complete(step, "extract", chain=True, media_type="application/pdf")).took
    assert await kept(desk) == SECRET


@pytest.mark.parametrize("status", [DocumentStatus.COMPLETED, DocumentStatus.NOT_INDEXABLE])
async def test_it_is_forgotten_when_the_run_ends_well(desk: Desk, status: DocumentStatus) -> None:
    await desk.submit("/a", password=SECRET)
    [step] = await desk.claim()
    assert await desk.flip(step, status)
    assert await kept(desk) is None


async def test_it_is_there_for_a_retry_and_forgotten_when_the_letter_is_discarded_or_the_document_deleted(
    desk: Desk,
) -> None:
    for end in ("discard", "delete"):
        await desk.submit(f"/{end}", password=SECRET)
        [step] = await desk.claim()
        assert await desk.fail(step, reason="parser_memory")
        look = f"SELECT password FROM documents WHERE source = '/{end}'"
        assert await desk.one(look) == SECRET
        if end == "discard":
            [letter] = await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10))
            assert await desk.ledger.write(dead_letters.DISCARD, (ANNA, (letter.id,))) == {letter.id}
        else:
            await desk.ledger.write(deletions.DELETE, runs.Selected(ANNA, (step.document_id,)))
        assert await desk.one(look) is None
