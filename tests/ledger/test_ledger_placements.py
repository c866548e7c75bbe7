"""Versions of an index, and placements of generations in them: what is whole where, and how old ledgers get them."""

from functools import partial
from typing import Any

import pytest
from tests.kit.ledger import ANNA, BERT, Desk

from penstock.ledger.database import versions
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.migrations import MIGRATIONS
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import generations, index_versions
from penstock.model.nouns import GenerationId
from penstock.runtime import Runtime


async def visible(desk: Desk, version: int, *candidates: GenerationId) -> set[GenerationId]:
    return set(await desk.ledger.read(lambda c: generations.visible(ANNA, c, version, candidates)))


async def hidden(desk: Desk, version: int) -> list[GenerationId]:
    return await desk.ledger.read(lambda c: generations.hidden(ANNA, c, "default", version))


async def bind(desk: Desk, embedder: str, *former: str, version: int = 1) -> index_versions.IndexVersion | None:
    binding = index_versions.Binding(ANNA, "default", version, embedder, 8, former)
    return await desk.ledger.write(index_versions.BIND, binding)


async def test_i5_a_placement_is_whole_only_with_the_flip(desk: Desk) -> None:
    step = await desk.placed()
    assert await desk.rows("SELECT version, state FROM placements") == [(1, "BUILDING")]
    assert await desk.flip(step)
    assert await desk.rows("SELECT version, state FROM placements") == [(1, "READY")]


async def test_i5_what_is_not_whole_in_a_version_is_not_visible_in_it(desk: Desk) -> None:
    step = await desk.flipped()
    assert await visible(desk, 1, step.generation_id) == {step.generation_id}
    assert await visible(desk, 2, step.generation_id) == set(), "it has no place there"
    await desk.rows(f"INSERT INTO placements VALUES ({step.generation_id}, 2, 'BUILDING') RETURNING 1")
    assert await visible(desk, 2, step.generation_id) == set(), "its rows are still being written"
    await desk.rows("UPDATE placements SET state = 'READY' RETURNING 1")
    assert await visible(desk, 2, step.generation_id) == {step.generation_id}


async def test_i5_a_generation_is_hidden_in_the_version_that_it_was_made_for(desk: Desk) -> None:
    """It has rows in no other: a re-index makes generations of its own."""
    step = await desk.flipped()
    assert [await hidden(desk, version) for version in (1, 2)] == [[], []]
    await desk.delete(step.document_id)
    assert [await hidden(desk, version) for version in (1, 2)] == [[step.generation_id], []]


async def test_i5_a_generation_is_purged_when_it_has_left_every_version(desk: Desk) -> None:
    step = await desk.flipped()
    await desk.rows(f"INSERT INTO placements VALUES ({step.generation_id}, 2, 'READY') RETURNING 1")
    await desk.delete(step.document_id)
    due = await desk.ledger.read(generations.due_purges, 10, 61.0)
    assert sorted((purge.generation, purge.version) for purge in due) == [
        (step.generation_id, 1),
        (step.generation_id, 2),
    ]
    await desk.rows("UPDATE purges SET not_before = 0 RETURNING 1")
    due_in = partial(generations.due_purges_in, ANNA)
    for version in (1, 2):
        assert await desk.ledger.read(due_in, "default", version, 10) == [step.generation_id]
        await desk.ledger.write(generations.PURGED, generations.Removed(version, (step.generation_id,)))
        assert await desk.ledger.read(due_in, "default", version, 10) == []
        state = "PURGED" if version == 2 else "SUPERSEDED"
        assert await desk.one("SELECT state FROM generations") == state
        assert len(await desk.rows("SELECT 1 FROM purges")) == 2 - version
    assert await desk.rows("SELECT 1 FROM placements") == []


async def test_a_generation_without_rows_is_purged_from_the_version_that_it_was_made_for(desk: Desk) -> None:
    step = await desk.started()
    await desk.delete(step.document_id)
    [due] = await desk.ledger.read(generations.due_purges, 10, 61.0)
    assert (due.generation, due.version) == (step.generation_id, 1)
    await desk.ledger.write(generations.PURGED, generations.Removed(1, (step.generation_id,)))
    assert await desk.one("SELECT state FROM generations") == "PURGED"


async def test_i5_nothing_is_written_for_a_generation_that_is_no_longer_built(desk: Desk) -> None:
    """Whatever the lease of its step says."""
    step = await desk.indexing()
    writing = generations.Writing(step.lease.step_id, step.lease.token, step.generation_id)
    for state in ("SUPERSEDED", "ACTIVE", "PURGED"):
        await desk.rows(f"UPDATE generations SET state = '{state}' RETURNING 1")
        assert await desk.ledger.write(generations.WRITE, writing) is None, state
    assert await desk.rows("SELECT version FROM placements") == []
    await desk.rows("UPDATE generations SET state = 'BUILDING' RETURNING 1")
    assert await desk.ledger.write(generations.WRITE, writing) is False


async def test_a_document_that_is_not_indexed_has_no_placement(desk: Desk) -> None:
    assert await desk.flip(await desk.started())
    assert await desk.rows("SELECT 1 FROM placements") == []


async def test_the_first_embedder_that_writes_into_a_version_is_its_embedder(desk: Desk) -> None:
    await desk.submit("/a")
    current = partial(index_versions.current, ANNA)
    assert await desk.ledger.read(current, "default") == index_versions.IndexVersion(1, None, None)
    first = index_versions.IndexVersion(1, "one", 8)
    assert await bind(desk, "one") == await bind(desk, "two") == first
    assert await desk.ledger.read(current, "default") == first
    assert await bind(desk, "new", "one") == index_versions.IndexVersion(1, "new", 8)
    assert await desk.ledger.read(current, "other") is None
    assert await desk.ledger.read(partial(index_versions.current, BERT), "default") is None


async def test_the_current_version_is_read_and_new_generations_are_made_for_it(desk: Desk) -> None:
    await desk.submit("/a")
    await bind(desk, "one")
    await desk.rows("UPDATE index_versions SET state = 'RETIRED' RETURNING 1")
    assert await bind(desk, "two", version=2) == index_versions.IndexVersion(2, "two", 8)
    assert (await desk.ledger.read(partial(index_versions.current, ANNA), "default")) == index_versions.IndexVersion(
        2, "two", 8
    )
    await desk.submit("/b")
    assert sorted(await desk.rows("SELECT index_version FROM generations")) == [(1,), (2,)]
    assert await bind(desk, "three", version=1) == index_versions.IndexVersion(1, "one", 8)


OLD = 11
STATES = {
    # name: (status, state, written, flipped, deleted)
    "pending": ("PENDING", "BUILDING", 0, None, None),
    "extracting": ("EXTRACTING", "BUILDING", 0, None, None),
    "indexing": ("INDEXING", "BUILDING", 1, None, None),
    "completed": ("COMPLETED", "ACTIVE", 1, 5.0, None),
    "not_indexable": ("NOT_INDEXABLE", "ACTIVE", 0, 5.0, None),
    "failed": ("FAILED", "BUILDING", 1, None, None),
    "cancelled": ("CANCELLED", "SUPERSEDED", 1, None, None),
    "replaced": ("COMPLETED", "SUPERSEDED", 1, 5.0, None),
    "deleted": ("COMPLETED", "SUPERSEDED", 1, 5.0, 6.0),
    "gone": ("COMPLETED", "PURGED", 0, 5.0, 6.0),
}


def _old_ledger(connection: Connection) -> None:
    connection.script("INSERT INTO collections VALUES ('anna', 'default', 1, 'model:8', 8, 1.0)")
    connection.script("INSERT INTO collections VALUES ('anna', 'empty', 1, NULL, NULL, 1.0)")
    for number, (name, (status, state, written, flipped, deleted)) in enumerate(STATES.items(), 1):
        connection.script(
            "INSERT INTO documents (id, owner, collection, source, name, size, sha256, status, created_at, updated_at, "
            f"deleted_at) VALUES ('{name}', 'anna', 'default', '/{name}', '{name}', 1, 'h', '{status}', 1, 1, "
            f"{deleted or 'NULL'})"
        )
        connection.script(
            "INSERT INTO generations (id, document_id, owner, collection, index_version, state, written, raw_key, "
            f"size, sha256, created_at, flipped_at) VALUES ({number}, '{name}', 'anna', 'default', 1, '{state}', "
            f"{written}, 'k{number}', 1, 'h', 1, {flipped or 'NULL'})"
        )
        if state == "SUPERSEDED":
            connection.script(f"INSERT INTO purges VALUES ({number}, 'anna', 'default', 1, 1.0)")


@pytest.fixture(params=["sqlite", "postgres"])
async def old(request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a ledger of version 11 with a document in every state."""
    url = f"sqlite:///{tmp_path / 'old.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("empty_postgres")
    with monkeypatch.context() as patch:
        patch.setattr(versions, "LATEST", OLD)
        # Migrations one by one: `schema.sql` makes the latest version.
        patch.setattr(versions, "_statements", lambda on, found, number: MIGRATIONS[number - 1](on.dialect))
        runtime = Runtime()
        ledger = Ledger(Database(url, runtime))
        ledger.open_here()
        connection = ledger.database.connect()
        connection.begin()
        _old_ledger(connection)
        connection.commit()
        connection.close()
        await ledger.close()
        runtime.close()
    return url


async def test_an_old_ledger_with_a_document_in_every_state_gets_versions_and_placements(old: str) -> None:
    runtime = Runtime()
    ledger = Ledger(Database(old, runtime))
    await ledger.open()
    desk = Desk(ledger)
    try:
        number = {name: GenerationId(i) for i, name in enumerate(STATES, 1)}
        assert await desk.rows(
            "SELECT owner, collection, version, state, embedder, dimensions FROM index_versions"
        ) == [("anna", "default", 1, "CURRENT", "model:8", 8)]
        placed = await desk.rows("SELECT generation_id, version, state FROM placements ORDER BY generation_id")
        assert placed == [
            (number["indexing"], 1, "BUILDING"),
            (number["completed"], 1, "READY"),
            (number["failed"], 1, "BUILDING"),
            (number["cancelled"], 1, "BUILDING"),
            (number["replaced"], 1, "READY"),
            (number["deleted"], 1, "READY"),
        ]
        current = partial(index_versions.current, ANNA)
        assert await ledger.read(current, "default") == index_versions.IndexVersion(1, "model:8", 8)
        assert await ledger.read(current, "empty") == index_versions.IndexVersion(1, None, None)
        assert await visible(desk, 1, *number.values()) == {number["completed"]}
        names = ("indexing", "failed", "cancelled", "replaced", "deleted")
        assert sorted(await hidden(desk, 1)) == sorted(number[name] for name in names)
        due = await ledger.read(generations.due_purges, 10)
        leaving = sorted(number[name] for name in ("cancelled", "replaced", "deleted"))
        assert sorted(purge.generation for purge in due) == leaving
        await ledger.write(generations.PURGED, generations.Removed(1, tuple(leaving)))
        assert {row[0] for row in await desk.rows("SELECT generation_id FROM placements")} == {
            number["indexing"], number["completed"], number["failed"],
        }  # fmt: skip
        assert await bind(desk, "other") == index_versions.IndexVersion(1, "model:8", 8)
    finally:
        await ledger.close()
        runtime.close()
