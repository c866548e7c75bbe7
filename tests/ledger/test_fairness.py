"""Priority first, then shares: nobody starves behind ten thousand documents of another."""

from collections import Counter

import pytest
from tests.kit.ledger import ANNA, BERT, Desk

from penstock.model.nouns import Owner, Step

MANY = 10_000
DOZEN = 12


async def submit(desk: Desk, count: int, owner: Owner = ANNA, name: str = "bulk", priority: int = 0) -> None:
    await desk.submit(*(f"/{name}/{i}" for i in range(count)), owner=owner, priority=priority)


async def fresh(desk: Desk, count: int) -> list[Step]:
    """What is claimed next, one by one."""
    return [step for _ in range(count) for step in await desk.claim(1)]


async def test_three_documents_start_at_once_beside_ten_thousand_of_another(desk: Desk) -> None:
    await submit(desk, MANY)
    assert len(await desk.claim(100)) == 100
    await submit(desk, 3, BERT)
    owners = Counter(step.owner for step in await fresh(desk, DOZEN))
    assert owners == {BERT: 3, ANNA: DOZEN - 3}, "and the other goes on meanwhile"
    await submit(desk, 3, BERT, "more")
    assert Counter(step.owner for step in await fresh(desk, DOZEN))[BERT] == 3, "who came before comes as soon again"


async def test_a_priority_overtakes_a_bulk_load_also_where_steps_would_be_chained(desk: Desk) -> None:
    await submit(desk, MANY)
    [running] = await desk.claim(1)
    await submit(desk, 2, ANNA, "urgent", priority=1)
    assert (await desk.complete(running, "chunk", chain=True)).next is None, "the bulk makes room"
    kinds = ("extract", "chunk", "embed")
    [first] = await desk.claim(1, *kinds)
    assert first.priority == 1
    waiting = await desk.complete(first, "chunk", chain=True)
    assert waiting.next is not None, "what is as urgent goes on"
    [second] = await desk.claim(1, *kinds)
    assert second.priority == 1
    for step in (second, waiting.next):
        assert (await desk.complete(step, "embed", chain=True)).next is not None
    [bulk] = await desk.claim(1, *kinds)
    assert (bulk.priority, bulk.kind, bulk.run_id) == (0, "chunk", running.run_id), "now its turn comes again"
    assert (await desk.complete(bulk, "embed", chain=True)).next is not None


@pytest.mark.parametrize("claimed", [0, 600])
async def test_equal_owners_share(desk: Desk, claimed: int) -> None:
    """Whoever comes later has no claim on what the others had before, and loses nothing from now on."""
    owners = [Owner(name) for name in ("anna", "bert", "carl", "dora")]
    for owner in owners[:-1]:
        await submit(desk, 500, owner)
    await desk.claim(claimed)
    await submit(desk, 500, owners[-1])
    shares = Counter(step.owner for step in await desk.claim(400))
    assert len(shares) == len(owners)
    assert max(shares.values()) - min(shares.values()) <= len(owners), shares
