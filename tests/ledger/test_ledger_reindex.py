"""Re-index in the ledger: what the switch, an undo and a cancel need, and what they change."""

import asyncio

import pytest
from tests.kit.ledger import ANNA, BERT, Desk
from tests.ledger.outcomes import RECIPE, reindexing, staged, start_order, started

from penstock.ledger.engine import reindexes, switches

SWITCH = switches.Switch(ANNA, "default", 2)


async def states(desk: Desk) -> list[tuple[object, ...]]:
    return await desk.rows("SELECT index_version, state, staging FROM generations ORDER BY id")


async def test_i5_a_switch_needs_every_document_at_its_newest_content(desk: Desk) -> None:
    step = await reindexing(desk)
    assert not await desk.ledger.write(switches.SWITCH, SWITCH)
    assert await desk.ledger.write(reindexes.START_REINDEX, start_order(desk, step)) == 1
    assert await desk.ledger.write(reindexes.START_REINDEX, start_order(desk, step)) == 0
    assert not await desk.ledger.write(switches.SWITCH, SWITCH)
    assert await states(desk) == [(1, "ACTIVE", 0), (2, "BUILDING", 1)]


async def test_i5_a_staged_generation_is_not_active_before_the_switch_and_alone_after_it(desk: Desk) -> None:
    await staged(desk)
    assert await states(desk) == [(1, "ACTIVE", 0), (2, "BUILDING", 1)]
    await desk.rows("UPDATE generations SET flipped_at = 1 WHERE index_version = 1")
    assert await desk.ledger.write(switches.SWITCH, SWITCH)
    assert await states(desk) == [(1, "BUILDING", 1), (2, "ACTIVE", 0)]
    assert not await desk.ledger.write(switches.SWITCH, SWITCH)


async def test_i5_a_change_or_a_delete_takes_the_staged_generation_away(desk: Desk) -> None:
    await staged(desk)
    await desk.submit("/a", content="v2")
    assert await states(desk) == [(1, "ACTIVE", 0), (2, "SUPERSEDED", 0), (1, "BUILDING", 0)]
    assert not await desk.ledger.write(switches.SWITCH, SWITCH)
    [(document,)] = await desk.rows("SELECT id FROM documents")
    await desk.delete(document)
    assert {row[1] for row in await states(desk)} == {"SUPERSEDED"}
    assert len(await desk.rows("SELECT generation_id FROM purges")) == 3


async def test_i5_a_document_that_is_being_ingested_holds_the_switch(desk: Desk) -> None:
    await staged(desk)
    await desk.submit("/b")
    assert not await desk.ledger.write(switches.SWITCH, SWITCH)


async def test_a_retry_after_a_cancel_starts_a_new_run(desk: Desk) -> None:
    """The content that is searchable is older than the document: its newest run failed, and then its re-index ended."""
    step = await reindexing(desk)
    await desk.fail(await desk.started("/a", content="v2"))
    assert await desk.ledger.write(reindexes.START_REINDEX, start_order(desk, step)) == 1
    await desk.ledger.write(reindexes.CHANGE_REINDEX, reindexes.Change(ANNA, "default", "CANCELLING"))
    assert await desk.ledger.write(switches.CLEAR_REINDEX, switches.Clear(ANNA, "default", 2, 9)) == 1
    assert await desk.rows("SELECT status FROM documents") == [("CANCELLED",)]
    await desk.submit("/a", content="v2", retry=True)
    assert (await states(desk))[-1] == (1, "BUILDING", 0)
    assert await desk.rows("SELECT status FROM runs ORDER BY generation_id DESC LIMIT 1") == [("OPEN",)]


async def test_i5_on_postgres_a_switch_waits_for_submits_in_progress(desk: Desk) -> None:
    if desk.ledger.database.dialect != "postgres":
        pytest.skip("SQLite has one writer")
    await staged(desk)
    other = desk.ledger.database.connect()
    try:
        other.script("BEGIN")
        other.script("UPDATE generations SET size = size")
        switching = asyncio.create_task(desk.ledger.write(switches.SWITCH, SWITCH))
        done, _ = await asyncio.wait([switching], timeout=0.3)
        assert not done
        other.script("COMMIT")
        assert await switching
        # And a submit that waits for the switch reads the version after it.
        other.script("BEGIN")
        other.script("LOCK TABLE generations IN SHARE ROW EXCLUSIVE MODE")
        submitting = asyncio.create_task(desk.submit("/b"))
        done, _ = await asyncio.wait([submitting], timeout=0.3)
        assert not done
        other.script("UPDATE index_versions SET state = 'RETIRED' WHERE state = 'CURRENT'")
        other.script("UPDATE index_versions SET state = 'CURRENT' WHERE version = 1")
        other.script("COMMIT")
        await submitting
        assert (await states(desk))[-1] == (1, "BUILDING", 0)
    finally:
        other.close()


async def test_i10_a_re_index_of_another_owner_is_not_there(desk: Desk) -> None:
    await staged(desk)
    before = await states(desk)
    assert not await desk.ledger.write(switches.SWITCH, switches.Switch(BERT, "default", 2))
    assert await desk.ledger.write(reindexes.CHANGE_REINDEX, reindexes.Change(BERT, "default", "CANCELLING")) is None
    assert await desk.ledger.write(switches.UNDO, switches.Undo(BERT, "default", RECIPE)) is None
    assert await desk.ledger.write(switches.CLEAR_REINDEX, switches.Clear(BERT, "default", 2, 9)) == 0
    assert await states(desk) == before


async def test_a_cancel_stops_runs_and_gives_the_documents_their_status_back(desk: Desk) -> None:
    await started(desk)
    clear = switches.Clear(ANNA, "default", 2, 9)
    assert await desk.ledger.write(switches.CLEAR_REINDEX, clear) == 0, "it is not cancelled"
    await desk.ledger.write(reindexes.CHANGE_REINDEX, reindexes.Change(ANNA, "default", "CANCELLING"))
    assert await desk.ledger.write(switches.CLEAR_REINDEX, clear) == 1
    assert await desk.ledger.write(switches.CLEAR_REINDEX, clear) == 0
    assert await desk.rows("SELECT status FROM documents") == [("COMPLETED",)]
    assert await desk.rows("SELECT status FROM runs ORDER BY generation_id") == [("COMPLETED",), ("CANCELLED",)]
    assert await desk.rows("SELECT version, state FROM index_versions ORDER BY version") == [
        (1, "CURRENT"),
        (2, "RETIRED"),
    ]
    assert await desk.rows("SELECT collection FROM reindexes") == []
