"""A ledger that this process may only read, while another one writes it."""

from pathlib import Path

import pytest
from tests.kit.ledger import ANNA, Desk

from penstock.ledger.database import database
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.runtime import Runtime


async def test_a_reader_without_permission_follows_a_writer(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens the file while nobody writes, and thus as one that does not change. Then it does change."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"

    async def write(*sources: str) -> None:
        ledger = Ledger(Database(url, runtime))
        await ledger.open()
        await Desk(ledger).submit(*sources, owner=ANNA)
        await ledger.close()

    await write("a")
    with monkeypatch.context() as without_permission:
        without_permission.setattr(database, "cannot_be_written", lambda path: True)
        reader = Ledger(Database(url, runtime))
        await reader.open()
    desk = Desk(reader)
    assert await desk.rows("SELECT count(*) FROM documents") == [(1,)]
    for number in range(2, 6):
        await write(f"b{number}")
        assert await desk.rows("SELECT count(*) FROM documents") == [(number,)]
    assert await desk.rows("PRAGMA integrity_check") == [("ok",)]
    await reader.close()
