"""The bound: the same documents through the same parts in one straight line, with nothing that survives a kill.

python -m benchmarks.plain FOLDER STORE
Prints one JSON object: documents, skipped, pages, chunks.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

SUFFIXES = (".pdf", ".md", ".txt")


def read(path: Path) -> list[str]:
    """The text of each page."""
    if path.suffix.lower() != ".pdf":
        return [path.read_text(encoding="utf-8", errors="replace")]
    import pypdfium2

    texts = []
    with pypdfium2.PdfDocument(path) as document:
        for number in range(len(document)):
            page = document[number]
            text_page = page.get_textpage()
            texts.append(text_page.get_text_bounded())
            text_page.close()
            page.close()
    return texts


def ingest(folder: Path, store: Path) -> dict[str, int]:
    import lance
    import numpy as np
    import pyarrow as pa
    import pypdfium2
    from semantic_text_splitter import TextSplitter

    wordllama: Any = importlib.import_module("wordllama")
    model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    splitter = TextSplitter(1000, overlap=200)
    seen = {"documents": 0, "skipped": 0, "pages": 0, "chunks": 0}
    names: list[str] = []
    ordinals: list[int] = []
    texts: list[str] = []
    vectors: list[Any] = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES):
        try:
            pages = read(path)
        except pypdfium2.PdfiumError:
            seen["skipped"] += 1
            continue
        chunks = splitter.chunks("\n\n".join(pages))
        seen["documents"] += 1
        seen["pages"] += len(pages)
        seen["chunks"] += len(chunks)
        if chunks:
            names += [path.name] * len(chunks)
            ordinals += range(len(chunks))
            texts += chunks
            vectors.append(model.embed(chunks, norm=True).astype(np.float32))
    rows = np.concatenate(vectors)
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    table = pa.table({"document": names, "ordinal": ordinals, "text": texts, "vector": column})
    lance.write_dataset(table, str(store), mode="overwrite")
    return seen


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    print(json.dumps(ingest(Path(sys.argv[1]), Path(sys.argv[2]))))
