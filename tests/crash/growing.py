"""An index that grows: appended, optimized and compacted as a worker does, then the memory that it took.

Started as `python -m tests.crash.growing FOLDER ROWS`; prints the resident and the highest memory in megabytes."""

import asyncio
import random
import sys
from itertools import accumulate
from pathlib import Path

import numpy as np

from penstock.cli.call import _share_memory
from penstock.indexes.base import IndexRows, TableId
from penstock.indexes.lance import LanceIndex
from penstock.model.items import Chunk
from penstock.runtime import Runtime
from penstock.stages.index import COMMIT_ROWS
from penstock.worker.indexing import COMPACT_EVERY

WORDS = 60_000


def memory() -> tuple[int, int]:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) >> 10, int(fields["VmHWM"].split()[0]) >> 10


async def held() -> None: ...


async def grow(folder: Path, rows: int) -> None:
    drawn, runtime = random.Random(1), Runtime()
    words = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(3, 10))) for _ in range(WORDS)]
    weights = list(accumulate(1 / (i + 1) for i in range(WORDS)))
    vectors = np.random.default_rng(1)
    table = await LanceIndex(folder, runtime).create(TableId("anna", "default", 1), 256)
    for number in range(1, rows // COMMIT_ROWS + 1):
        texts = (" ".join(drawn.choices(words, cum_weights=weights, k=130)) for _ in range(COMMIT_ROWS))
        chunks = [Chunk(i, text, 1, 1, 0, len(text)) for i, text in enumerate(texts)]
        made = vectors.normal(size=(COMMIT_ROWS, 256)).astype(np.float32)
        await table.put([IndexRows(number, 1, f"d{number}", chunks, made)], held, fresh=True)
        await table.optimize(held)
        if number % COMPACT_EVERY == 0:
            await table.compact(held)
    print(*memory(), flush=True)
    runtime.close()


if __name__ == "__main__":
    _share_memory()
    asyncio.run(grow(Path(sys.argv[1]), int(sys.argv[2])))
