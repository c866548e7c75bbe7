"""Convert rows of the port to the binary format in which PostgreSQL copies them, and rows of a table to hits."""

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.indexes.base import IndexHit, IndexRows, StoredRow, row_digest
from penstock.indexes.lexemes import is_storable, lexemes, searched_text, storable
from penstock.indexes.pg_text import tsvector
from penstock.model.items import Chunk

COLUMNS = (
    "generation, ordinal, epoch, document_id, page, page_end, start_at, end_at, headings, text, exact, words, grams, "
    "vector"
)
HIT = "c.generation, c.ordinal, c.document_id, c.page, c.page_end, c.start_at, c.end_at, c.headings, c.text, c.exact"
SCAN = "c.generation, c.ordinal, c.epoch, c.page, c.page_end, c.start_at, c.end_at, c.headings, c.text, c.exact"
HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
TRAILER = struct.pack("!h", -1)
_FIELDS = struct.pack("!h", 14)
_NULL = struct.pack("!i", -1)
_LONG, _INT = struct.Struct("!iq"), struct.Struct("!ii")


def definition(dimensions: int) -> str:
    """`exact` has the text if PostgreSQL cannot store all of its characters."""
    return (
        "generation bigint NOT NULL, ordinal int NOT NULL, epoch int NOT NULL, document_id text NOT NULL, "
        "page int NOT NULL, page_end int NOT NULL, start_at int NOT NULL, end_at int NOT NULL, "
        "headings jsonb NOT NULL, text text NOT NULL, exact bytea, words tsvector NOT NULL, grams tsvector NOT NULL, "
        f"vector vector({dimensions:d}) NOT NULL, PRIMARY KEY (generation, ordinal)"
    )


def encoded(rows: Sequence[IndexRows]) -> Iterator[bytes]:
    """The rows as one binary copy, in pieces."""
    yield HEADER
    for part in rows:
        vectors = np.asarray(part.vectors, dtype=">f4")
        if len(vectors) != len(part.chunks):
            raise ValueError(f"{len(part.chunks)} chunks came with {len(vectors)} vectors")
        for chunk, vector in zip(part.chunks, vectors, strict=True):
            yield _row(part, chunk, vector)
    yield TRAILER


def _row(part: IndexRows, chunk: Chunk, vector: Any) -> bytes:
    searched = searched_text(part.title, chunk)
    plain = all(map(is_storable, (chunk.text, *chunk.headings)))
    exact = None if plain else json.dumps([chunk.text, chunk.headings]).encode()
    text = chunk.text if plain else storable(chunk.text)
    headings = json.dumps(list(chunk.headings) if plain else [storable(one) for one in chunk.headings])
    return b"".join(
        [
            _FIELDS,
            _LONG.pack(8, part.generation),
            _INT.pack(4, chunk.ordinal),
            _INT.pack(4, part.epoch),
            _field(part.document_id.encode()),
            _INT.pack(4, chunk.page),
            _INT.pack(4, chunk.page_end),
            _INT.pack(4, chunk.start),
            _INT.pack(4, chunk.end),
            _field(b"\x01" + headings.encode()),
            _field(text.encode()),
            _NULL if exact is None else _field(exact),
            _field(tsvector(lexemes("words", searched))),
            _field(tsvector(lexemes("grams", searched))),
            _field(struct.pack("!hh", len(vector), 0) + vector.tobytes()),
        ]
    )


def _field(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def _chunk(ordinal: int, values: Sequence[Any]) -> Chunk:
    page, page_end, start, end, headings, text, exact = values
    if exact is not None:
        text, headings = json.loads(bytes(exact))
    return Chunk(ordinal, text, page, page_end, start, end, tuple(headings))


def hit(row: Sequence[Any]) -> IndexHit:
    generation, ordinal, document, *values, score = row
    chunk = _chunk(ordinal, values)
    return IndexHit(
        *(generation, ordinal, document, float(score), chunk.text, chunk.page, chunk.page_end, chunk.start),
        chunk.end,
        chunk.headings,
    )


def stored(row: Sequence[Any]) -> StoredRow:
    generation, ordinal, epoch, *values = row
    return StoredRow(generation, ordinal, epoch, row_digest(_chunk(ordinal, values)))
