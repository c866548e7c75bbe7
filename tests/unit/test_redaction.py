import errno
import os
from pathlib import Path

import pytest

from penstock.redaction import make_folder, masked, masked_for, tighten


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("postgresql://u:sesame@host/db", "postgresql://u:…@host/db"),
        ("postgresql://u:se@sa:me@host/db", "postgresql://u:…@host/db"),
        ("postgresql://host/db?user=u&password=sesame&x=1", "postgresql://host/db?user=u&password=…&x=1"),
        ("postgresql://host/db?sslpassword=sesame", "postgresql://host/db?sslpassword=…"),
        ("database 'postgres://u:sesame@h': use …", "database 'postgres://u:…@h': use …"),
        ("host=a password='se same' dbname=b", "host=a password=… dbname=b"),
        ("s3://bucket?secret_access_token=sesame", "s3://bucket?secret_access_token=…"),
        ("postgresql://u@host:5432/db?sslmode=require", "postgresql://u@host:5432/db?sslmode=require"),
        ("sqlite:////home/a:b/x.db", "sqlite:////home/a:b/x.db"),
        ("give it with `penstock retry ID --password …`", "give it with `penstock retry ID --password …`"),
        ("the password that was given does not open it", "the password that was given does not open it"),
        ("postgresql://u:two words'x@h/d", "postgresql://u:…@h/d"),
        ("http://[::1]:8080/a: no answer", "http://[::1]:8080/a: no answer"),
        ("http://[::ffff:10.0.0.1]/a", "http://[::ffff:10.0.0.1]/a"),
        ("http://[::1]:sesame/a", "http://[::1]:…/a"),
        ("http://u:sesame@[::1]/a", "http://u:…@[::1]/a"),
    ],
)
def test_no_password_is_said(said: str, shown: str) -> None:
    assert masked(said) == shown


def test_a_password_is_masked_where_it_stands_alone() -> None:
    url = "postgresql://u:se%40same@host/db?password=other"
    assert masked_for(url, "bad se@same, bad se%40same, bad other") == "bad …, bad …, bad …"
    assert masked_for("postgresql://[broken", "nothing to hide") == "nothing to hide"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_what_is_ours_is_tightened_and_what_is_shared_or_another_s_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, ledger = tmp_path / "home", tmp_path / "home" / "ledger.db"
    home.mkdir()
    ledger.touch()
    for shared in (0o2750, 0o2770):
        home.chmod(shared)
        ledger.chmod(0o660)
        tighten((home, ledger, tmp_path / "none"))
        assert (mode(home), mode(ledger)) == (shared, 0o660)
    home.chmod(0o755)
    ledger.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    tighten((home, ledger))
    assert (mode(home), mode(ledger)) == (0o755, 0o644)
    monkeypatch.undo()

    def refuse(self: Path, mode: int) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(Path, "chmod", refuse)
    tighten((home, ledger))
    monkeypatch.undo()
    tighten((home, ledger))
    assert (mode(home), mode(ledger)) == (0o700, 0o600)


def test_new_folders_are_private_from_the_root_on_and_as_the_umask_says_above_it(tmp_path: Path) -> None:
    root, before = tmp_path / "above" / "root", os.umask(0o022)
    try:
        made = make_folder(root / "below", root)
    finally:
        os.umask(before)
    assert made == [root / "below", root, tmp_path / "above"]
    assert [mode(folder) for folder in made] == [0o700, 0o700, 0o755]
    assert make_folder(root, root) == []
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file", root)
