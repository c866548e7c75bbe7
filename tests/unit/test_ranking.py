"""The best rows of one ranking."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from tests.kit.tables import lance_table

from penstock.indexes.base import EVERYTHING, IndexRows, Query, TextQuery, VectorQuery
from penstock.indexes.lance import LanceIndex
from penstock.ledger.engine.generations import Visible
from penstock.model.items import Chunk
from penstock.model.nouns import GenerationId
from penstock.runtime import Runtime
from penstock.search.ranking import TIED, _top
from penstock.search.tables import Member, Tables

D = 4


async def held() -> None: ...


async def visible(found: list[GenerationId]) -> dict[GenerationId, Visible]:
    return cast("dict[GenerationId, Visible]", dict.fromkeys(found))


@pytest.mark.parametrize("query", [TextQuery("heron"), TextQuery("herons", "grams"), VectorQuery(np.eye(D)[0])])
async def test_of_rows_with_equal_scores_those_with_the_lowest_ids_count(
    tmp_path: Path, runtime: Runtime, query: Query
) -> None:
    index = LanceIndex(tmp_path / "index", runtime)
    table = await lance_table(index, D)
    vector = np.eye(D, dtype=np.float32)[:1]
    chunks = [Chunk(0, "The heron waits.", 1, 1, 0, 16)]
    # In the order of the table, the lowest ids come last.
    await table.put([IndexRows(i, 1, f"d{i}", chunks, vector) for i in range(90, 0, -1)], held, fresh=True)
    tables = Tables([Member("c", 1, table, EVERYTHING)])
    for depth in (10, 50, 89, 90, 99):
        found = await _top(tables, index.traits, query, depth, visible)
        assert [hit.generation for hit in found.hits] == list(range(1, min(depth, 90) + 1))
        assert found.more == (depth < 90)
    # Not without a limit: a table may have nothing but equal rows.
    assert TIED * 4 < 90
    assert len((await _top(tables, index.traits, query, 4, visible)).hits) == 4
