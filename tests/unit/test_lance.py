"""What is particular to Lance: it never fsyncs, and it keeps old versions by their age."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest
from tests.kit.tables import lance_table

from penstock.errors import LeaseLost, StorageError
from penstock.indexes import lance as adapter
from penstock.indexes import lance_rows
from penstock.indexes import lance_upkeep as upkeep
from penstock.indexes.base import Filter, IndexRows, RowSpan, TableId, TextQuery, VectorQuery
from penstock.indexes.lance import FAILPOINTS, LanceIndex, LanceTable
from penstock.model.items import Chunk, Vectors
from penstock.runtime import Failpoints, Runtime

D = 8


async def held() -> None: ...


def vectors(count: int, seed: int) -> Vectors:
    drawn = np.random.default_rng(seed).normal(size=(count, D)).astype(np.float32)
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), np.float32)


def rows(generation: int, count: int, epoch: int = 1) -> IndexRows:
    chunks = [Chunk(n, f"common word only{generation}x{n}", 1, 1, 0, 5) for n in range(count)]
    return IndexRows(generation, epoch, f"doc{generation}", chunks, vectors(count, generation))


@pytest.fixture
async def table(tmp_path: Path, runtime: Runtime) -> LanceTable:
    return await lance_table(LanceIndex(tmp_path / "index", runtime), D)


def tree(root: Path) -> dict[str, int]:
    """Files and folders, each by what changes when it is written to."""
    return {str(path): path.stat().st_mtime_ns for path in (root, *root.rglob("*"))}


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Paths that were fsynced, with their modification time at that moment."""
    seen: dict[str, int] = {}
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        fsync(descriptor)
        seen[os.readlink(f"/proc/self/fd/{descriptor}")] = os.fstat(descriptor).st_mtime_ns

    monkeypatch.setattr(os, "fsync", spy)
    return seen


CHANGES: dict[str, Callable[[LanceTable], Any]] = {
    "append": lambda table: table.put([rows(3, 4)], held, fresh=True),
    "merge": lambda table: table.put([rows(1, 4, epoch=2), rows(4, 1)], held, fresh=False),
    "delete part of a file": lambda table: table.delete([2], held),
    "delete a whole file": lambda table: table.delete([7], held),
    "dedupe": lambda table: table.dedupe([1], held),
    "optimize": lambda table: table.optimize(held, force=True),
    "compact": lambda table: table.compact(held),
    "restore": lambda table: table.restore(3, held),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_all_that_a_commit_writes_is_fsynced(
    change: str, table: LanceTable, tmp_path: Path, synced: dict[str, int]
) -> None:
    await table.put([rows(1, 6), rows(2, 6)], held, fresh=True)
    await table.put([rows(7, 6)], held, fresh=True)
    await table.put([rows(1, 3, epoch=2)], held, fresh=True)
    before = tree(tmp_path / "index")
    synced.clear()
    await CHANGES[change](table)
    after = tree(tmp_path / "index")
    written = {path for path, moment in after.items() if before.get(path) != moment}
    assert any(path.endswith(".manifest") for path in written)
    # A folder's time moves again when Lance removes its temporary names; files must be synced as they are now.
    assert not {path for path in written if synced.get(path) != after[path] and Path(path).is_file()}
    assert not {path for path in written if path not in synced}


async def test_the_first_commit_fsyncs_the_new_folders_up_to_the_one_that_was_there(
    tmp_path: Path, runtime: Runtime, synced: dict[str, int]
) -> None:
    table = await lance_table(LanceIndex(tmp_path / "index", runtime), D)
    await table.put([rows(1, 3)], held, fresh=True)
    everything = tree(tmp_path / "index")
    files = {path for path in everything if Path(path).is_file()}
    folders = set(everything) - files | {str(tmp_path)}
    # The highest generation is read only by who opens a ledger that may be older: after a power cut none is. The file
    # that readers lock is made again.
    files -= {str(tmp_path / "index" / "highest"), str(table.path / "readers.lock")}
    built_as = {str(Path(path).relative_to(table.path)) for path in files}
    workshop = {path.split("/", path.count("/"))[-1] for path in synced}
    assert {Path(name).name for name in built_as} <= workshop
    assert {str(table.path.parent), str(tmp_path / "index"), str(tmp_path / "index" / "anna"), str(tmp_path)} <= set(
        synced
    )
    assert {Path(folder).name for folder in folders if folder.startswith(str(table.path))} <= workshop | {
        table.path.name, "_deletions",
    }  # fmt: skip
    assert [path.name for path in table.path.parent.iterdir()] == ["v1.lance"]


@pytest.mark.parametrize("change", ["append", "merge", "delete part of a file", "dedupe", "compact"])
async def test_data_is_durable_before_the_lock_is_verified_and_the_commit_names_it(
    change: str, table: LanceTable, tmp_path: Path, synced: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await table.put([rows(1, 6), rows(2, 6)], held, fresh=True)
    await table.put([rows(1, 3, epoch=2)], held, fresh=True)
    before = tree(table.path)

    async def check() -> None:
        new = {path: moment for path, moment in tree(table.path).items() if path not in before}
        assert new
        assert {path: synced.get(path) for path in new if Path(path).is_file()} == {
            path: moment for path, moment in new.items() if Path(path).is_file()
        }
        raise LeaseLost("seen enough")

    monkeypatch.setitem(globals(), "held", check)
    with pytest.raises(LeaseLost):
        await CHANGES[change](table)
    assert not {path for path in tree(table.path) if path not in before and "_versions" in path}


@pytest.mark.parametrize("damage", ["empty", "zeroed"])
async def test_a_commit_torn_by_a_power_cut_never_was(
    damage: str, table: LanceTable, tmp_path: Path, runtime: Runtime
) -> None:
    await table.put([rows(1, 3)], held, fresh=True)
    await table.put([rows(2, 3)], held, fresh=True)
    newest = min((table.path / "_versions").glob("*.manifest"))
    newest.write_bytes(b"\0" * newest.stat().st_size if damage == "zeroed" else b"")
    again = await lance_table(LanceIndex(tmp_path / "index", runtime), D)
    assert {hit.generation for hit in await again.search(TextQuery("common"), 9)} == {1}
    await again.put([rows(3, 3)], held, fresh=True)
    assert await again.count() == 6


async def test_damage_is_said_with_what_to_do(table: LanceTable, tmp_path: Path, runtime: Runtime) -> None:
    await table.put([rows(1, 3)], held, fresh=True)
    for file in (table.path / "data").iterdir():
        file.write_bytes(b"rubbish")
    again = await lance_table(LanceIndex(tmp_path / "index", runtime), D)
    with pytest.raises(StorageError, match="check --repair"):
        await again.search(TextQuery("common"), 3)


async def test_a_version_is_kept_for_its_readers_after_it_was_replaced_however_old_it_is(
    table: LanceTable, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for generation in range(1, 5):
        await table.put([rows(generation, 3)], held, fresh=True)
    for manifest in (table.path / "_versions").glob("*.manifest"):
        os.utime(manifest, (runtime.now() - 3600, runtime.now() - 3600))
    async with table.reading():
        reader = lance.dataset(str(table.path))
        first = reader.version
        await table.compact(held)
        assert reader.to_table().num_rows == 12
        assert min(version["version"] for version in reader.versions()) == first

        later = runtime.now() + 2 * adapter.READER_GRACE
        monkeypatch.setattr(runtime, "now", lambda: later)
        await table.compact(held)
    assert len(reader.versions()) == 1
    assert len(list((table.path / "data").iterdir())) == 1
    assert await table.count() == 12


async def test_vectors_take_two_bytes_for_each_number(table: LanceTable) -> None:
    await table.put([rows(1, 3)], held, fresh=True)
    vector = lance.dataset(str(table.path)).schema.field("vector").type
    assert (vector.list_size, vector.value_type.bit_width) == (D, 16)


async def test_old_versions_go_at_once_if_nobody_reads_the_table(table: LanceTable) -> None:
    for generation in range(1, 5):
        await table.put([rows(generation, 3)], held, fresh=True)
    await table.compact(held)
    assert len(list((table.path / "_versions").glob("*.manifest"))) == 1
    assert len(list((table.path / "data").iterdir())) == 1
    assert (await table.search(TextQuery("common"), 3))[0].text
    assert await table.count() == 12


READ = """
import asyncio, sys
from pathlib import Path
from penstock.indexes.base import TableId, TextQuery
from penstock.indexes.lance import LanceIndex
from penstock.runtime import Runtime

async def main():
    table = await LanceIndex(Path(sys.argv[1]), Runtime()).open(TableId("anna", "default", 1))
    read = 0
    print("begun", flush=True)
    while not Path(sys.argv[2]).exists():
        assert len(await table.search(TextQuery("common"), 3)) == 3
        assert sum([len(some) async for some in table.scan()]) >= 3
        assert await table.checksum()
        read += 1
    print(read)

asyncio.run(main())
"""


async def test_a_reader_in_another_process_never_misses_a_file(table: LanceTable, tmp_path: Path) -> None:
    await table.put([rows(1, 6)], held, fresh=True)
    end = tmp_path / "end"
    arguments = [sys.executable, "-c", READ, str(tmp_path / "index"), str(end)]
    reader = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reader.stdout is not None
    assert await reader.stdout.readline() == b"begun\n"
    for generation in range(2, 42):
        await table.put([rows(generation, 3)], held, fresh=True)
        await table.compact(held)
    end.touch()
    out, errors = await reader.communicate()
    assert reader.returncode == 0, errors.decode()
    assert int(out) > 0


@pytest.mark.parametrize("folder", ["_versions", "data", "_deletions", "_indices"])
async def test_every_byte_of_the_latest_version_counts_in_its_checksum(folder: str, table: LanceTable) -> None:
    await table.put([rows(1, 6), rows(2, 6)], held, fresh=True)
    await table.put([rows(3, 6)], held, fresh=True)
    await table.compact(held)
    await table.delete([2], held)
    version, names = table._reader.names() or (0, [])
    sealed = await table.checksum()
    assert sealed is not None
    assert sealed.version == version
    changed = [name for name in names if name.startswith(folder)]
    assert changed
    for name in changed:
        path = table.path / name
        data = path.read_bytes()
        # The handle is open: a manifest that cannot be parsed is not read again.
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert (await table.checksum() or sealed).sha256 != sealed.sha256, name
        path.write_bytes(data)
        assert await table.checksum() == sealed
    for name in (name for name in changed if not name.startswith("_indices")):
        (table.path / name).rename(table.path / "elsewhere")
        with pytest.raises(StorageError, match=r"missing|cannot be read"):
            await table.checksum(version)
        (table.path / "elsewhere").rename(table.path / name)


async def test_what_belongs_to_other_versions_counts_neither_in_the_checksum_nor_in_the_size(table: LanceTable) -> None:
    for generation in range(1, 5):
        await table.put([rows(generation, 3)], held, fresh=True)
    async with table.reading():
        await table.compact(held)
    sealed, state = await table.checksum(), await table.state()
    _, names = table._reader.names() or (0, [])
    assert state is not None
    assert state.bytes == sum((table.path / name).stat().st_size for name in names)
    old = [path for path in (table.path / "data").iterdir() if f"data/{path.name}" not in names]
    assert len(old) == 4
    for path in old:
        path.unlink()
    (table.path / "data" / "stray.lance").write_bytes(b"x" * 5000)
    assert await table.checksum() == sealed
    later = await table.state()
    assert later is not None
    assert later.bytes == state.bytes
    assert later.old_bytes > 5000


async def test_failpoints_are_passed_before_and_after_each_commit(tmp_path: Path) -> None:
    failpoints = Failpoints(",".join(f"{name}=count@1" for name in FAILPOINTS))
    runtime = Runtime(failpoints)
    table = await lance_table(LanceIndex(tmp_path, runtime), D)
    await table.put([rows(1, 6)], held, fresh=True)
    await table.put([rows(1, 6, epoch=2)], held, fresh=True)
    await table.dedupe([1], held)
    await table.put([rows(1, 2)], held, fresh=False)
    await table.optimize(held, force=True)
    async with table.reading():
        await table.compact(held)
    await table.delete([1], held)
    await table.restore(1, held)
    runtime.close()
    assert set(failpoints.counts) == set(FAILPOINTS)
    assert failpoints.counts["index.append.before"] == failpoints.counts["index.append.after"] == 2


async def test_the_vector_index_finds_what_brute_force_finds(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "VECTOR_EVERY", 1_000)
    monkeypatch.setattr(upkeep, "TEXT_EVERY", 500)
    for generation in range(1, 6):
        await table.put([rows(generation, 500)], held, fresh=True)
        await table.optimize(held)
    statistics = lance.dataset(str(table.path)).stats.index_stats(upkeep.VECTOR)
    assert statistics["index_type"] == "IVF_FLAT"
    assert (statistics["num_indexed_rows"], statistics["num_unindexed_rows"]) == (2_000, 500)
    queries = vectors(20, 99)
    everything = np.concatenate([vectors(500, generation) for generation in range(1, 6)])
    found = 0
    for query in queries:
        hits = await table.search(VectorQuery(query), 10, Filter([2]))
        assert 2 not in {hit.generation for hit in hits}
        best = np.argsort(-(everything @ query))
        truth = [(index // 500 + 1, index % 500) for index in best.tolist() if index // 500 != 1][:10]
        found += len({hit[:2] for hit in hits} & set(truth))
    assert found / 200 >= 0.97
    assert (await table.search(VectorQuery(vectors(500, 5)[7]), 1))[0][:2] == (5, 7)


@pytest.mark.parametrize("k", [1, 10, 100])
async def test_compressed_vectors_find_what_brute_force_finds(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    monkeypatch.setattr(upkeep, "VECTOR_EVERY", 1_500)
    monkeypatch.setattr(upkeep, "SEGMENT_ROWS", 500)
    chance = np.random.default_rng(5)
    topics = chance.standard_normal((20, 128))
    every = topics[chance.integers(0, 20, 2_100)] + chance.standard_normal((2_100, 128))
    every = (every / np.linalg.norm(every, axis=1, keepdims=True)).astype(np.float32)
    table = await LanceIndex(tmp_path, runtime).create(TableId("anna", "default", 1), 128)
    for generation in range(1, 8):
        part = rows(generation, 300)
        own = every[300 * (generation - 1) : 300 * generation]
        await table.put([replace(part, vectors=own)], held, fresh=True)
        await table.optimize(held)
    dataset = lance.dataset(str(table.path))
    statistics = dataset.stats.index_stats(upkeep.VECTOR)
    assert statistics["index_type"] == "IVF_RQ"
    assert (statistics["num_indexed_rows"], statistics["num_unindexed_rows"]) == (1_500, 600)

    async def recall(hidden: list[int]) -> float:
        found = 0
        for query in topics / np.linalg.norm(topics, axis=1, keepdims=True):
            hits = await table.search(VectorQuery(query.astype(np.float32)), k, Filter(hidden))
            order = np.argsort(-(every @ query)).tolist()
            truth = [(at // 300 + 1, at % 300) for at in order if at // 300 + 1 not in hidden][:k]
            found += len({hit[:2] for hit in hits} & set(truth))
            assert all(abs(hit.score - every[300 * (hit[0] - 1) + hit[1]] @ query) < 0.01 for hit in hits)
        return found / (20 * k)

    assert await recall([]) >= 0.97
    assert await recall([2, 3]) >= 0.97
    await table.delete([2, 3], held)
    await table.compact(held, thorough=True)
    assert await recall([2, 3]) >= 0.97


async def test_when_no_work_follows_the_vector_index_is_brought_up_to_date(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "VECTOR_EVERY", 1_000)
    monkeypatch.setattr(upkeep, "VECTOR_SETTLED", 200)

    async def unindexed(count: int, generation: int, text_rows: int | None) -> int:
        await table.put([rows(generation, count)], held, fresh=True)
        await table.optimize(held, text_rows=text_rows)
        return int(lance.dataset(str(table.path)).stats.index_stats(upkeep.VECTOR)["num_unindexed_rows"])

    assert await unindexed(1_000, 1, None) == 0
    assert await unindexed(300, 2, None) == 300
    assert await unindexed(10, 3, 10) == 0
    assert await unindexed(100, 4, 10) == 100


async def test_a_zero_vector_is_a_row_like_any_other(table: LanceTable) -> None:
    blank = IndexRows(1, 1, "doc", [Chunk(0, "", 1, 1, 0, 0)], np.zeros((1, D), np.float32))
    await table.put([blank, rows(2, 2)], held, fresh=True)
    assert len(await table.search(VectorQuery(vectors(1, 2)[0]), 9)) == 3
    assert len(await table.search(VectorQuery(np.zeros(D, np.float32)), 9)) == 3


async def test_small_files_are_merged_as_they_come(table: LanceTable) -> None:
    most = 0
    for generation in range(1, 101):
        await table.put([rows(generation, 2)], held, fresh=True)
        await table.optimize(held)
        most = max(most, len(lance.dataset(str(table.path)).get_fragments()))
    assert most <= upkeep.SMALL_FILES + 4
    assert await table.count() == 200


async def test_optimize_makes_no_commit_when_nothing_is_due(table: LanceTable) -> None:
    await table.put([rows(1, 10)], held, fresh=True)
    await table.optimize(held, force=True)
    before = tree(table.path)
    await table.optimize(held, force=True)
    await table.put([rows(2, 10)], held, fresh=True)
    during = tree(table.path)
    await table.optimize(held)
    assert tree(table.path) == during != before


async def test_index_segments_stay_few_and_the_newest_are_merged(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "TEXT_EVERY", 10)
    await table.create(D)
    await table.search(TextQuery("common"), 1)
    for generation in range(1, 14):
        await table.put([rows(generation, 10)], held, fresh=True)
        await table.optimize(held)
    statistics = lance.dataset(str(table.path)).stats.index_stats("words")
    assert statistics["num_indexed_rows_per_delta"] == [80, 40, 10]


async def test_a_table_that_nobody_searches_is_indexed_in_larger_steps(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "TEXT_EVERY", 10)
    monkeypatch.setattr(upkeep, "BULK_EVERY", 40)
    monkeypatch.setattr(upkeep, "BULK_SEGMENTS", 3)

    async def sizes(first: int, last: int) -> list[int]:
        for generation in range(first, last + 1):
            await table.put([rows(generation, 10)], held, fresh=True)
            await table.optimize(held)
        dataset = lance.dataset(str(table.path))
        found = [dataset.stats.index_stats(name)["num_indexed_rows_per_delta"] for name in upkeep.TEXT]
        assert found[0] == found[1]
        return [size for size in found[0] if size]

    assert await sizes(1, 11) == [40, 40]
    assert len(await table.search(TextQuery("common"), 999)) == 110
    assert await sizes(12, 13) == [120, 10], "it is searched now: small steps, and segments are merged"
    os.utime(table.path / "searched", (1, 1))
    assert await sizes(14, 17) == [120, 10, 40]
    assert await sizes(18, 25) == [120, 90, 40]
    assert len(await table.search(TextQuery("common"), 999)) == 250


@pytest.mark.parametrize(
    ("sizes", "count", "merged"),
    [
        ([25_000] * 8, 8, 8),
        ([25_000] * 9, 9, 8),
        ([462_000, 26_000], 2, 1),
        ([190_000, 20_000, 5_000], 3, 2),
        ([400_000], 1, 1),
    ],
)
def test_no_merge_of_a_text_index_has_more_rows_than_memory_allows(sizes: list[int], count: int, merged: int) -> None:
    assert upkeep.within(sizes, count) == merged


async def test_new_files_are_merged_before_they_get_into_the_indexes(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "BULK_EVERY", 50)
    monkeypatch.setattr(upkeep, "FILE_ROWS", 50)
    made: list[list[int]] = []
    for generation in range(1, 11):
        await table.put([rows(generation, 10)], held, fresh=True)
        await table.optimize(held)
        made.append([fragment.count_rows() for fragment in lance.dataset(str(table.path)).get_fragments()])
    assert made[3:6] == [[10, 10, 10, 10], [50], [50, 10]]
    assert made[-1] == [50, 50]
    assert len(await table.search(TextQuery("common"), 999)) == 100


@pytest.mark.parametrize("name", ["words", "grams"])
async def test_if_one_of_two_updates_fails_the_other_is_kept(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Both run at the same time."""
    update, refused = upkeep.update_index, [name]

    def failing(dataset: Any, name: str, pace: upkeep.Pace) -> None:
        if name in refused:
            raise OSError(28, "No space left on device")
        update(dataset, name, pace)

    monkeypatch.setattr(upkeep, "update_index", failing)
    await table.put([rows(1, 30)], held, fresh=True)
    with pytest.raises(StorageError, match="No space left"):
        await table.optimize(held, force=True)

    def indexed() -> dict[str, int]:
        dataset = lance.dataset(str(table.path))
        return {one: dataset.stats.index_stats(one)["num_indexed_rows"] for one in upkeep.TEXT}

    assert indexed() == {one: 0 if one == name else 30 for one in upkeep.TEXT}
    assert len(await table.search(TextQuery("common"), 99)) == 30
    refused.clear()
    await table.optimize(held, force=True)
    assert indexed() == {"words": 30, "grams": 30}


async def test_when_no_work_follows_the_segments_of_text_indexes_are_merged(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "TEXT_EVERY", 10)
    await table.create(D)
    await table.search(TextQuery("common"), 1)
    for generation in range(1, 14):
        await table.put([rows(generation, 10)], held, fresh=True)
        await table.optimize(held)

    def sizes(name: str) -> list[int]:
        found: list[int] = lance.dataset(str(table.path)).stats.index_stats(name)["num_indexed_rows_per_delta"]
        return found

    assert len(sizes("words")) == len(sizes("grams")) == 3
    await table.optimize(held, text_rows=5)
    assert sizes("words") == sizes("grams") == [130]
    before = tree(table.path)
    await table.optimize(held, text_rows=5)
    assert tree(table.path) == before
    assert len(await table.search(TextQuery("common"), 999)) == 130
    assert len(await table.search(TextQuery("commons", "grams"), 999)) == 130


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([], 0),
        ([9_000], 0),
        ([66_670, 23_040, 8_960, 1_330, 0], 5),
        ([100_000, 500, 500], 0),
        ([100_000, 4_000, 1_000], 2),
        ([100_000, 20_000, 5_000], 3),
        ([900_000, 300_000, 90_000, 30_000], 2),
    ],
)
def test_merges_for_the_sake_of_searches_are_limited(sizes: list[int], merged: int) -> None:
    assert upkeep.settled_tail(sizes) == merged


async def test_filters_use_the_index_of_generations(table: LanceTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan() -> str:
        text: str = lance.dataset(str(table.path)).scanner(columns=[], filter="generation IN (2, 7)").explain_plan(True)
        return text

    async def shown() -> list[object]:
        where = (Filter(hidden=[2, 7]), Filter(only=[2, 7, 9]), Filter(hidden=[2], only=[2, 9]))
        queries = (TextQuery("common only7x1"), TextQuery("common", "grams"), VectorQuery(vectors(1, 5)[0]))
        found: list[object] = [await table.rows([RowSpan(7, 1, 3), RowSpan(9, 8, 99)])]
        found += [[hit[:3] for hit in await table.search(query, 99, one)] for query in queries for one in where]
        return found

    monkeypatch.setattr(upkeep, "TEXT_EVERY", 50)
    for generation in range(1, 11):
        await table.put([rows(generation, 10)], held, fresh=True)
    before = await shown()
    assert "ScalarIndexQuery" not in plan()
    await table.optimize(held)
    assert "ScalarIndexQuery" in plan()
    assert await shown() == before
    # Rows outside the index are found too.
    await table.put([rows(11, 10)], held, fresh=True)
    assert {hit.generation for hit in await table.search(TextQuery("common"), 99, Filter(only=[2, 11]))} == {2, 11}
    await table.delete([2], held)
    await table.compact(held)
    assert {hit.generation for hit in await table.search(TextQuery("common"), 99, Filter(only=[2, 11]))} == {11}


async def test_a_vector_index_that_the_table_has_outgrown_is_trained_anew(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "VECTOR_EVERY", 300)
    await table.put([rows(1, 300)], held, fresh=True)
    await table.optimize(held)
    assert len(lance.dataset(str(table.path)).get_ivf_model(upkeep.VECTOR).centroids) == 16
    monkeypatch.setattr(upkeep, "SMALL_INDEX", 10)
    monkeypatch.setattr(upkeep, "partitions_for", lambda rows: 40)
    await table.compact(held)
    assert len(lance.dataset(str(table.path)).get_ivf_model(upkeep.VECTOR).centroids) == 40
    assert (await table.search(VectorQuery(vectors(300, 1)[7]), 1))[0][:2] == (1, 7)


async def test_what_upkeep_takes_at_once_does_not_grow_with_the_table(
    table: LanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and segments up to a size, whatever the table has: memory grows with these alone."""
    monkeypatch.setattr(upkeep, "VECTOR_EVERY", 1_000)
    monkeypatch.setattr(upkeep, "TEXT_EVERY", 500)
    monkeypatch.setattr(upkeep, "FILE_ROWS", 200)
    monkeypatch.setattr(upkeep, "SEGMENT_ROWS", 300)
    built: list[int] = []
    create: Any = lance.LanceDataset.create_index_uncommitted

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        built.append(sum(self.get_fragment(one).count_rows() for one in options["fragment_ids"]))
        return create(self, *arguments, **options)

    monkeypatch.setattr(lance.LanceDataset, "create_index_uncommitted", noted)
    for generation in range(1, 21):
        await table.put([rows(generation, 100)], held, fresh=True)
        await table.optimize(held)
    await table.compact(held)
    dataset = lance.dataset(str(table.path))
    assert max(fragment.count_rows() for fragment in dataset.get_fragments()) <= 400
    assert len(built) >= 3
    assert max(built) <= 500
    assert dataset.stats.index_stats(upkeep.VECTOR)["num_indexed_rows"] == 2_000
    for generation in (1, 7, 20):
        assert (await table.search(VectorQuery(vectors(100, generation)[7]), 1))[0][:2] == (generation, 7)


def test_who_writes_keeps_little_of_what_it_read(tmp_path: Path, runtime: Runtime) -> None:
    index = LanceIndex(tmp_path / "index", runtime)
    assert adapter.WRITER_CACHE_BYTES * 8 <= adapter.CACHE_BYTES
    assert index._writing() is index._writing()
    assert index._writing() is not index._session()


@pytest.mark.parametrize(
    ("sizes", "merged"), [([], 0), ([5], 1), ([4, 5], 2), ([6, 5], 1), ([100, 8, 4, 2, 2], 4), ([1, 1, 1], 3)]
)
def test_pieces_are_merged_as_a_counter_carries(sizes: list[int], merged: int) -> None:
    assert upkeep.tail(sizes) == merged


async def test_a_zombie_that_commits_in_between_harms_nothing(tmp_path: Path, runtime: Runtime) -> None:
    """I3: the lock changed hands between the verify and the commit."""
    mine = await lance_table(LanceIndex(tmp_path, runtime), D)
    other = await lance_table(LanceIndex(tmp_path, runtime), D)
    for generation in (1, 2, 3):
        await mine.put([rows(generation, 4)], held, fresh=True)
    turns: Iterator[Callable[[], Awaitable[None]]] = iter(
        [
            lambda: other.put([rows(4, 4)], held, fresh=True),
            lambda: other.delete([1], held),
            lambda: other.compact(held),
            lambda: other.put([rows(3, 4, epoch=9)], held, fresh=False),
        ]
    )

    async def interrupted() -> None:
        if turn := next(turns, None):
            await turn()

    await mine.put([rows(5, 4)], interrupted, fresh=True)
    await mine.put([rows(2, 4, epoch=2)], interrupted, fresh=False)
    await mine.delete([5], interrupted)
    await mine.put([rows(6, 4)], interrupted, fresh=True)
    found = sorted([row[:3] async for batch in mine.scan() for row in batch])
    assert {(generation, epoch) for generation, _, epoch in found} == {(2, 2), (3, 9), (4, 1), (6, 1)}
    assert len(found) == 16
    assert len(await mine.search(TextQuery("common"), 99)) == 16


async def test_many_searches_at_once_while_rows_come(table: LanceTable) -> None:
    await table.put([rows(1, 20)], held, fresh=True)

    async def search() -> None:
        for _ in range(25):
            assert len(await table.search(TextQuery("common"), 5)) == 5
            assert len(await table.search(VectorQuery(vectors(1, 3)[0]), 5)) == 5

    async def write() -> None:
        for generation in range(2, 22):
            await table.put([rows(generation, 2)], held, fresh=True)
            await table.optimize(held, force=True)

    await asyncio.gather(search(), search(), write())
    assert await table.count() == 60


def test_importing_the_adapter_does_not_import_lance() -> None:
    code = "import sys, penstock.indexes.lance; sys.exit('lance' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_manifest_torn_in_its_middle_by_a_power_cut_never_was(
    table: LanceTable, tmp_path: Path, runtime: Runtime
) -> None:
    for generation in range(1, 16):
        await table.put([rows(generation, 1)], held, fresh=True)
    newest = min((table.path / "_versions").glob("*.manifest"))
    data = newest.read_bytes()
    assert len(data) > 1536
    start = (len(data) - 600) // 512 * 512
    newest.write_bytes(data[:start] + bytes(512) + data[start + 512 :])
    again = await lance_table(LanceIndex(tmp_path / "index", runtime), D)
    assert await again.count() == 14
    await again.put([rows(15, 1)], held, fresh=True)
    assert await again.count() == 15


@pytest.mark.parametrize("held_open", [False, True])
async def test_i5_a_damaged_manifest_is_said_and_never_taken_for_a_table(
    table: LanceTable, tmp_path: Path, runtime: Runtime, held_open: bool
) -> None:
    """Lance cannot decode it, panics, or opens it without columns. It belongs to a durable commit: to go back to the
    one before would hide documents."""
    await table.put([rows(1, 3)], held, fresh=True)
    reader = await lance_table(LanceIndex(tmp_path / "index", runtime), D)
    for generation in (2, 3):
        await table.put([rows(generation, 3)], held, fresh=True)
    newest = min((table.path / "_versions").glob("*.manifest"))
    data = newest.read_bytes()
    said: list[str] = []
    for start in range(0, len(data) - 64, 40):
        newest.write_bytes(data[:start] + bytes(64) + data[start + 64 :])
        try:
            one = reader if held_open else await lance_table(LanceIndex(tmp_path / "index", runtime), D)
            assert one.dimensions == 8
            assert len(await one.search(TextQuery("common"), 99)) == 9
        except StorageError as error:
            said.append(f"{type(error).__name__}: {error}")
        assert newest.exists(), "nothing is thrown away"
    assert sum(one.startswith("IndexBroken") for one in said) > 5
    assert all(str(table.path) in one and "`penstock check --repair`" in one for one in said)
    newest.write_bytes(data)
    assert len(await reader.search(TextQuery("common"), 99)) == 9


async def test_a_path_that_contains_conflict_makes_no_conflict_of_a_storage_error(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = await lance_table(LanceIndex(tmp_path / "conflict" / "index", runtime), D)
    await table.put([rows(1, 3)], held, fresh=True)

    def full(staged: Any) -> None:
        raise OSError(f"LanceError(IO): No space left on device: {table.path}")

    monkeypatch.setattr(table._writer, "commit", full)
    with pytest.raises(StorageError, match="No space left"):
        await table.put([rows(2, 3)], held, fresh=True)


async def test_a_commit_of_another_writer_is_a_conflict_and_staged_again(
    table: LanceTable, tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await table.put([rows(1, 3), rows(2, 3)], held, fresh=True)
    other = await lance_table(LanceIndex(tmp_path / "index", runtime), D)
    verified: list[bool] = []

    async def meanwhile() -> None:
        verified.append(True)
        if len(verified) == 1:
            await other.delete([1], held)

    await table.delete([2], meanwhile)
    assert len(verified) > 1, "the first try met a conflict"
    assert await table.search(TextQuery("common"), 99) == []


def test_the_library_keeps_its_warnings_to_itself(tmp_path: Path) -> None:
    """A vector index with an empty partition wrote a line for each of them to standard error."""
    code = f"""
import numpy as np, pyarrow as pa
from pathlib import Path
from penstock.indexes.lance import LanceIndex
from penstock.indexes.lance_upkeep import create_vector_index
from penstock.runtime import Runtime
LanceIndex(Path({str(tmp_path)!r}), Runtime())
import lance
vectors = np.zeros((2000, 8), dtype=np.float32)
vectors[:, 0] = np.arange(2000) % 3
table = pa.table({{"vector": pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), 8)}})
create_vector_index(lance.write_dataset(table, {str(tmp_path / "t.lance")!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


def _first_version(path: Path, count: int) -> None:
    """A table as the first versions made it: one text index, on the column `text`, and vectors of float32."""
    import pyarrow as pa

    now = lance_rows.schema(D, pa.float32())
    schema = pa.schema([field for field in now if field.name not in lance_rows.LEXICAL])
    path.parent.mkdir(parents=True)
    dataset: Any = lance.write_dataset(schema.empty_table(), str(path))
    dataset.create_scalar_index("text", "INVERTED", name="text", replace=True, train=False, **upkeep.WORDS)
    new = lance_rows.arrow_table([rows(1, count)], dataset)
    lance.write_dataset(new, str(path), mode="append")


async def test_a_table_of_the_first_versions_is_searched_written_and_upgraded(tmp_path: Path, runtime: Runtime) -> None:
    path = tmp_path / "index" / "o" / "c" / "v1.lance"
    _first_version(path, 5)
    table = await LanceIndex(tmp_path / "index", runtime).open(TableId("o", "c", 1))
    assert table is not None
    await table.put([rows(2, 5)], held, fresh=True)
    await table.put([rows(2, 5)], held, fresh=False)
    assert len(await table.search(TextQuery("common"), 99)) == 10
    assert await table.search(TextQuery("common", "grams"), 99) == []
    before = [row async for batch in table.scan() for row in batch]
    await table.compact(held)
    assert len(await table.search(TextQuery("commons", "grams"), 99)) == 10
    assert len(await table.search(TextQuery("common"), 99)) == 10
    assert sorted([row async for batch in table.scan() for row in batch]) == sorted(before)
    names = {index.name for index in lance.dataset(str(path)).describe_indices()}
    assert names == {"words", "grams"}
    await table.put([rows(3, 5)], held, fresh=True)
    assert len(await table.search(TextQuery("commons", "grams"), 99)) == 15


@pytest.mark.parametrize("commits", [1, 2, 3, 4, 5])
async def test_an_upgrade_that_was_killed_goes_on(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    path = tmp_path / "index" / "o" / "c" / "v1.lance"
    _first_version(path, 5)
    index = LanceIndex(tmp_path / "index", runtime)
    table = await index.open(TableId("o", "c", 1))
    assert table is not None
    first = lance.dataset(str(path)).version
    async with table.reading():
        await table.compact(held)
    last = lance.dataset(str(path)).version
    assert last >= first + 5
    await table.restore(first + commits, held)
    assert len(await table.search(TextQuery("common"), 99)) == 5
    await table.compact(held)
    assert len(await table.search(TextQuery("commons", "grams"), 99)) == 5
    assert {one.name for one in lance.dataset(str(path)).describe_indices()} == {"words", "grams"}
