"""When the text indexes of a Lance table are loaded whole."""

import importlib
from pathlib import Path

import numpy as np
from tests.kit.tables import TABLE

from penstock.indexes.base import EVERYTHING, IndexRows, TextQuery
from penstock.indexes.lance import LanceIndex
from penstock.indexes.lance_reader import LanceReader
from penstock.indexes.lance_warmth import AFTER
from penstock.model.items import Chunk
from penstock.runtime import Runtime


async def held() -> None:
    """The index lock is ours."""


async def test_text_indexes_are_loaded_once_for_each_change_and_only_after_some_searches(
    tmp_path: Path, runtime: Runtime
) -> None:
    table = await LanceIndex(tmp_path, runtime).create(TABLE, 2)
    session = importlib.import_module("lance").Session()
    reader = LanceReader(table.path, lambda: session)
    for generation in (1, 2):
        chunk = Chunk(0, "common words", 1, 1, 0, 12, ())
        await table.put([IndexRows(generation, 1, "doc", [chunk], np.eye(1, 2, dtype=np.float32))], held, fresh=True)
        await table.optimize(held, force=True)
        due = []
        for _ in range(2 * AFTER):
            assert len(reader.search_text(TextQuery("common"), 5, EVERYTHING)) == generation
            due.append(reader.wants_warming())
        assert due == [False] * (AFTER - 1) + [True] + [False] * AFTER
        reader.warm()
        assert len(reader.search_text(TextQuery("common"), 5, EVERYTHING)) == generation
