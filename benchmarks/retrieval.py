"""Recall on real questions: each passage a text document, hybrid search by the defaults, and reranked if
BENCH_RERANKER names the folder of a cross-encoder."""

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT
from benchmarks.table import Row
from penstock.app import open_app

RERANKER = os.environ.get("BENCH_RERANKER")
SAMPLE = ROOT.parent / "shared" / "retrieval" / "squad-sample.json"


async def recall(sample: Path, ks: tuple[int, ...] = (1, 5, 10)) -> dict[str, float]:
    data = json.loads(sample.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "passages"
        files.mkdir()
        for i, passage in enumerate(data["passages"]):
            (files / f"{i}.txt").write_text(passage, encoding="utf-8")
        async with open_app(home=str(Path(folder) / "home")) as app:
            summary = await app.ingest([files])
            assert summary.completed == len(data["passages"]), summary
            results: dict[str, float] = {"ingest_s": summary.elapsed_s}
            kinds = {mode: dict[str, Any](mode=mode) for mode in ("hybrid", "text", "vector")}
            if RERANKER:
                kinds["reranked"] = {"rerank": RERANKER}
            for kind, options in kinds.items():
                found = dict.fromkeys(ks, 0)
                for question in data["questions"]:
                    hits = await app.search(question["question"], max(ks), **options)
                    names = [hit.name for hit in hits]
                    for k in ks:
                        found[k] += f"{question['passage']}.txt" in names[:k]
                results |= {f"{kind}_r@{k}": round(found[k] / len(data["questions"]), 3) for k in ks}
    return results


def rows() -> Iterator[Row]:
    if SAMPLE.exists():
        found = asyncio.run(recall(SAMPLE))
        least = {1: 0.84, 5: 0.96, 10: 0.975}
        names = {"text": "words (BM25)", "vector": "vectors", "hybrid": "default", "reranked": "reranked"}
        for mode, name in names.items():
            for k, wanted in least.items() if f"{mode}_r@1" in found else ():
                row = f"300 SQuAD questions, {name}, R@{k}"
                yield Row(row, found[f"{mode}_r@{k}"], "", 3, least=wanted if mode == "hybrid" else None)
