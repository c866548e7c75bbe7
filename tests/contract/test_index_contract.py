"""What every index adapter must do. Another adapter joins by adding its factory to `INDEXES`.

The suite asks the traits, and `maintained`, and skips what does not apply to an adapter."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tests.kit.sqlite_index import SqliteIndex
from tests.kit.tables import TABLE, there, upkeep_of
from tests.kit.vector_databases import DATABASES, emptied, index_in

from penstock.errors import LeaseLost, Permanent, Transient, UsageError
from penstock.indexes.base import (
    Filter,
    Index,
    IndexRows,
    IndexTable,
    Maintained,
    RowSpan,
    StoredRow,
    TableId,
    TextQuery,
    VectorQuery,
    maintained,
    row_digest,
)
from penstock.indexes.lance import LanceIndex
from penstock.indexes.pgvector import PgIndex
from penstock.model.items import Chunk, Vectors
from penstock.runtime import Runtime

D = 32
INDEXES: dict[str, Callable[[Path, Runtime], Index]] = {"lance": LanceIndex, "sqlite": SqliteIndex}
SERVERS: dict[str, Callable[[str, str, Runtime], Index]] = {
    "pgvector": lambda url, name, runtime: PgIndex(url, runtime, schema=name)
}
"""Those in a PostgreSQL server: by its URL, and a name that only one test uses."""


async def held() -> None:
    """The index lock is ours."""


async def lost() -> None:
    raise LeaseLost("the index lock is somebody else's")


def vector_of(generation: int, ordinal: int) -> Vectors:
    digest = hashlib.sha256(f"{generation}/{ordinal}".encode()).digest()
    vector = np.frombuffer(digest, np.uint8).astype(np.float32) - 127.5
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


def chunk_of(generation: int, ordinal: int, text: str = "") -> Chunk:
    words = text or f"common words of generation{generation} and only{generation}x{ordinal} here"
    return Chunk(ordinal, words, ordinal // 3 + 1, ordinal // 3 + 2, ordinal, ordinal + 9, ("Part", f"Ünit {ordinal}"))


def rows(generation: int, count: int, *, epoch: int = 1, first: int = 0, text: str = "") -> IndexRows:
    ordinals = range(first, first + count)
    return IndexRows(
        generation,
        epoch,
        f"doc{generation}",
        [chunk_of(generation, ordinal, text) for ordinal in ordinals],
        np.stack([vector_of(generation, ordinal) for ordinal in ordinals]),
    )


async def stored(table: IndexTable) -> list[StoredRow]:
    return sorted([row async for batch in table.scan() for row in batch])


async def ids_by_text(
    table: IndexTable, query: str, k: int = 100, hidden: tuple[int, ...] = ()
) -> set[tuple[int, int]]:
    return {(hit.generation, hit.ordinal) for hit in await table.search(TextQuery(query), k, Filter(hidden))}


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    runtime = Runtime()
    yield runtime
    runtime.close()


@pytest.fixture(params=[*INDEXES, *SERVERS, *DATABASES])
def make_index(request: pytest.FixtureRequest, tmp_path: Path, runtime: Runtime) -> Callable[[], Index]:
    if request.param in INDEXES:
        return lambda: INDEXES[request.param](tmp_path / "index", runtime)
    if request.param in SERVERS:
        url, name = request.getfixturevalue("index_database"), f"t{runtime.token()}"
        return lambda: SERVERS[request.param](url, name, runtime)
    setting = request.getfixturevalue("vector_databases")(request.param, "contract")
    return lambda: index_in(setting, runtime)


@pytest.fixture
async def open_index(make_index: Callable[[], Index]) -> AsyncIterator[Callable[[], Index]]:
    """Each call is another process's view of the same index."""
    async with emptied(make_index) as another:
        yield another


@pytest.fixture
async def table(open_index: Callable[[], Index]) -> IndexTable:
    return await open_index().create(TABLE, D)


@pytest.fixture
def kept(table: IndexTable) -> Maintained:
    """The upkeep of the table, for tests that are about nothing else."""
    found = maintained(table)
    if found is None:
        pytest.skip("the server does its upkeep itself")
    return found


@pytest.fixture
def by_text(open_index: Callable[[], Index]) -> None:
    if "text" not in open_index().traits.modes:
        pytest.skip("it does not search by text")


@pytest.fixture
def hides(open_index: Callable[[], Index]) -> None:
    if "generation" not in open_index().traits.filters:
        pytest.skip("search itself leaves generations out")


async def tidy(table: IndexTable) -> None:
    """What upkeep does now and then must change nothing for readers."""
    if (found := maintained(table)) is not None:
        await found.optimize(held, force=True)


async def test_appended_rows_are_found_by_vector_and_by_text(table: IndexTable) -> None:
    await table.put([rows(1, 5), rows(2, 3)], held, fresh=True)

    hit = (await table.search(VectorQuery(vector_of(1, 4)), 3))[0]
    assert hit[:3] == (1, 4, "doc1")
    assert hit.score == pytest.approx(1.0, abs=1e-3)
    assert Chunk(hit.ordinal, *hit[4:10]) == chunk_of(1, 4)

    found = await table.search(TextQuery("only2x1"), 3)
    assert [(hit.generation, hit.ordinal) for hit in found] == [(2, 1)]
    assert Chunk(found[0].ordinal, *found[0][4:10]) == chunk_of(2, 1)
    assert await table.count() == 8
    assert table.dimensions == D


async def test_hits_come_best_first_and_no_more_than_k(table: IndexTable) -> None:
    await table.put([rows(1, 40)], held, fresh=True)
    for found in (
        await table.search(VectorQuery(vector_of(1, 7)), 10),
        await table.search(TextQuery("common only1x7"), 10),
    ):
        assert len(found) == 10
        assert (found[0].generation, found[0].ordinal) == (1, 7)
        assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert await table.search(VectorQuery(vector_of(1, 7)), 0) == []


@pytest.mark.usefixtures("hides")
async def test_i5_hidden_generations_are_not_found_and_do_not_use_up_k(table: IndexTable) -> None:
    await table.put([rows(generation, 10) for generation in (1, 2, 3)], held, fresh=True)
    by_vector = await table.search(VectorQuery(vector_of(1, 1)), 10, Filter([1, 3]))
    by_text = await table.search(TextQuery("common"), 10, Filter([1, 3]))
    for found in (by_vector, by_text):
        assert {hit.generation for hit in found} == {2}
        assert len(found) == 10


async def test_i3_doubles_are_collapsed_and_k_hits_are_still_found(table: IndexTable) -> None:
    await table.put([rows(1, 20)], held, fresh=True)
    for epoch in (2, 3, 4):
        await table.put([rows(1, 6, epoch=epoch)], held, fresh=True)
    assert await table.count() in (20, 38), "replaced by id, or added and collapsed when they are read"
    for found in (await table.search(VectorQuery(vector_of(1, 2)), 20), await table.search(TextQuery("common"), 20)):
        assert {(hit.generation, hit.ordinal) for hit in found} == {(1, ordinal) for ordinal in range(20)}
        assert len(found) == 20


async def test_merge_replaces_rows_of_the_same_id_and_adds_the_others(table: IndexTable) -> None:
    await table.put([rows(1, 6), rows(2, 2)], held, fresh=True)
    await table.put([rows(1, 2, epoch=2)], held, fresh=True)
    await table.put([rows(1, 6, epoch=3, first=3, text="entirely new")], held, fresh=False)
    found = await stored(table)
    assert [row[:3] for row in found if row.generation == 1 and row.ordinal >= 3] == [(1, n, 3) for n in range(3, 9)]
    others = [row[:3] for row in found if row.ordinal < 2]
    assert others in (
        [(1, 0, 1), (1, 0, 2), (1, 1, 1), (1, 1, 2), (2, 0, 1), (2, 1, 1)],
        [(1, 0, 2), (1, 1, 2), (2, 0, 1), (2, 1, 1)],
    )
    assert await ids_by_text(table, "entirely") == {(1, ordinal) for ordinal in range(3, 9)}
    assert (1, 4) not in await ids_by_text(table, "only1x4")


async def test_merge_leaves_one_row_where_there_were_doubles(table: IndexTable) -> None:
    await table.put([rows(1, 4)], held, fresh=True)
    await table.put([rows(1, 4, epoch=2)], held, fresh=True)
    await table.put([rows(1, 4, epoch=3)], held, fresh=False)
    assert [row[:3] for row in await stored(table)] == [(1, ordinal, 3) for ordinal in range(4)]


async def test_rows_that_are_not_there_are_added_by_id_too(table: IndexTable) -> None:
    await table.put([rows(1, 4)], held, fresh=False)
    assert await table.count() == 4


async def test_deleted_generations_are_gone_and_others_stay(table: IndexTable) -> None:
    await table.put([rows(1, 4), rows(2, 4)], held, fresh=True)
    await table.put([rows(3, 4), rows(1, 2, epoch=2)], held, fresh=True)
    await tidy(table)
    await table.delete([1, 3, 99], held)
    assert {row.generation for row in await stored(table)} == {2}
    assert await ids_by_text(table, "common") == {(2, ordinal) for ordinal in range(4)}
    await table.delete([2], held)
    assert await table.count() == 0
    assert await table.search(VectorQuery(vector_of(1, 1)), 5) == []
    await table.put([rows(4, 2)], held, fresh=True)
    assert await ids_by_text(table, "common") == {(4, 0), (4, 1)}


async def test_dedupe_keeps_one_row_of_each_id_that_of_the_highest_epoch(table: IndexTable, kept: Maintained) -> None:
    await table.put([rows(1, 5), rows(2, 2)], held, fresh=True)
    await table.put([rows(1, 3, epoch=2)], held, fresh=True)
    await table.put([rows(1, 1, epoch=2), rows(2, 2)], held, fresh=True)
    assert await kept.dedupe([1], held) == 4
    found = [row[:3] for row in await stored(table)]
    assert [row for row in found if row[0] == 1] == [(1, 0, 2), (1, 1, 2), (1, 2, 2), (1, 3, 1), (1, 4, 1)]
    assert len([row for row in found if row[0] == 2]) == 4
    assert await kept.dedupe([1], held) == 0
    assert await kept.dedupe([2, 3], held) == 2


async def test_hits_are_filled_wherever_their_rows_are_by_then(table: IndexTable) -> None:
    await table.put([rows(1, 4)], held, fresh=True)
    await table.put([rows(2, 4)], held, fresh=True)
    await table.put([rows(3, 4)], held, fresh=True)
    query = TextQuery("common")
    wanted = await table.search(query, 20)
    assert len(wanted) == 12
    bare = await table.search(query, 20, whole=False)
    assert [(hit[:2], hit.score) for hit in bare] == [(hit[:2], hit.score) for hit in wanted]
    assert await table.fill(bare) == wanted
    assert await table.fill(bare[3:1:-1]) == [wanted[3], wanted[2]]
    assert await table.fill([]) == []

    await table.delete([2], held)
    if (kept := maintained(table)) is not None:
        # All rows move to another file.
        await kept.compact(held)
    left = [hit for hit in wanted if hit.generation != 2]
    assert [hit for hit in await table.fill(bare) if hit.generation != 2] == left
    if kept is not None:
        assert await table.fill(bare) == left
    assert {hit.text for hit in await table.search(VectorQuery(vector_of(3, 1)), 20)} == {hit.text for hit in left}


async def test_rows_that_came_after_the_last_optimize_are_found(table: IndexTable) -> None:
    await table.put([rows(1, 30)], held, fresh=True)
    await tidy(table)
    await table.put([rows(2, 3)], held, fresh=True)
    assert await ids_by_text(table, "only2x1 only1x7") == {(2, 1), (1, 7)}
    assert (await table.search(VectorQuery(vector_of(2, 1)), 1))[0][:2] == (2, 1)
    assert len(await ids_by_text(table, "common")) == 33


async def test_a_table_that_was_never_written_is_empty(table: IndexTable) -> None:
    assert await table.count() == 0
    assert await table.search(VectorQuery(vector_of(1, 1)), 5, Filter([1])) == []
    assert await table.search(TextQuery("anything"), 5) == []
    assert await stored(table) == []
    await table.delete([1], held)
    await table.put([], held, fresh=True)
    await tidy(table)
    assert await table.count() == 0


async def test_upkeep_of_an_empty_table_does_nothing(table: IndexTable, kept: Maintained) -> None:
    assert await kept.dedupe([1], held) == 0
    await kept.optimize(held, force=True)
    await kept.compact(held)
    assert await table.count() == 0


async def test_two_processes_see_each_others_commits(open_index: Callable[[], Index]) -> None:
    here = await open_index().create(TABLE, D)
    other = await there(open_index())
    assert await other.count() == 0
    await here.put([rows(1, 3)], held, fresh=True)
    assert await other.count() == 3
    await other.put([rows(2, 3)], held, fresh=True)
    await here.put([rows(3, 3)], held, fresh=True)
    await other.put([rows(1, 4, epoch=2)], held, fresh=False)
    assert await here.count() == await other.count() == 10
    await here.delete([1], held)
    assert await ids_by_text(other, "common") == await ids_by_text(here, "common")
    assert await other.count() == 6


async def test_i3_nothing_is_committed_when_the_lock_is_lost(table: IndexTable) -> None:
    with pytest.raises(LeaseLost):
        await table.put([rows(1, 3)], lost, fresh=True)
    assert await table.count() == 0
    await table.put([rows(1, 3)], held, fresh=True)
    await table.put([rows(1, 1, epoch=2)], held, fresh=True)
    before = await stored(table)
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: table.put([rows(2, 3)], lost, fresh=True),
        lambda: table.put([rows(1, 3, epoch=2)], lost, fresh=False),
        lambda: table.delete([1], lost),
    ]
    for change in changes:
        with pytest.raises(LeaseLost):
            await change()
    assert await stored(table) == before


async def test_i3_no_upkeep_is_committed_when_the_lock_is_lost(table: IndexTable, kept: Maintained) -> None:
    await table.put([rows(1, 3)], held, fresh=True)
    await table.put([rows(1, 1, epoch=2)], held, fresh=True)
    before = await stored(table)
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: kept.dedupe([1], lost),
        lambda: kept.optimize(lost, force=True),
        lambda: kept.compact(lost),
        lambda: kept.restore(1, lost),
    ]
    for change in changes:
        with pytest.raises(LeaseLost):
            await change()
    assert await stored(table) == before


async def test_vectors_of_another_size_are_refused_for_good(table: IndexTable) -> None:
    await table.put([rows(1, 3)], held, fresh=True)
    wide = IndexRows(2, 1, "doc2", [chunk_of(2, 0)], np.ones((1, D * 2), np.float32))
    for fresh in (True, False):
        with pytest.raises(Permanent, match="penstock reindex") as caught:
            await table.put([wide], held, fresh=fresh)
        assert caught.value.reason == "dimension_mismatch"
    with pytest.raises(Permanent, match="reindex"):
        await table.search(VectorQuery(np.ones(D * 2, np.float32)), 3)
    assert await table.count() == 3


@pytest.mark.usefixtures("by_text")
@pytest.mark.parametrize(
    "query",
    [
        "", " ", '"', "'", "''; DROP TABLE x", '"unclosed common', "(common OR", "common AND NOT", "text:common",
        "comm*", "~~", "\\", "\x00", "🙂", "🙂 common", "\ud800 common", "NULL",
        "a" * 100_000, "common " * 14_000, "東京" * 17_000,
        " ".join(f"w{n}" for n in range(20_000)),
    ],
    ids=lambda query: repr(query[:12]),
)  # fmt: skip
async def test_any_query_is_a_bag_of_words(table: IndexTable, query: str) -> None:
    await table.put([rows(1, 3)], held, fresh=True)
    found = await table.search(TextQuery(query), 5, Filter([9]))
    await tidy(table)
    assert len(await table.search(TextQuery(query), 5, Filter([9]))) == len(found)
    if "common" in query.replace(":", " ").split():
        assert len(found) == 3


@pytest.mark.usefixtures("by_text")
@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("She was running to the châteaux", "CHATEAU run"),
        ("東京大学の学生は毎日図書館で勉強します", "図書館"),
        ("我们在北京大学学习计算机科学", "北京"),
        ("한국어 문서를 검색합니다", "문서를"),
        ("see file_name.txt and user@example.org", "example"),
        ("der Überfluß", "uberfluss"),
        ("the who", "the who"),
    ],
)
async def test_words_are_found_whatever_their_form_or_script(table: IndexTable, text: str, query: str) -> None:
    await table.put([rows(1, 1, text=text), rows(2, 1, text="nothing of that kind")], held, fresh=True)
    assert await ids_by_text(table, query) == {(1, 0)}
    await tidy(table)
    assert await ids_by_text(table, query) == {(1, 0)}


async def test_rows_are_read_by_their_numbers(table: IndexTable) -> None:
    await table.put([rows(1, 6), rows(2, 6)], held, fresh=True)
    await table.put([rows(1, 6, epoch=2)], held, fresh=True)
    found = await table.rows([RowSpan(1, -2, 1), RowSpan(2, 4, 9), RowSpan(2, 5, 5), RowSpan(3, 0, 9)])
    assert sorted((hit.generation, hit.ordinal) for hit in found) == [(1, 0), (1, 1), (2, 4), (2, 5)]
    for hit in found:
        chunk = chunk_of(hit.generation, hit.ordinal)
        seen = (hit.text, hit.page, hit.page_end, hit.start, hit.end, hit.headings)
        assert seen == (chunk.text, chunk.page, chunk.page_end, chunk.start, chunk.end, chunk.headings)
    assert await table.rows([]) == []
    assert len(await table.rows([RowSpan(1, ordinal, ordinal) for ordinal in range(120)])) == 6


async def test_scanned_digests_are_those_of_the_chunks(table: IndexTable) -> None:
    await table.put([rows(1, 50), rows(2, 3, epoch=4)], held, fresh=True)
    assert await stored(table) == [
        StoredRow(generation, ordinal, epoch, row_digest(chunk_of(generation, ordinal)))
        for generation, epoch, count in ((1, 1, 50), (2, 4, 3))
        for ordinal in range(count)
    ]


def test_a_digest_changes_with_all_that_a_reader_sees() -> None:
    chunks = [
        Chunk(1, "text", 1, 2, 3, 4, ("a", "b")), Chunk(1, "texts", 1, 2, 3, 4, ("a", "b")),
        Chunk(1, "text", 2, 2, 3, 4), Chunk(1, "text", 1, 2, 3, 4, ("ab",)),
        Chunk(1, "text", 1, 3, 3, 4), Chunk(1, "text", 1, 2, 4, 4),
        Chunk(1, "text", 1, 2, 3, 5),
    ]  # fmt: skip
    assert len({row_digest(chunk) for chunk in chunks}) == len(chunks)


async def test_nothing_changes_for_readers_by_optimize_and_compact(table: IndexTable, kept: Maintained) -> None:
    for generation in range(1, 41):
        await table.put([rows(generation, 3)], held, fresh=True)
        await kept.optimize(held)
    await table.delete([5, 6], held)
    before, found = await stored(table), await ids_by_text(table, "common", 200)
    nearest = [hit[:2] for hit in await table.search(VectorQuery(vector_of(9, 1)), 20)]
    await kept.optimize(held, force=True)
    await kept.compact(held)
    assert await stored(table) == before
    assert await ids_by_text(table, "common", 200) == found
    assert [hit[:2] for hit in await table.search(VectorQuery(vector_of(9, 1)), 20)] == nearest
    await table.put([rows(99, 2)], held, fresh=True)
    assert await ids_by_text(table, "common", 200) == found | {(99, 0), (99, 1)}


async def test_a_checksum_is_the_same_for_everybody_until_somebody_commits(
    open_index: Callable[[], Index], table: IndexTable, kept: Maintained
) -> None:
    here, other = kept, await there(open_index())
    await table.put([rows(1, 3)], held, fresh=True)
    first, state = await here.checksum(), await here.state()
    assert first is not None
    assert state is not None
    assert state.version == first.version
    assert await upkeep_of(other).checksum() == first
    await other.put([rows(2, 3)], held, fresh=True)
    second = await here.checksum()
    assert second is not None
    assert second.version > first.version
    assert second.sha256 != first.sha256
    assert await here.checksum(first.version) == first


async def test_a_restored_table_is_what_it_was_and_can_be_written(table: IndexTable, kept: Maintained) -> None:
    await table.put([rows(1, 3), rows(2, 3)], held, fresh=True)
    before, state = await stored(table), await kept.state()
    assert state is not None
    await table.delete([1], held)
    await table.put([rows(3, 3)], held, fresh=True)
    await kept.restore(state.version, held)
    assert await stored(table) == before
    assert await ids_by_text(table, "common") == {(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)}
    later = await kept.state()
    assert later is not None
    assert later.version > state.version + 2
    await table.put([rows(4, 1)], held, fresh=True)
    assert await table.count() == 7


async def test_tables_are_listed_and_dropped(open_index: Callable[[], Index]) -> None:
    index = open_index()
    assert await index.tables() == []
    for info in (TableId("anna", "default", 1), TableId("anna", "default", 2), TableId("b.o+b@x", "c_1", 1)):
        await (await index.create(info, D)).put([rows(1, 2)], held, fresh=True)
    held_open = await there(open_index())
    assert await held_open.count() == 2
    await index.drop(TableId("anna", "default", 1))
    await index.drop(TableId("anna", "default", 1))
    assert await index.tables() == [TableId("anna", "default", 2), TableId("b.o+b@x", "c_1", 1)]
    assert await held_open.count() == 0
    assert await held_open.search(TextQuery("common"), 5) == []
    assert await index.open(TABLE) is None
    again = await index.create(TABLE, D)
    await again.put([rows(2, 3)], held, fresh=True)
    assert await again.count() == await held_open.count() == 3


async def test_a_table_that_was_dropped_takes_rows_again_or_says_so(open_index: Callable[[], Index]) -> None:
    held_open = await open_index().create(TABLE, D)
    await held_open.put([rows(1, 2)], held, fresh=True)
    await open_index().drop(TABLE)
    try:
        await held_open.put([rows(2, 2)], held, fresh=False)
    except Transient:
        assert await open_index().open(TABLE) is None
    else:
        assert {row.generation for row in await stored(await there(open_index()))} == {2}


async def test_a_table_is_there_once_it_was_created_and_creating_it_again_changes_nothing(
    open_index: Callable[[], Index],
) -> None:
    index = open_index()
    assert await index.open(TABLE) is None
    table = await index.create(TABLE, D)
    assert table.dimensions == (await there(open_index())).dimensions == D
    assert await index.tables() == [TABLE]
    await table.put([rows(1, 2)], held, fresh=True)
    assert await (await open_index().create(TABLE, D)).count() == 2
    with pytest.raises(Permanent) as caught:
        await open_index().create(TABLE, D * 2)
    assert caught.value.reason == "dimension_mismatch"


async def test_many_writers_at_once_lose_nothing_and_double_nothing(open_index: Callable[[], Index]) -> None:
    index = open_index()
    if index.traits.single_writer:
        pytest.skip("its writers hold a lock")
    await index.create(TABLE, D)

    async def write(number: int) -> None:
        table = await there(open_index())
        await table.put([rows(1, 10, epoch=number), rows(10 + number, 5)], held, fresh=number == 1)
        if number % 2:
            await table.delete([10 + number], held)

    await asyncio.gather(*(write(number) for number in range(1, 9)))
    found = [row[:2] for row in await stored(await there(index))]
    assert found == [(1, n) for n in range(10)] + [(g, n) for g in (12, 14, 16, 18) for n in range(5)]


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b", "ä", "a\n", "a\x00"])
async def test_i10_names_that_could_leave_their_folder_are_refused(open_index: Callable[[], Index], name: str) -> None:
    with pytest.raises(UsageError):
        await open_index().open(TableId(name, "default", 1))
    with pytest.raises(UsageError):
        await open_index().create(TableId(name, "default", 1), D)
    with pytest.raises(UsageError):
        await open_index().drop(TableId("anna", name, 1))


CHILD = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.contract.test_index_contract import INDEXES, TABLE, D, held, maintained, rows
from penstock.runtime import Runtime

async def main():
    table = await INDEXES[{name!r}](Path({root!r}), Runtime()).create(TABLE, D)
    kept = maintained(table)
    for generation in range(1, 100000):
        await table.put([rows(generation, 8)], held, fresh=True)
        if kept is not None:
            await kept.optimize(held, force=generation % 5 == 0)
        print(generation, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("name", sorted(INDEXES))
async def test_kill_9_leaves_only_whole_commits(name: str, tmp_path: Path, runtime: Runtime) -> None:
    code = CHILD.format(tests=str(Path(__file__).parents[2]), name=name, root=str(tmp_path))
    reported = 0
    for moment in (0.05, 0.31):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            first = child.stdout.readline()
            await runtime.sleep(moment)
            os.kill(child.pid, signal.SIGKILL)
            reported = max([reported, *map(int, (first + child.stdout.read()).split())])
        table = await there(INDEXES[name](tmp_path, runtime))
        found = await stored(table)
        generations = {row.generation for row in found}
        assert len(generations) in (reported, reported + 1)
        for generation in generations:
            mine = {row.ordinal for row in found if row.generation == generation}
            assert mine == set(range(8))
        assert len(await ids_by_text(table, "common", 10_000)) == len(generations) * 8
        await table.put([rows(200_000, 8)], held, fresh=True)
        if (kept := maintained(table)) is not None:
            await kept.compact(held)
        await table.delete(sorted(generations | {200_000}), held)
        reported = 0


@pytest.mark.usefixtures("hides")
@pytest.mark.parametrize("density", [0.1, 0.5, 0.9])
async def test_any_set_of_generations_can_be_hidden(table: IndexTable, density: float) -> None:
    """Single ones, runs of them, and more runs than a filter has ranges for."""
    everything = range(7, 1_007)
    await table.put([rows(generation, 1) for generation in everything], held, fresh=True)
    random = Random(density)
    hidden = [one for one in everything if random.random() < density]
    random.shuffle(hidden)
    hidden += [hidden[0], 1, 5_000, 5_001, 5_002, 5_003]
    shown = {(one, 0) for one in everything if one not in hidden}
    assert {(h.generation, h.ordinal) for h in await table.search(TextQuery("common"), 2_000, Filter(hidden))} == shown
    assert {
        (h.generation, h.ordinal) for h in await table.search(VectorQuery(vector_of(7, 0)), 2_000, Filter(hidden))
    } == shown
    assert await table.search(TextQuery("common"), 10, Filter(everything)) == []
