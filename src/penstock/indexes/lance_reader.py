"""Searches and scans of one Lance dataset. The functions block and run on the read pool."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import IndexBroken, StorageError, is_panic
from penstock.indexes import lance_checksum as checksum
from penstock.indexes import lance_files as files
from penstock.indexes import lance_rows as rows
from penstock.indexes.base import Filter, IndexHit, RowSpan, TableState, TextQuery
from penstock.indexes.grams import distinct_grams
from penstock.indexes.lance_ids import RowIds
from penstock.indexes.lance_upkeep import PROBES, refine_factor, text_column
from penstock.indexes.lance_warmth import Warmth, text_indexes
from penstock.model.items import Vectors

QUERY_LENGTH = 4_000
"""Maximum number of characters of a text query that are used: each word costs a scan of the rows that contain it."""

SPANS = 50
"""Spans of rows that are read at once: each costs a comparison of every row."""


def open_dataset(path: Path, session: Any) -> Any:
    """Open the dataset; None if there is no table. Discards a commit that a power failure left incomplete. Raises
    IndexBroken for other damage."""
    import lance

    if not path.exists():
        return None
    files.drop_torn_manifest(path)
    while True:
        try:
            return _whole(path, lambda: lance.dataset(str(path), session=session))
        except IndexBroken:
            if not files.drop_zeroed_manifest(path):
                raise


def refresh(path: Path, dataset: Any) -> None:
    """Update an open handle to the latest version."""
    before = dataset.version
    _whole(path, lambda: dataset.checkout_latest() or dataset, before)


def _whole(path: Path, opened: Callable[[], Any], known: int | None = None) -> Any:
    """Open a dataset and check that it has the expected columns. With a damaged manifest, Lance opens the dataset
    without columns, cannot decode it, or panics, which is not an Exception. `known`: a version that was checked before.
    Raises IndexBroken."""
    try:
        dataset = opened()
        if dataset.version != known:
            rows.check_schema(dataset)
    except (ValueError, KeyError) as error:
        raise _broken(path, error) from error
    except BaseException as error:
        if is_panic(error):
            raise _broken(path, error) from error
        raise
    return dataset


def _broken(path: Path, error: BaseException) -> IndexBroken:
    return IndexBroken(f"The index table {path} is damaged: {error}. `penstock check --repair` rebuilds it.")


class LanceReader:
    """Reads through one handle, which stays open and is updated to the latest version for each query."""

    def __init__(self, path: Path, session: Callable[[], Any]) -> None:
        self._path = path
        self._session = session
        self._dataset: Any = None
        # Lance does not allow one thread to refresh a handle while another creates a scanner from it.
        self._lock = threading.Lock()
        self._ids = RowIds()
        self._warmth = Warmth()
        self._fragments: tuple[int, dict[int, Any]] = (-1, {})

    def dimensions(self) -> int | None:
        found: int | None = self._latest(rows.dimensions_of)
        return found

    def count(self) -> int:
        return self._latest(lambda dataset: int(dataset.count_rows())) or 0

    def names(self, version: int | None = None) -> tuple[int, list[str]] | None:
        """The number of a version (default: the latest) and the names of its files; None if there is no table."""

        def ask(dataset: Any) -> tuple[int, list[str]]:
            asked = dataset if version is None else dataset.checkout_version(version)
            return asked.version, checksum.names(self._path, asked)

        found: tuple[int, list[str]] | None = self._latest(ask)
        return found

    def state(self) -> TableState | None:
        found = self.names()
        if found is None:
            return None
        version, names = found
        others = {name for name in files.everything(self._path) if not name.startswith("_transactions/")}
        others -= {*names, files.HINT}
        return TableState(version, checksum.size(self._path, names), checksum.size(self._path, others))

    def batches(self) -> Iterator[Any]:
        scanner = self._latest(lambda dataset: dataset.scanner(columns=rows.SCAN_COLUMNS))
        return iter(()) if scanner is None else iter(scanner.to_batches())

    def search_vector(self, vector: Vectors, k: int, where: Filter) -> list[IndexHit]:
        dimensions = self.dimensions()
        if dimensions is not None and vector.shape != (dimensions,):
            raise rows.mismatch(dimensions, int(vector.shape[-1]))

        def nearest(fetch: int) -> dict[str, Any]:
            # `dot` instead of `cosine`: both are equal for unit vectors, but a zero vector does not give NaN.
            probes = {"minimum_nprobes": PROBES, "refine_factor": refine_factor(fetch)}
            return {"nearest": {"column": "vector", "q": vector, "k": fetch, "metric": "dot", **probes}}

        return self._best(nearest, "_distance", k, where)

    def search_text(self, query: TextQuery, k: int, where: Filter) -> list[IndexHit]:
        from lance.query import MatchQuery

        readable = query.text.encode("utf-8", "replace").decode()
        words = " ".join(dict.fromkeys(readable.split()))[:QUERY_LENGTH]
        if query.field == "grams":
            words = distinct_grams(words)
        column: str | None = self._latest(functools.partial(self._column, query.field))
        if not words or column is None:
            return []

        def match(fetch: int) -> dict[str, Any]:
            return {"full_text_query": MatchQuery(words, column), "limit": fetch}

        return self._best(match, "_score", k, where)

    def wants_warming(self) -> bool:
        """Whether the text indexes are used, but were not loaded whole since they have changed. True only once."""
        with self._lock:
            return self._warmth.is_due()

    def warm(self) -> None:
        """Load the text indexes. A search would load only the parts that it needs, which takes twice the time of the
        search. Loading parts that are loaded already takes no time."""
        # Another handle of the same session, so that searches do not wait. A damaged table is reported by searches.
        with contextlib.suppress(OSError, ValueError, RuntimeError, IndexBroken):
            dataset = open_dataset(self._path, self._session())
            for name in [] if dataset is None else text_indexes(dataset):
                dataset.prewarm_index(name)

    def _column(self, field: str, dataset: Any) -> str | None:
        self._warmth.use(dataset)
        return text_column(dataset, field)

    def spans(self, spans: Sequence[RowSpan]) -> list[IndexHit]:
        found: list[IndexHit] = []
        for at in range(0, len(spans), SPANS):
            asked = {"columns": rows.HIT_COLUMNS, "filter": rows.within(spans[at : at + SPANS])}
            scanner = self._latest(functools.partial(_scanner, asked))
            table = None if scanner is None else self._read(scanner.to_table)
            if table is not None:
                found += rows.rows_of(table)
        return list({(hit.generation, hit.ordinal): hit for hit in found}.values())

    def fill(self, hits: Sequence[IndexHit]) -> list[IndexHit]:
        """The hits whole. Reads the rows at their places. If these have changed since the search, it looks for the
        rows by their ids."""
        wanted = [hit for hit in hits if hit.place is not None]
        table = self._latest(functools.partial(_rows_at, [hit.place for hit in hits if hit.place is not None]))
        found = {} if table is None else {(row.generation, row.ordinal): row for row in rows.rows_of(table)}
        if moved := [hit for hit in wanted if (hit.generation, hit.ordinal) not in found]:
            spans = self.spans([RowSpan(hit.generation, hit.ordinal, hit.ordinal) for hit in moved])
            found |= {(row.generation, row.ordinal): row for row in spans}
        filled = (hit if hit.place is None else found.get((hit.generation, hit.ordinal)) for hit in hits)
        return [row._replace(score=hit.score) for row, hit in zip(filled, hits, strict=True) if row is not None]

    def _prepared(self, asked: dict[str, Any], dataset: Any) -> tuple[Any, dict[int, Any]]:
        """A scanner, and the fragments of its version. They can be read after the handle has changed to another."""
        if self._fragments[0] != dataset.version:
            self._fragments = dataset.version, {part.fragment_id: part for part in dataset.get_fragments()}
        return dataset.scanner(**asked), self._fragments[1]

    def _best(
        self,
        options: Callable[[int], dict[str, Any]],
        measure: str,
        k: int,
        where: Filter,
    ) -> list[IndexHit]:
        """The k best hits, not whole. Fetches more rows until there are k different ids or no more rows."""
        shown: dict[str, Any] = {"columns": [measure], "with_row_id": True, "fast_search": False}
        if where.only is not None and not where.only:
            return []
        if condition := rows.condition(where.hidden, where.only):
            shown |= {"filter": condition, "prefilter": True}
        fetch = k
        while fetch > 0:
            asked = shown | options(fetch)
            made = self._latest(functools.partial(self._prepared, asked))
            table = None if made is None else self._read(made[0].to_table)
            if made is None or table is None:
                break
            places = table["_rowid"].to_numpy()
            ids = self._read(functools.partial(self._ids.of, places, made[1]))
            if ids is None:
                break
            scores = table[measure].to_numpy().astype(np.float64)
            hits = rows.best(ids, scores if measure == "_score" else 1.0 - scores, places)
            if len(hits) >= k or table.num_rows < fetch:
                return hits[:k]
            fetch *= 2
        return []

    def _latest(self, ask: Callable[[Any], Any]) -> Any:
        """The result of `ask` for the latest version; None if there is no table."""
        with self._lock:
            return self._read(lambda: self._ask(ask))

    def _ask(self, ask: Callable[[Any], Any]) -> Any:
        if self._dataset is None:
            self._dataset = open_dataset(self._path, self._session())
        else:
            dataset, self._dataset = self._dataset, None
            refresh(self._path, dataset)
            self._dataset = dataset
        return None if self._dataset is None else ask(self._dataset)

    def _read(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except (OSError, ValueError, RuntimeError, IndexBroken) as error:
            if not self._path.exists():
                self._dataset = None
                return None
            if isinstance(error, IndexBroken):
                raise
            raise StorageError(
                f"The index table {self._path} cannot be read: {error}. `penstock check --repair` rebuilds it."
            ) from error
        except BaseException as error:
            if is_panic(error):
                raise _broken(self._path, error) from error
            raise


def _scanner(options: dict[str, Any], dataset: Any) -> Any:
    return dataset.scanner(**options)


def _rows_at(places: Sequence[int], dataset: Any) -> Any:
    """The rows at these addresses; None if one of the addresses does not exist any more."""
    try:
        return dataset._take_rows(list(places), columns=rows.HIT_COLUMNS)
    except (OSError, ValueError, RuntimeError):
        return None
