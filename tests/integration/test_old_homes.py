"""A home of an older Penstock, made by real work and taken back to its schema: it is migrated when it is opened, and
goes on as before."""

import sqlite3
from pathlib import Path

from tests.conftest import StartApp
from tests.kit.apps import found, named

from penstock.app import open_app

DOWN = (
    # 15: metadata by origin. 16, UNSUPPORTED, can be migrated to again.
    "ALTER TABLE generations DROP COLUMN found",
    "ALTER TABLE generations DROP COLUMN submitted",
    # 14: versions and placements.
    "ALTER TABLE collections ADD COLUMN index_version INTEGER NOT NULL DEFAULT 1",
    "ALTER TABLE collections ADD COLUMN embedder TEXT",
    "ALTER TABLE collections ADD COLUMN dimensions INTEGER",
    "UPDATE collections SET (embedder, dimensions) = (SELECT embedder, dimensions FROM index_versions v "
    "WHERE v.owner = collections.owner AND v.collection = collections.name)",
    "DROP TABLE index_versions",
    "DROP TABLE placements",
    "DELETE FROM schema_versions WHERE version >= 14",
)


async def test_a_home_without_placements_is_migrated_and_searched_changed_and_checked(
    start_app: StartApp, tmp_path: Path
) -> None:
    async with open_app(home=str(tmp_path / "home"), embedder="fake") as app:
        for name in ("otter", "heron", "beaver"):
            await app.ingest(data=f"the {name} lives here".encode(), name=f"{name}.txt")
        await app.ingest(data=b"the stork lives here", name="heron.txt")
        await app.delete([(await named(app, "beaver.txt")).id])
        await app.ingest(data=b"   ", name="blank.txt")
        await app.ingest(data=b"the newt waits", name="newt.txt", wait=False)
    with sqlite3.connect(tmp_path / "home" / "ledger.db") as ledger:
        for statement in DOWN:
            ledger.execute(statement)
    ledger.close()
    again = await start_app()
    assert await found(again, "lives") == {"otter.txt", "heron.txt"}
    assert await found(again, "heron") == set()
    assert (await again.run()).completed == 1
    assert await found(again, "newt") == {"newt.txt"}
    await again.ingest(data=b"the crane lives here", name="otter.txt")
    assert await found(again, "otter") == set()
    assert {hit.name for hit in await again.search("crane")} >= {"otter.txt"}
    report = await again.check()
    assert (report.ok, report.problems) == (True, [])
