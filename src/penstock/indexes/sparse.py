"""Text search by sparse vectors, for servers that compare such vectors but do not rank texts by BM25.

A row has one sparse vector for its words and its character grams: each lexeme is a dimension, and its value is the BM25
weight of the lexeme in the row. That of a query contains the inverse document frequencies of its lexemes, so the inner
product of both is a BM25 score. Two things are estimated. The average length of rows is a constant. The document
frequencies are those of a sample of the table's rows, so the rows of other tables do not matter."""

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.indexes.base import TextField
from penstock.indexes.lexemes import asked, lexemes

K1, B = 1.2, 0.75
AVERAGE: Mapping[TextField, int] = {"words": 150, "grams": 700}
"""Lexemes of a chunk of the default size."""
SCORED: Mapping[TextField, int] = {"words": 64, "grams": 128}
"""So many lexemes of a query are compared, the rarest ones."""
NOTHING = 0
"""A dimension that no query has. A row without words has only this one, because servers refuse empty vectors."""
LONGEST_QUERY = 20_000
"""Characters of a query that are looked at."""


class Sparse(NamedTuple):
    indices: list[int]
    """Ascending."""
    values: list[float]


def dimension(field: TextField, lexeme: str) -> int:
    """Even for words, odd for grams. Of 17 million dimensions each, few are shared by two lexemes of a table."""
    hashed = zlib.crc32(lexeme.encode("utf-8", "surrogatepass")) >> 8
    return 2 + 2 * hashed + (field == "grams")


def of_row(text: str, most: int | None = None) -> Sparse:
    """`most`: the number of dimensions that the server accepts. Words come before grams."""
    weights = _weights("words", text)
    if most is not None and len(weights) > most:
        weights = _heaviest(weights, most)
    room = None if most is None else most - len(weights)
    weights |= _heaviest(_weights("grams", text), room)
    order = sorted(weights or {NOTHING: 1.0})
    return Sparse(order, [weights.get(one, 1.0) for one in order])


def _weights(field: TextField, text: str) -> dict[int, float]:
    counts = Counter(dimension(field, one) for one in lexemes(field, text))
    norm = K1 * (1 - B + B * counts.total() / AVERAGE[field])
    return {one: round(count * (K1 + 1) / (count + norm), 3) for one, count in counts.items()}


def _heaviest(weights: dict[int, float], most: int | None) -> dict[int, float]:
    if most is None or len(weights) <= most:
        return weights
    return dict(sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:most])


class Frequencies(NamedTuple):
    """In how many rows of a sample each dimension occurs."""

    rows: int
    counts: Mapping[int, int]

    def idf(self, one: int) -> float:
        count = self.counts.get(one, 0)
        return math.log(1 + (self.rows - count + 0.5) / (count + 0.5))


def frequencies(texts: Iterable[str]) -> Frequencies:
    rows, counts = 0, Counter[int]()
    for text in texts:
        rows += 1
        for field in SCORED:
            counts.update({dimension(field, one) for one in lexemes(field, text)})
    return Frequencies(rows, counts)


def of_query(field: TextField, text: str, known: Frequencies) -> Sparse | None:
    """None: the query has no lexemes."""
    found = {dimension(field, lexeme) for lexeme in asked(field, text[:LONGEST_QUERY])}
    weights = {one: known.idf(one) for one in found}
    rarest: Sequence[int] = sorted(weights, key=lambda one: (-weights[one], one))[: SCORED[field]]
    order = sorted(rarest)
    return Sparse(order, [round(weights[one], 4) for one in order]) if order else None
