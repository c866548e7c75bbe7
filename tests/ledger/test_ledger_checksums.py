"""What vacuum left behind, and whether one of ours may have changed it since."""

from functools import partial

import pytest
from tests.kit.ledger import ANNA, EXPIRED_S, KEY, LEASE_S, Desk

from penstock.ledger.engine import generations, locks
from penstock.ledger.upkeep import checksums
from penstock.ledger.upkeep.audit_index import TablePlace
from penstock.ledger.upkeep.checksums import StoredChecksum
from penstock.model.nouns import Token, WorkerId

HERE = TablePlace("anna", "default", 1)


async def take(desk: Desk, token: str, lease_s: float = LEASE_S) -> bool:
    return await desk.ledger.write(locks.ACQUIRE, locks.Acquire(KEY, Token(token), WorkerId("w2"), "vacuum", lease_s))


async def store(desk: Desk, token: str = "t1", version: int = 7, sha256: str = "abc", place: TablePlace = HERE) -> bool:
    return await desk.ledger.write(
        checksums.STORE_CHECKSUM, checksums.NewChecksum(place, Token(token), version, sha256)
    )


async def stored(desk: Desk, owner: str = "anna") -> list[StoredChecksum]:
    return await desk.ledger.read(checksums.stored, owner)


@pytest.fixture
async def left(desk: Desk) -> StoredChecksum:
    """What a vacuum left just now."""
    assert await take(desk, "t1")
    assert await store(desk)
    [found] = await stored(desk)
    return found


async def held_since(desk: Desk, left: StoredChecksum) -> bool:
    return await desk.ledger.read(checksums.held_since, left)


async def test_storing_a_checksum_gives_the_lock_back_at_its_own_time(desk: Desk, left: StoredChecksum) -> None:
    assert (left.place, left.table_version, left.sha256) == (HERE, 7, "abc")
    assert await desk.one("SELECT token, worker_id, purpose, lease_until FROM locks") == (None, None, None, None)
    assert await desk.one("SELECT released_at FROM locks") == left.at
    assert not await held_since(desk, left)


async def test_i3_a_holder_that_lost_its_lock_stores_no_checksum(desk: Desk) -> None:
    assert not await store(desk)
    assert await take(desk, "t2")
    assert not await store(desk, "t1")
    assert await stored(desk) == []
    assert await desk.ledger.read(locks.held, KEY, Token("t2"))


async def test_a_later_checksum_takes_the_place_of_the_one_before(desk: Desk, left: StoredChecksum) -> None:
    await take(desk, "t2")
    assert await store(desk, "t2", 9, "def")
    [later] = await stored(desk)
    assert (later.table_version, later.sha256) == (9, "def")
    assert await held_since(desk, left)
    assert not await held_since(desk, later)


async def test_whoever_takes_the_lock_may_have_written(desk: Desk, left: StoredChecksum) -> None:
    await take(desk, "t2")
    assert await held_since(desk, left)
    assert await desk.ledger.write(locks.RELEASE, (KEY, Token("t2")))
    assert await held_since(desk, left)


async def test_a_step_that_takes_the_lock_may_have_written(desk: Desk, left: StoredChecksum) -> None:
    await desk.flipped()
    assert await held_since(desk, left)


async def test_a_clock_that_was_set_back_hides_nobody(desk: Desk, left: StoredChecksum) -> None:
    await take(desk, "t2")
    await desk.ledger.write(locks.RELEASE, (KEY, Token("t2")))
    await desk.rows(f"UPDATE locks SET released_at = {left.at} - 3600 RETURNING 1")
    assert await held_since(desk, left)


async def test_the_next_holder_knows_whether_anybody_came_between(desk: Desk, left: StoredChecksum) -> None:
    await take(desk, "t2")
    assert await desk.ledger.read(checksums.before_holder, HERE) == left
    await desk.ledger.write(locks.RELEASE, (KEY, Token("t2")))
    await take(desk, "t3")
    assert await desk.ledger.read(checksums.before_holder, HERE) is None


async def test_one_whose_lease_lapsed_came_between_too(desk: Desk, left: StoredChecksum) -> None:
    await take(desk, "t2", EXPIRED_S)
    assert await take(desk, "t3")
    assert await desk.ledger.read(checksums.before_holder, HERE) is None


async def test_a_checksum_is_dropped_for_one_table_alone(desk: Desk, left: StoredChecksum) -> None:
    await desk.ledger.write(checksums.DROP_CHECKSUM, TablePlace("anna", "default", 2))
    await desk.ledger.write(checksums.DROP_CHECKSUM, TablePlace("bert", "default", 1))
    assert await stored(desk) == [left]
    await desk.ledger.write(checksums.DROP_CHECKSUM, HERE)
    assert await stored(desk) == []
    assert await desk.ledger.read(checksums.before_holder, HERE) is None


async def test_checksums_are_shown_by_owner_or_all(desk: Desk, left: StoredChecksum) -> None:
    assert await stored(desk, "bert") == []
    assert await stored(desk, "") == [left]


async def test_purges_of_a_table_are_those_that_are_due(desk: Desk) -> None:
    await desk.submit(*"abcdef")
    await desk.rows(
        "INSERT INTO purges (generation_id, owner, collection, index_version, not_before) VALUES "
        "(1, 'anna', 'default', 1, 0), (2, 'anna', 'default', 1, 9e9), (3, 'bert', 'default', 1, 0), "
        "(4, 'anna', 'other', 1, 0), (5, 'anna', 'default', 2, 0), (6, 'anna', 'default', 1, 1) RETURNING 1"
    )
    due = partial(generations.due_purges_in, ANNA)
    assert await desk.ledger.read(due, "default", 1, 10) == [1, 6]
    assert await desk.ledger.read(due, "default", 1, 1) == [1]
