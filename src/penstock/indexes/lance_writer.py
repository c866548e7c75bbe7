"""Changes to one Lance dataset. The functions block and run on the single thread of the index pool.

First, new files are written and fsynced (`stage_…`). Then the caller verifies its lock. Then one small commit names the
files (`commit`). The fsync follows the commit only where Lance commits by itself (`update`: index updates, and the
remapping of indexes in a compaction).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.indexes import lance_files as files
from penstock.indexes import lance_rows as rows
from penstock.indexes import lance_upkeep as upkeep
from penstock.indexes.base import IndexRows
from penstock.indexes.lance_reader import open_dataset, refresh
from penstock.indexes.lance_readers import Readers
from penstock.redaction import make_folder

RUNS = 50
"""Maximum number of ranges in one filter. With more ranges the filter is a list."""


@dataclass(frozen=True)
class Staged:
    """An operation on `version` that is not committed yet. Its new files are durable."""

    operation: Any
    version: int
    removed: int = 0


class LanceWriter:
    def __init__(self, path: Path, top: Path, session: Callable[[], Any]) -> None:
        self._path = path
        self._top = top
        self._session = session
        self._dataset: Any = None
        self._readers = Readers(path)

    def latest(self) -> Any:
        if self._dataset is None or not self._path.exists():
            self._dataset = open_dataset(self._path, self._session())
        else:
            dataset, self._dataset = self._dataset, None
            refresh(self._path, dataset)
            self._dataset = dataset
        return self._dataset

    def stage_create(self, dimensions: int, workshop: Path) -> Path | None:
        """Create an empty table with an empty text index, complete and durable, in the folder `workshop`. Returns None
        if the table exists already."""
        import lance

        dataset = self.latest()
        if dataset is not None:
            if (present := rows.dimensions_of(dataset)) != dimensions:
                raise rows.mismatch(present, dimensions)
            return None
        make_folder(workshop.parent, self._top)
        upkeep.create_text_indexes(lance.write_dataset(rows.schema(dimensions).empty_table(), str(workshop)))
        for folder in (*files.FOLDERS, "_indices"):
            (workshop / folder).mkdir(exist_ok=True)
        files.sync(workshop, files.everything(workshop))
        return workshop

    def commit_create(self, workshop: Path) -> None:
        """Rename the new table to its final path. If another process has created the table meanwhile, the rename fails
        and that table is used."""
        try:
            workshop.rename(self._path)
        except OSError:
            if not self._path.exists():
                raise
        files.sync_folders(self._path, self._top)

    def stage_append(self, new: Sequence[IndexRows]) -> Staged:
        from lance import LanceOperation

        dataset = self.latest()
        return Staged(LanceOperation.Append(self._write(dataset, new)), dataset.version)

    def stage_merge(self, new: Sequence[IndexRows]) -> Staged:
        """Replace all rows of an id by one. Lance's own merge would keep duplicate rows."""
        from lance import LanceOperation

        dataset = self.latest()
        ids = {(part.generation, chunk.ordinal) for part in new for chunk in part.chunks}
        present = _find(dataset, sorted({part.generation for part in new}))
        pairs = zip(present["generation"].tolist(), present["ordinal"].tolist(), strict=True)
        replaced = present["_rowaddr"][np.fromiter((pair in ids for pair in pairs), bool, len(present["ordinal"]))]
        fragments = self._write(dataset, new)
        if not len(replaced):
            return Staged(LanceOperation.Append(fragments), dataset.version)
        updated, emptied = self._without(dataset, replaced)
        operation = LanceOperation.Update(
            removed_fragment_ids=emptied, updated_fragments=updated, new_fragments=fragments, update_mode="rewrite_rows"
        )
        return Staged(operation, dataset.version, len(replaced))

    def stage_delete(self, generations: Sequence[int]) -> Staged | None:
        dataset = self.latest()
        return None if dataset is None else self._stage_removal(dataset, _find(dataset, generations)["_rowaddr"])

    def stage_dedupe(self, generations: Sequence[int]) -> Staged | None:
        dataset = self.latest()
        if dataset is None:
            return None
        found = _find(dataset, generations)
        order = np.lexsort((found["_rowaddr"], -found["epoch"], found["ordinal"], found["generation"]))
        generation, ordinal = found["generation"][order], found["ordinal"][order]
        again = np.zeros(len(order), bool)
        again[1:] = (generation[1:] == generation[:-1]) & (ordinal[1:] == ordinal[:-1])
        return self._stage_removal(dataset, found["_rowaddr"][order][again])

    def stage_compaction(self, only: Callable[[Any], list[int]] | None, *, thorough: bool = False) -> Any:
        """Rewrite small files as larger ones, and files of which many rows were removed; with `thorough` any rows.
        Returns None if there is nothing to do."""
        from lance.optimize import Compaction, CompactionOptions

        dataset = self.latest()
        if dataset is None:
            return None
        chosen = None if only is None else only(dataset)
        options: CompactionOptions = {"target_rows_per_fragment": upkeep.target_rows(dataset, chosen)}
        if thorough:
            options["materialize_deletions_threshold"] = 0.0
        if chosen is not None:
            options["excluded_fragment_ids"] = sorted(set(dataset.fragment_ids()) - set(chosen))
        before = files.listing(self._path, ["data"])
        rewritten = [task.execute(dataset) for task in Compaction.plan(dataset, options).tasks]
        files.sync(self._path, files.listing(self._path, ["data"]) - before)
        return rewritten or None

    def commit(self, staged: Staged) -> None:
        """Commit durably. If other writers have committed since, Lance rebases the operation where possible."""
        from lance import LanceDataset
        from lance.dataset import Transaction

        transaction = Transaction(staged.version, staged.operation)
        self._dataset = LanceDataset.commit(self._dataset, transaction)
        names = {f"_transactions/{staged.version}-{transaction.uuid}.txn", files.manifest(self._dataset.version)}
        if not all((self._path / name).exists() for name in names):
            names = files.everything(self._path)
        files.sync(self._path, {*names, files.HINT})

    def commit_compaction(self, rewritten: Any) -> None:
        from lance.optimize import Compaction

        self.update(lambda dataset: Compaction.commit(dataset, rewritten))

    def update(
        self, action: Callable[[Any], Any], *others: Callable[[Any], Any], beside: Executor | None = None
    ) -> None:
        """Run an action that commits by itself, then make its files durable, also those of a part that succeeded.
        `others` run at the same time in the threads of `beside`, each on its own handle."""
        dataset = self.latest()
        before = files.everything(self._path)
        running: list[Future[None]] = []
        try:
            for other in others:
                assert beside is not None
                running.append(beside.submit(other, open_dataset(self._path, self._session())))
            action(dataset)
        finally:
            wait(running)
            files.sync(self._path, {*(files.everything(self._path) - before), files.HINT})
        for one in running:
            one.result()

    def restore(self, version: int) -> None:
        self.update(lambda dataset: dataset.checkout_version(version).restore())

    def clean(self, before: float) -> None:
        """Remove old versions: all of them if nobody reads the table, else those that were replaced before that moment.
        They are named by number: by age, Lance would remove the latest version of a table with few changes as soon as
        it is replaced, while readers still use it. Files that no version names may belong to a commit in progress;
        Lance keeps them for seven days."""
        dataset = self.latest()
        if dataset is None:
            return
        # The version is read first: readers that begin after the second look open this one or a later one.
        latest = dataset.version
        if self._readers.are_gone():
            versions = files.versions_before(self._path, latest)
        else:
            versions = files.replaced_before(self._path, before)
        if versions:
            dataset.cleanup_old_versions(versions=versions, delete_unverified=False)

    def _write(self, dataset: Any, new: Sequence[IndexRows]) -> Any:
        from lance.fragment import write_fragments

        fragments = write_fragments(rows.arrow_table(new, dataset), dataset, mode="append")
        files.sync(self._path, [f"data/{file.path}" for part in fragments for file in part.files])
        return fragments

    def _stage_removal(self, dataset: Any, addresses: NDArray[np.uint64]) -> Staged | None:
        from lance import LanceOperation

        if not len(addresses):
            return None
        updated, emptied = self._without(dataset, addresses)
        return Staged(LanceOperation.Delete(updated, emptied, "by row address"), dataset.version, len(addresses))

    def _without(self, dataset: Any, addresses: NDArray[np.uint64]) -> tuple[list[Any], list[int]]:
        """The fragments without these rows, and the ids of fragments that have no rows left."""
        updated, emptied = [], []
        before = files.listing(self._path, ["_deletions"])
        addresses = np.sort(addresses)
        for fragment_id in np.unique(addresses >> 32).tolist():
            mine = addresses[addresses >> 32 == fragment_id]
            left = dataset.get_fragment(fragment_id).delete(_rows_at(mine))
            if left is None:
                emptied.append(fragment_id)
            else:
                updated.append(left)
        files.sync(self._path, files.listing(self._path, ["_deletions"]) - before)
        return updated, emptied


def _find(dataset: Any, generations: Sequence[int]) -> dict[str, NDArray[Any]]:
    columns = ["generation", "ordinal", "epoch"]
    wanted = f"generation IN ({rows.numbers(generations)})"
    table = dataset.scanner(columns=columns, filter=wanted, with_row_address=True).to_table()
    return {name: table[name].to_numpy() for name in [*columns, "_rowaddr"]}


def _rows_at(addresses: NDArray[np.uint64]) -> str:
    """A filter for these sorted addresses, as ranges if there are few."""
    starts = np.flatnonzero(np.diff(addresses, prepend=addresses[:1]) != 1)
    if len(starts) > RUNS:
        return f"_rowaddr IN ({rows.numbers(addresses.tolist())})"
    ends = [*(starts[1:] - 1).tolist(), len(addresses) - 1]
    runs = zip(starts.tolist(), ends, strict=True)
    return " OR ".join(f"(_rowaddr BETWEEN {int(addresses[first])} AND {int(addresses[last])})" for first, last in runs)
