"""A home of an older Penstock, made by real work and taken back to its schema: it is migrated when it is opened, and
goes on as before."""

import sqlite3
from pathlib import Path

from tests.conftest import StartApp
from tests.kit.apps import found, named

from penstock.app import open_app

DOWN = (
    # 37: samples.
    *(f"DROP TABLE {name}" for name in ("step_samples", "queue_samples")),
    *(f"DROP TRIGGER {name}" for name in ("holdings_added", "holdings_changed", "runs_webhooks", "groups_webhooks")),
    *(f"DROP TABLE {name}" for name in ("intake_pauses", "quotas", "holdings", "webhook_deliveries")),
    # 35: vector stores.
    "DROP TABLE vector_stores",
    "DROP TABLE file_batches",
    # 31: live changes, uploads, actions. 30: stores of versions. 29: keys and what requests leave.
    "DROP INDEX documents_changed",
    *(f"DROP TABLE {name}" for name in ("upload_parts", "uploads", "action_items", "actions")),
    "ALTER TABLE index_versions DROP COLUMN store",
    *(f"DROP TABLE {name}" for name in ("api_keys", "audit_log", "requests", "webhooks", "numbers", "batches")),
    "DROP TABLE sync_states",
    "DROP INDEX deliveries_handler",
    "DROP INDEX documents_sha256",
    # 28: re-indexes.
    "DROP TABLE reindexes",
    "DROP INDEX generations_staging",
    "ALTER TABLE generations DROP COLUMN staging",
    # 27: the setting of an embedder. 26: usage.
    "ALTER TABLE index_versions DROP COLUMN setting",
    "DROP TABLE usage",
    "DROP TABLE run_usage",
    # 24: the settings of runs are stored once. Earlier runs have their text.
    "UPDATE runs SET settings = (SELECT b.body FROM run_settings b WHERE b.fingerprint = runs.settings)",
    "DROP TABLE run_settings",
    # 23: documents inside others. 22: revisions. 21: refusals.
    "DROP INDEX documents_parent",
    "ALTER TABLE documents DROP COLUMN unpacked_bytes",
    "ALTER TABLE documents DROP COLUMN unpacked_members",
    "ALTER TABLE documents DROP COLUMN parent_generation",
    "ALTER TABLE documents DROP COLUMN depth",
    "ALTER TABLE documents DROP COLUMN root_id",
    "ALTER TABLE documents DROP COLUMN parent_id",
    "ALTER TABLE documents DROP COLUMN revision",
    "ALTER TABLE steps DROP COLUMN refused",
    # 20: bought answers.
    "DROP TABLE answers",
    "DROP TABLE answer_segments",
    "DROP TABLE operations",
    # 19: collections that are dropped, deleted files that stay away.
    "DROP INDEX collections_dropping",
    "DROP INDEX documents_collection",
    "DROP INDEX documents_deleted",
    "ALTER TABLE collections DROP COLUMN drop_to",
    "ALTER TABLE collections DROP COLUMN dropped_at",
    "DROP TABLE forgotten",
    # 18: small blobs. 17: limits of providers.
    "DROP TABLE small_blobs",
    "DROP TABLE limit_slots",
    "DROP TABLE limits",
    # 15: metadata by origin. 16 and 32, UNSUPPORTED and HELD, can be migrated to again.
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
            await app.ingest(data=f"the {name} lives here".encode(), name=f"{name[0]}.txt")
        await app.ingest(data=b"the stork lives here", name="h.txt")
        await app.delete([(await named(app, "b.txt")).id])
        await app.ingest(data=b"   ", name="blank.txt")
        await app.ingest(data=b"the newt waits", name="newt.txt", wait=False)
    with sqlite3.connect(tmp_path / "home" / "ledger.db") as ledger:
        for statement in DOWN:
            ledger.execute(statement)
    ledger.close()
    again = await start_app()
    assert await found(again, "lives") == {"o.txt", "h.txt"}
    assert await found(again, "heron") == set()
    assert (await again.run()).completed == 1
    assert await found(again, "newt") == {"newt.txt"}
    await again.ingest(data=b"the crane lives here", name="o.txt")
    assert await found(again, "otter") == set()
    assert {hit.name for hit in await again.search("crane")} >= {"o.txt"}
    report = await again.check()
    assert (report.ok, report.problems) == (True, [])
