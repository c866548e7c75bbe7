"""Rows as servers store them: an id, fields, a vector and a sparse vector. The fields are the same in all servers."""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import RowRefused
from penstock.indexes.base import IndexHit, IndexRows, StoredRow, TableId, row_digest
from penstock.indexes.lexemes import is_storable, searched_text
from penstock.indexes.sparse import Sparse, of_row
from penstock.model.items import Chunk

BUCKETS = 65_536
"""A row is in one of so many buckets, chosen by its id. A sample is the rows of some buckets."""
IDENTITY = ("generation", "ordinal", "document")
TEXT = ("text", "headings", "odd")
"""Fields that contain what text search looks at, except the title."""
STORED = ("generation", "ordinal", "epoch", "page", "page_end", "start", "end", *TEXT)
WHOLE = (*STORED, "document")

Fields = Mapping[str, Any]


class Limits(NamedTuple):
    """What a server accepts."""

    rows: int
    """Rows of one request."""
    bytes: int
    """Bytes of one request, about."""
    field_bytes: int | None = None
    """Bytes of the text of a row with its headings."""
    dimensions: int | None = None
    """Dimensions of a sparse vector that are not 0."""
    hits: int | None = None


class Row(NamedTuple):
    id: str
    fields: dict[str, Any]
    vector: list[float]
    sparse: Sparse
    size: int
    """Bytes, about."""

    @property
    def epoch(self) -> int:
        epoch: int = self.fields["epoch"]
        return epoch


def table_prefix(table: TableId) -> str:
    """The beginning of the ids of all rows of a table, within its owner."""
    return f"{table.collection}.v{table.version}/"


def row_id(table: TableId, generation: int, document: str, ordinal: int) -> str:
    """Unique within the owner."""
    return f"{table_prefix(table)}{generation}/{document}_chunk_{ordinal}"


def record_id(table: TableId) -> str:
    return f"{table.owner}/{table.collection}/{table.version}"


def identity(id_: str) -> tuple[int, int, str]:
    """The generation, ordinal and document of a row, from its id."""
    _, generation, rest = id_.rsplit("/", 2)
    document, _, ordinal = rest.rpartition("_chunk_")
    return int(generation), int(ordinal), document


def batches(table: TableId, rows: Sequence[IndexRows], limits: Limits) -> Iterator[list[Row]]:
    """The rows in batches that the server accepts. All rows of a batch have the same epoch."""
    batch: list[Row] = []
    size = 0
    for part in rows:
        vectors = np.round(np.asarray(part.vectors, np.float64), 6)
        if len(vectors) != len(part.chunks):
            raise ValueError(f"{len(part.chunks)} chunks came with {len(vectors)} vectors")
        for chunk, vector in zip(part.chunks, vectors, strict=True):
            row = _row(table, part, chunk, vector.tolist(), limits)
            full = len(batch) >= limits.rows or size + row.size > limits.bytes
            if batch and (full or batch[0].epoch != row.epoch):
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += row.size
    if batch:
        yield batch


def _row(table: TableId, part: IndexRows, chunk: Chunk, vector: list[float], limits: Limits) -> Row:
    text, headings, odd = chunk.text, list(chunk.headings), False
    if not all(map(is_storable, (text, *headings))):
        # JSON escapes what the server cannot store.
        text, headings, odd = json.dumps([text, headings]), [], True
    size = len(text.encode()) + sum(len(one.encode()) + 4 for one in headings)
    if limits.field_bytes is not None and size > limits.field_bytes:
        raise RowRefused(
            f"chunk {chunk.ordinal} has {size} bytes with its headings, and this index stores at most "
            f"{limits.field_bytes} for a chunk: set a smaller `chunk.size`",
            reason="chunk_too_large",
        )
    sparse = of_row(searched_text(part.title, chunk), limits.dimensions)
    id_ = row_id(table, part.generation, part.document_id, chunk.ordinal)
    fields = {
        "owner": table.owner,
        "collection": table.collection,
        "version": table.version,
        "document": part.document_id,
        "generation": part.generation,
        "ordinal": chunk.ordinal,
        "epoch": part.epoch,
        "bucket": zlib.crc32(id_.encode("utf-8", "surrogatepass")) % BUCKETS,
        "page": chunk.page,
        "page_end": chunk.page_end,
        "start": chunk.start,
        "end": chunk.end,
        "headings": headings,
        "text": text,
        "odd": odd,
    }
    return Row(id_, fields, vector, sparse, size + 10 * len(vector) + 18 * len(sparse.indices) + 400)


def _content(fields: Fields) -> tuple[str, Sequence[str]]:
    if fields["odd"]:
        text, headings = json.loads(fields["text"])
        return text, headings
    return fields["text"], fields["headings"]


def text_of(fields: Fields) -> str:
    text, headings = _content(fields)
    return "\n".join([*headings, text])


def chunk_of(fields: Fields) -> Chunk:
    text, headings = _content(fields)
    page, page_end, start, end = (int(fields[name]) for name in ("page", "page_end", "start", "end"))
    return Chunk(int(fields["ordinal"]), text, page, page_end, start, end, tuple(headings))


def hit(fields: Fields, score: float = 0.0) -> IndexHit:
    """Whole if the fields are."""
    key = (int(fields["generation"]), int(fields["ordinal"]), str(fields["document"]), score)
    if "text" not in fields:
        return IndexHit(*key, "", 0, 0, 0, 0, (), 0)
    chunk = chunk_of(fields)
    return IndexHit(*key, chunk.text, chunk.page, chunk.page_end, chunk.start, chunk.end, chunk.headings)


def stored(fields: Fields) -> StoredRow:
    chunk = chunk_of(fields)
    return StoredRow(int(fields["generation"]), chunk.ordinal, int(fields["epoch"]), row_digest(chunk))
