"""What small notes take on disk, with the default embedder. `make bench ARGS=small` measures 20,000 of them."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from benchmarks import notes

from penstock.app import open_app

COUNT = 150


def ledger_bytes(home: Path) -> int:
    """The pages in use. Free pages of a small ledger are those of artifacts that were dropped; it uses them again."""
    with closing(sqlite3.connect(home / "ledger.db")) as ledger:
        count, free, size = (
            ledger.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((count - free) * size)


def index_bytes(home: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (home / "index").rglob("*") if path.is_file())


@pytest.mark.parametrize(("keep", "most"), [("always", 11_000), ("unless_small", 5_000)])
async def test_bytes_and_files_for_each_note_stay_below_a_bound(tmp_path: Path, keep: str, most: int) -> None:
    notes.write(tmp_path / "notes", COUNT)
    home = tmp_path / "home"
    settings: dict[str, Any] = {"home": str(home), "small_bytes": 4096, "keep_artifacts": keep}
    async with open_app(**settings):
        pass
    empty = ledger_bytes(home)
    async with open_app(**settings) as app:
        assert (await app.ingest([tmp_path / "notes"])).completed == COUNT
    assert sum(path.is_file() for path in home.rglob("*")) < 40
    assert (ledger_bytes(home) - empty) / COUNT < most
    assert index_bytes(home) / COUNT < 3_000
