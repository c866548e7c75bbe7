"""What small notes take on disk, part by part, and how many files they make."""

import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks import notes
from benchmarks.processes import penstock
from benchmarks.table import Row

MB = 1e6
LISTED = 12
"""How many tables and indexes of the ledger are listed."""


def rows(count: int = notes.NOTES) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as temporary:
        folder, home = Path(temporary, "notes"), Path(temporary, "home")
        given = notes.write(folder, count)
        ended = penstock(home, "ingest", folder)
        assert ended.answer["completed"] == count, ended.answer
        yield Row(f"{count:,} notes", given / MB, "MB", 1)
        yield Row("notes: ingested per second", count / ended.seconds, "", 0)
        yield from _measured(home, given, "right after the ingest")
        yield from _ledger(home / "ledger.db")


def _measured(home: Path, given: int, when: str) -> Iterator[Row]:
    sizes: Counter[str] = Counter()
    taken = files = 0
    for folder, _, names in os.walk(home):
        part = _part(Path(folder).relative_to(home).parts)
        for name in names:
            found = os.stat(os.path.join(folder, name))
            sizes[part or name] += found.st_size
            taken += found.st_blocks * 512
            files += 1
    for part, size in sizes.most_common():
        if size > MB / 100:
            yield Row(f"  {part}", size / MB, "MB", 1)
    yield Row("  unused ends of blocks", (taken - sum(sizes.values())) / MB, "MB", 1)
    yield Row(f"notes: size on disk {when}, against the notes", taken / given, "×", 1, most=4.0)
    yield Row(f"notes: files {when}", files, most=2000)


def _part(parts: tuple[str, ...]) -> str:
    """The kind of the files in a folder of a home; empty: each file is a kind of its own."""
    if parts[:1] == ("blobs",):
        return f"blobs: {parts[2] if len(parts) > 2 else 'submits'}"
    if parts[:1] == ("index",):
        return f"index: {parts[4] if len(parts) > 4 else 'other'}"
    return ""


def _ledger(path: Path) -> Iterator[Row]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
        try:
            found = ledger.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC").fetchall()
        except sqlite3.OperationalError:
            # This SQLite was built without the table of sizes.
            return
        for name, size in found[:LISTED]:
            yield Row(f"  ledger: {name}", size / MB, "MB", 1)
        kinds = ledger.execute(
            "SELECT a.kind, sum(s.size) FROM segments s JOIN artifacts a ON a.id = s.artifact_id GROUP BY a.kind"
        )
        for kind, size in kinds.fetchall():
            yield Row(f"  bytes of segments: {kind}", size / MB, "MB", 1)
