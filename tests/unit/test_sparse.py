"""Sparse vectors for text search in vector databases."""

import math

from penstock.indexes.sparse import NOTHING, Frequencies, Sparse, dimension, frequencies, of_query, of_row


def score(query: Sparse | None, row: Sparse) -> float:
    assert query is not None
    values = dict(zip(row.indices, row.values, strict=True))
    return sum(value * values.get(one, 0.0) for one, value in zip(query.indices, query.values, strict=True))


def test_rare_words_count_more_than_frequent_ones() -> None:
    texts = [f"the water of the dam number{n}" for n in range(300)] + ["the turbine"]
    known = frequencies(texts)
    query = of_query("words", "the turbine of the water", known)
    best = max(texts, key=lambda text: score(query, of_row(text)))
    assert best == "the turbine"


def test_repeated_words_saturate_and_long_rows_count_less() -> None:
    query = of_query("words", "otter", Frequencies(10, {}))
    once, twice, often = (score(query, of_row("otter " * n + "pool " * (40 - n))) for n in (1, 2, 20))
    assert once < twice < often < 4 * once
    assert score(query, of_row("otter")) > score(query, of_row("otter " + "pool " * 100))


def test_words_and_grams_do_not_meet() -> None:
    row = of_row("turbine")
    assert score(of_query("words", "turbines", Frequencies(1, {})), row) > 0, "they have one stem"
    assert score(of_query("words", "turbin3", Frequencies(1, {})), row) == 0
    assert score(of_query("grams", "turbin3", Frequencies(1, {})), row) > 0
    assert dimension("words", "water") != dimension("grams", "water")


def test_a_row_has_no_more_dimensions_than_the_server_accepts_and_words_come_first() -> None:
    text = " ".join(f"word{n}" for n in range(300))
    row = of_row(text, 400)
    assert len(row.indices) == len(row.values) == 400
    assert row.indices == sorted(row.indices)
    assert {dimension("words", f"word{n}") for n in range(300)} <= set(row.indices)
    assert len(of_row(text, 100).indices) == 100


def test_a_row_or_query_without_words_matches_nothing() -> None:
    assert of_row("… ?!").indices == [NOTHING]
    assert of_query("words", "", Frequencies(0, {})) is None
    assert of_query("grams", "\0 …", Frequencies(0, {})) is None
    assert score(of_query("words", "a \ud800", Frequencies(0, {})), of_row("\ud800 …")) == 0


def test_a_lexeme_that_no_row_of_the_sample_has_is_the_rarest() -> None:
    known = frequencies(["otter"] * 50 + ["heron"])
    idf = [known.idf(dimension("words", one)) for one in ("otter", "heron", "stork")]
    assert idf == sorted(idf)
    assert idf[0] > 0
    assert math.isclose(Frequencies(0, {}).idf(5), math.log(2))
