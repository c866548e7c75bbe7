"""Homes to damage: a ledger, blobs and an index as they really are, and ways to break them behind the engine's back."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.app import App
from penstock.indexes.base import IndexRows, TableId
from penstock.indexes.lance import LanceTable
from penstock.model.items import Chunk
from penstock.upkeep.report import CheckEntry, CheckReport

SMALL = 6
BIG = 2600
"""Chunks of the long document: more than one commit."""


def write_files(folder: Path) -> None:
    folder.mkdir(parents=True)
    for i in range(SMALL):
        (folder / f"{i}.txt").write_text(f"This is note {i}. It tells of topic{i} and of nothing else. " * 40)
    (folder / "same.txt").write_text((folder / "0.txt").read_text())
    (folder / "blank.txt").write_text(" \n ")


def write_big(path: Path) -> None:
    path.write_text("\n\n".join(f"Paragraph {i} names word{i}. ".ljust(900, "x") for i in range(BIG)))


def sql(home: Path, text: str, *values: Any) -> list[Any]:
    with sqlite3.connect(home / "ledger.db") as connection:
        return connection.execute(text, values).fetchall()


def generation_of(home: Path, name: str) -> int:
    rows = sql(
        home,
        "SELECT g.id FROM generations g JOIN documents d ON d.id = g.document_id "
        "WHERE d.name = ? AND g.state = 'ACTIVE'",
        name,
    )
    found: int = rows[0][0]
    return found


def segment_of(home: Path, name: str, kind: str) -> Path:
    rows = sql(
        home,
        "SELECT p.key FROM segments p JOIN artifacts a ON a.id = p.artifact_id JOIN artifact_refs f "
        "ON f.artifact_id = a.id WHERE f.generation_id = ? AND a.kind = ? ORDER BY p.ordinal DESC",
        generation_of(home, name),
        kind,
    )
    return home / "blobs" / str(rows[0][0])


def raw_of(home: Path, name: str) -> Path:
    rows = sql(home, "SELECT raw_key FROM generations WHERE id = ?", generation_of(home, name))
    return home / "blobs" / str(rows[0][0])


def remove_rows(home: Path, where: str, owner: str = "default") -> None:
    import lance

    lance.dataset(str(home / "index" / owner / "default" / "v1.lance")).delete(where)


async def table_of(app: App, owner: str = "default", collection: str = "default") -> LanceTable:
    wanted, index = TableId(owner, collection, 1), app.ports.index
    table = await index.open(wanted) or await index.create(wanted, 16)
    assert isinstance(table, LanceTable)
    return table


async def put_rows(
    app: App, generation: int, ordinals: Sequence[int], *, like: str | None = None, collection: str = "default"
) -> None:
    """Append rows as a stale worker would: with the chunks of a document, or with words that are nobody's."""
    chunks = [Chunk(ordinal, f"stray words {ordinal}", 1, 1, 0, 5) for ordinal in ordinals]
    if like is not None:
        real = {chunk.ordinal: chunk async for chunk in app.show(like, "chunks")}
        chunks = [real[ordinal] for ordinal in ordinals]
    vectors = np.zeros((len(chunks), 16), np.float32)
    table = await table_of(app, collection=collection)
    await table.put([IndexRows(generation, 99, "nobody", chunks, vectors)], verify, fresh=True)


async def verify() -> None:
    """A lock that is always ours."""


async def document_id(app: App, name: str) -> str:
    return next(str(entry.id) for entry in await app.list_documents() if entry.name == name)


async def finds(app: App, query: str, name: str) -> bool:
    return name in {hit.name for hit in await app.search(query, k=10, mode="text")}


def kinds(entries: Sequence[CheckEntry]) -> set[str]:
    return {entry.kind for entry in entries}


def clean(report: CheckReport) -> bool:
    return report.ok and report.problems == [] and report.garbage == []
