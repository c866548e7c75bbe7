"""Convert rows of the port to Arrow and back. Only this module knows the columns."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import Permanent
from penstock.indexes.base import IndexHit, IndexRows, RowSpan, StoredRow, row_digest
from penstock.indexes.checks import numbers as numbers
from penstock.indexes.grams import grams
from penstock.model.items import Chunk

HIT_COLUMNS = ["generation", "ordinal", "document_id", "text", "page", "page_end", "start", "end", "headings"]
RANGES = 50
"""Maximum number of ranges in one filter."""
SCAN_COLUMNS = ["generation", "ordinal", "epoch", "text", "page", "page_end", "start", "end", "headings"]


def schema(dimensions: int, number: Any = None) -> Any:
    """`number`: the type of the numbers of vectors. It is float16, in half the space of float32; searches are faster
    and find the same (0.9996 of the 50 nearest of 20,000). Tables of earlier releases have float32."""
    import pyarrow as pa

    return pa.schema(
        [
            ("generation", pa.int64()),
            ("ordinal", pa.int32()),
            ("epoch", pa.int32()),
            ("document_id", pa.string()),
            ("page", pa.int32()),
            ("page_end", pa.int32()),
            ("start", pa.int32()),
            ("end", pa.int32()),
            ("headings", pa.list_(pa.string())),
            ("text", pa.string()),
            ("vector", pa.list_(number or pa.float16(), dimensions)),
            ("words", pa.string()),
            ("grams", pa.string()),
        ]
    )


LEXICAL = ("words", "grams")
"""Columns that only text search uses. They are made from the others, and tables of the first versions lack them."""


def lexical(headings: Sequence[str], text: str, title: str = "") -> tuple[str, str]:
    """The columns `words` and `grams` of a chunk: the title of its document, its headings and its text."""
    first = [title] if title and title not in headings else []
    words = "\n".join([*first, *headings, text])
    return words, grams(words)


def add_lexical(batch: Any) -> Any:
    """The columns that a table of the first versions lacks, for a batch of its columns `headings` and `text`."""
    import pyarrow as pa

    columns = zip(batch["headings"].to_pylist(), batch["text"].to_pylist(), strict=True)
    made = [lexical(headings, text) for headings, text in columns]
    return pa.RecordBatch.from_arrays([pa.array([row[at] for row in made], pa.string()) for at in (0, 1)], LEXICAL)


def condition(hidden: Sequence[int], only: Sequence[int] | None) -> str:
    """A filter that excludes the hidden generations, and includes only some if they are given; empty if all rows
    match."""
    terms = [] if only is None else [inside(only)]
    return " AND ".join(terms + ([outside(hidden)] if hidden else []))


def inside(generations: Sequence[int]) -> str:
    """A filter that includes only these generations."""
    ranges, rest = _ranges(generations)
    terms = [f"generation BETWEEN {int(low)} AND {int(high)}" for low, high in ranges]
    if rest:
        terms.append(f"generation IN ({numbers(rest)})")
    return f"({' OR '.join(terms)})"


def outside(generations: Sequence[int]) -> str:
    """A filter that excludes these generations."""
    ranges, rest = _ranges(generations)
    terms = [f"generation NOT BETWEEN {int(low)} AND {int(high)}" for low, high in ranges]
    if rest:
        terms.append(f"generation NOT IN ({numbers(rest)})")
    return " AND ".join(terms)


def _ranges(generations: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """The longest runs of consecutive numbers, such as a delete of many documents leaves, and the other numbers. Each
    number in a list costs 5 µs."""
    ids = np.unique(np.asarray(generations, dtype=np.int64))
    runs = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    runs.sort(key=len, reverse=True)
    ranges = [run for run in runs[:RANGES] if len(run) > 2]
    rest = runs[len(ranges) :]
    return [(int(run[0]), int(run[-1])) for run in ranges], np.concatenate(rest).tolist() if rest else []


def within(spans: Sequence[RowSpan]) -> str:
    """A filter for the rows of these spans."""
    terms = [
        f"(generation = {int(span.generation)} AND ordinal BETWEEN {int(span.first)} AND {int(span.last)})"
        for span in spans
    ]
    return " OR ".join(terms)


def check_schema(dataset: Any) -> None:
    """Raises ValueError or KeyError if the dataset does not have the expected columns."""
    import pyarrow as pa

    there = dataset.schema
    number = there.field("vector").type.value_type
    for field in schema(dimensions_of(dataset), number if number == pa.float32() else None):
        if field.name in LEXICAL and field.name not in there.names:
            continue
        if there.field(field.name).type != field.type:
            raise ValueError(f"column {field.name!r} is {there.field(field.name).type}, not {field.type}")


def dimensions_of(dataset: Any) -> int:
    return int(dataset.schema.field("vector").type.list_size)


def arrow_table(rows: Sequence[IndexRows], dataset: Any) -> Any:
    """The rows with the columns that the dataset has."""
    import pyarrow as pa

    dimensions, number = dimensions_of(dataset), dataset.schema.field("vector").type.value_type
    lengths = [len(part.chunks) for part in rows]
    chunks = list(itertools.chain.from_iterable(part.chunks for part in rows))
    vectors = np.concatenate([np.asarray(part.vectors, dtype=number.to_pandas_dtype()) for part in rows])
    if len(vectors) != len(chunks):
        raise ValueError(f"{len(chunks)} chunks came with {len(vectors)} vectors")
    columns = [
        pa.array(np.repeat([part.generation for part in rows], lengths), pa.int64()),
        pa.array([chunk.ordinal for chunk in chunks], pa.int32()),
        pa.array(np.repeat([part.epoch for part in rows], lengths), pa.int32()),
        pa.array(
            list(itertools.chain.from_iterable([part.document_id] * len(part.chunks) for part in rows)), pa.string()
        ),
        pa.array([chunk.page for chunk in chunks], pa.int32()),
        pa.array([chunk.page_end for chunk in chunks], pa.int32()),
        pa.array([chunk.start for chunk in chunks], pa.int32()),
        pa.array([chunk.end for chunk in chunks], pa.int32()),
        pa.array([chunk.headings for chunk in chunks], pa.list_(pa.string())),
        pa.array([chunk.text for chunk in chunks], pa.string()),
        pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dimensions),
    ]
    wanted = schema(dimensions, number)
    if LEXICAL[0] not in dataset.schema.names:
        return pa.Table.from_arrays(columns, schema=pa.schema([field for field in wanted if field.name not in LEXICAL]))
    made = [lexical(chunk.headings, chunk.text, part.title) for part in rows for chunk in part.chunks]
    columns += [pa.array([row[at] for row in made], pa.string()) for at in (0, 1)]
    return pa.Table.from_arrays(columns, schema=wanted)


def width(rows: Sequence[IndexRows]) -> int:
    """The dimensions of these vectors; 0 if there are none. Raises Permanent if they differ."""
    widths = {int(part.vectors.shape[1]) for part in rows if len(part.chunks)}
    if len(widths) > 1:
        raise mismatch(*sorted(widths)[:2])
    return widths.pop() if widths else 0


def mismatch(table: int, vectors: int) -> Permanent:
    return Permanent(
        f"The index has vectors of {table} dimensions, but these have {vectors}: the embedder has changed. "
        "Run `penstock reindex` to build the index anew with the present embedder.",
        reason="dimension_mismatch",
    )


def best(
    ids: tuple[NDArray[np.int64], NDArray[np.int32]], scores: NDArray[np.float64], at: NDArray[np.uint64]
) -> list[IndexHit]:
    """The hits, best first, one for each (generation, ordinal). They are not whole. Duplicate rows, which a stale
    worker wrote late, have the same text."""
    found: dict[tuple[int, int], IndexHit] = {}
    columns = (ids[0].tolist(), ids[1].tolist(), scores.tolist(), at.tolist())
    for generation, ordinal, score, place in zip(*columns, strict=True):
        known = found.get((generation, ordinal))
        if known is None or known.score < score:
            found[generation, ordinal] = IndexHit(generation, ordinal, "", score, "", 0, 0, 0, 0, (), place)
    return sorted(found.values(), key=lambda hit: (-hit.score, hit.generation, hit.ordinal))


def rows_of(table: Any) -> list[IndexHit]:
    """The rows of a table that has the HIT_COLUMNS, with the score 0."""
    columns = [table[name].to_pylist() for name in HIT_COLUMNS]
    return [
        IndexHit(generation, ordinal, document_id, 0.0, text, page, page_end, start, end, tuple(headings))
        for generation, ordinal, document_id, text, page, page_end, start, end, headings in zip(*columns, strict=True)
    ]


def stored_rows(batches: Iterator[Any]) -> list[StoredRow]:
    """The next rows of a scan; an empty list at its end."""
    for batch in batches:
        if batch.num_rows:
            columns = [batch.column(name).to_pylist() for name in SCAN_COLUMNS]
            return [
                StoredRow(generation, ordinal, epoch, row_digest(_chunk(ordinal, *seen)))
                for generation, ordinal, epoch, *seen in zip(*columns, strict=True)
            ]
    return []


def _chunk(ordinal: int, text: str, page: int, page_end: int, start: int, end: int, headings: list[str]) -> Chunk:
    return Chunk(ordinal, text, page, page_end, start, end, tuple(headings))
