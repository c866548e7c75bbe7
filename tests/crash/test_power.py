"""A power cut loses what was not flushed. What was accepted is never among it (I1); what can be made again may be, and
then it is made again, from where it is broken."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.harness import Picture, Place, open_home, picture, said, sql
from tests.crash.scenarios import FILES, LARGE, text, write_files

from penstock.app import App
from penstock.ledger.database.sqlite import SqliteConnection


class Disk:
    """Knows what would be left after a power cut: what was written, renamed and made, and flushed since."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.flushed: set[int] = set()
        """Files whose bytes are on the disk, by inode."""
        self.entries: set[tuple[int, str]] = set()
        """Names that are in a folder on the disk, by the folder's inode."""
        self.lost_at_commit: list[list[str]] = []
        self._patch(monkeypatch)

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fsync, write, commit = os.fsync, os.write, SqliteConnection.commit

        def spy_fsync(descriptor: int) -> None:
            fsync(descriptor)
            info = os.fstat(descriptor)
            if stat.S_ISDIR(info.st_mode):
                names = os.listdir(f"/proc/self/fd/{descriptor}")
                self.entries |= {(info.st_ino, name) for name in names}
            else:
                self.flushed.add(info.st_ino)

        def spy_write(descriptor: int, data: Any) -> int:
            self.flushed.discard(os.fstat(descriptor).st_ino)
            return write(descriptor, data)

        def spy_commit(connection: SqliteConnection, ring: bool = False) -> None:
            self.lost_at_commit.append(self.lost(connection))
            commit(connection, ring)

        monkeypatch.setattr(os, "fsync", spy_fsync)
        monkeypatch.setattr(os, "write", spy_write)
        monkeypatch.setattr(SqliteConnection, "commit", spy_commit)

    def lost(self, connection: SqliteConnection) -> list[str]:
        """Raw bytes that the ledger is about to name, and that a power cut would take."""
        large = "SELECT raw_key FROM generations WHERE raw_key NOT IN (SELECT key FROM small_blobs)"
        keys = [row[0] for row in connection.script(large)]
        return [key for key in keys if not self.safe(self.home / "blobs" / key)]

    def safe(self, path: Path) -> bool:
        above = [folder for folder in path.parents if folder.is_relative_to(self.home)]
        named = all((folder.parent.stat().st_ino, folder.name) in self.entries for folder in (path, *above))
        return named and path.stat().st_ino in self.flushed


async def test_i1_bytes_are_on_the_disk_before_the_row_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "files")
    (tmp_path / "files" / "streamed.txt").write_bytes(b"word " * 300_000)
    home = tmp_path / "home"
    disk = Disk(home, monkeypatch)
    async with open_home(home) as app:
        commits = len(disk.lost_at_commit)
        await app.ingest([tmp_path / "files"], wait=False)
        await app.ingest(data=text("gammaword"), name="gamma.txt", wait=False)
        assert len(disk.lost_at_commit) > commits
        assert await sql(app, "SELECT count(*) FROM generations") == [(len(FILES) + 2,)]
    assert not any(disk.lost_at_commit), "named before it was safe"


async def test_i1_the_ledger_flushes_every_commit(tmp_path: Path) -> None:
    async with open_home(tmp_path / "home") as app:
        connection = app.ledger.database.connect(hot=True)
        assert connection.script("PRAGMA synchronous") == [(2,)]
        assert connection.script("PRAGMA journal_mode") == [("wal",)]
        connection.close()


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def blank(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


async def accept(app: App) -> None:
    """Files that have text: a document that has ended reads its segments no more."""
    folder = app.config.home_path.parent / "files"
    await app.ingest([folder / name for name in ("alpha.txt", "beta.md", "same.txt")], wait=False)


async def accept_large(app: App) -> None:
    await app.ingest(data=text("hugeword", LARGE), name="huge.txt", wait=False)


async def finish(app: App) -> Picture:
    await app.run()
    report = await app.check()
    assert report.ok, said(report)
    return await picture(app)


def undisturbed(place: Place, submit: Callable[[App], Any]) -> Picture:
    home = place.home("empty")
    place.run(home, submit)
    end: Picture = place.run(home, finish)
    return end


@pytest.mark.parametrize("damage", [remove, cut, blank])
@pytest.mark.parametrize("reached", ["provider.answer.before", "index.append.before"])
def test_torn_segments_are_made_again(on_sqlite: Place, reached: str, damage: Callable[[Path], None]) -> None:
    """Everything made so far is torn: each producer is rewound by the one that reads it."""
    home = on_sqlite.home("empty")
    on_sqlite.run(home, accept)
    on_sqlite.kill("orphaned", home, f"{reached}=kill@1")

    async def tear(app: App) -> None:
        kinds = set()
        for key, kind in await sql(
            app, "SELECT p.key, a.kind FROM segments p JOIN artifacts a ON a.id = p.artifact_id"
        ):
            damage(app.config.home_path / "blobs" / key)
            kinds.add(kind)
        assert kinds == {"extract", "clean", "chunk"} | ({"embed"} if reached.startswith("index") else set())

    on_sqlite.run(home, tear)
    assert on_sqlite.run(home, finish) == undisturbed(on_sqlite, accept)


def test_i4_only_what_is_torn_and_what_follows_is_made_again(on_sqlite: Place) -> None:
    home = on_sqlite.home("empty")
    on_sqlite.run(home, accept_large)
    # Who has died once flushes every batch: so there are several segments.
    on_sqlite.kill("orphaned", home, "provider.answer.before=kill@2")
    on_sqlite.kill("orphaned", home, "provider.answer.before=kill@7")

    async def keys(app: App) -> list[str]:
        found = await sql(app, "SELECT p.key FROM segments p JOIN artifacts a ON a.id = p.artifact_id "
                               "WHERE a.kind = 'embed' ORDER BY p.ordinal")  # fmt: skip
        return [row[0] for row in found]

    before: list[str] = on_sqlite.run(home, keys)
    assert len(before) >= 5
    cut(home / "blobs" / before[3])
    assert on_sqlite.run(home, finish) == undisturbed(on_sqlite, accept_large)
    after: list[str] = on_sqlite.run(home, keys)
    assert after[:3] == before[:3]
    assert not set(after[3:]) & set(before)
