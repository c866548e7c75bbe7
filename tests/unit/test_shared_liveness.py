"""Workers of several users in a home that they share."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.ledger.database.liveness import FileLiveness
from penstock.ledger.database.sqlite import SqliteConnection
from penstock.model.nouns import WorkerId
from penstock.runtime import Runtime

WORKER = WorkerId("01W")


@pytest.fixture
def connection(tmp_path: Path, runtime: Runtime) -> SqliteConnection:
    return SqliteConnection(tmp_path / "ledger.db", runtime)


def test_others_may_look_at_the_lock_of_a_worker_in_a_shared_home(tmp_path: Path, connection: SqliteConnection) -> None:
    before = os.umask(0o002)
    try:
        for mode, expected in ((0o700, 0o600), (0o2770, 0o660)):
            folder = tmp_path / f"{mode:o}"
            folder.mkdir()
            folder.chmod(mode)
            liveness = FileLiveness(folder)
            liveness.hold(WORKER, connection)
            assert stat.S_IMODE((folder / WORKER).stat().st_mode) == expected
            liveness.leave(WORKER)
    finally:
        os.umask(before)


def test_a_worker_whose_lock_may_not_be_looked_at_counts_as_alive(
    tmp_path: Path, connection: SqliteConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / WORKER).touch()
    really_open: Callable[..., int] = os.open

    def refuse(path: Any, *arguments: Any) -> int:
        if Path(path).name == WORKER:
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    liveness = FileLiveness(tmp_path / "workers")
    assert liveness.dead([WORKER], connection) == []
    assert liveness.alive([], connection) == [WORKER]
    assert liveness.count() == 1
    assert liveness.sweep(2e9) == 0
