"""The files inside archives, as a parser process sends them: names, links, checksums, passwords, limits."""

import io
import stat
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import py7zr.py7zr
import pytest
from tests.kit.archives import make_7z, make_partly_encrypted_zip, make_tar, make_tar_gz, make_zip

from penstock.errors import Permanent
from penstock.extractors import archive, formats
from penstock.extractors.members import (
    BAD,
    BEGIN,
    DATA,
    FILE,
    FRAME,
    LONGEST_PATH,
    Member,
    Names,
    Output,
    Problem,
    safe_path,
)


class Sent(NamedTuple):
    members: dict[str, bytes]
    problems: list[Problem]
    skipped: dict[str, int]
    error: Permanent | None

    @property
    def reasons(self) -> list[tuple[str, str]]:
        return [(problem.path, problem.reason) for problem in self.problems]


def unpack(
    data: bytes, media_type: str, *, password: str | None = None, start: int = 0, again: Sequence[int] = ()
) -> Sent:
    limits = {"members": 100_000, "megabytes": 20_000, "ratio": 300}
    pipe = io.BytesIO()
    error, skipped = None, {}
    with tempfile.TemporaryFile() as document:
        document.write(data)
        document.seek(0)
        arguments: dict[str, Any] = {"start": start, "again": list(again), "password": password, "limits": limits}
        try:
            output = Output(pipe, lambda: None)
            skipped = archive.read(document, output, media_type=media_type, name="a", **arguments).skipped
        except Permanent as raised:
            error = raised
    return Sent(*_frames(pipe.getvalue()), skipped, error)


def _frames(sent: bytes) -> tuple[dict[str, bytes], list[Problem]]:
    members: dict[str, bytes] = {}
    problems: list[Problem] = []
    at, large = 0, ""
    while at < len(sent):
        kind, size = FRAME.unpack_from(sent, at)
        body = sent[at + FRAME.size : at + FRAME.size + size]
        at += FRAME.size + size
        if kind in (FILE, BEGIN):
            member = msgspec.msgpack.decode(body, type=Member)
            assert member.path not in members, "a name is used once"
            members[member.path], large = member.data, member.path
        elif kind == DATA:
            members[large] += body
        elif kind == BAD:
            problems.append(msgspec.msgpack.decode(body, type=Problem))
    return members, problems


HOSTILE = {
    "/etc/passwd": "etc/passwd",
    "../../up.txt": "up.txt",
    "a/../../b.txt": "a/b.txt",
    "C:\\Windows\\x.txt": "Windows/x.txt",
    "back\\slash.txt": "back/slash.txt",
    "nul\0cut.txt": "nul\N{REPLACEMENT CHARACTER}cut.txt",
    "new\nline.txt": "new\N{REPLACEMENT CHARACTER}line.txt",
    "Case.txt": "Case.txt",
    "case.txt": "case.txt",
    "twice.txt": "twice.txt",
    "./twice.txt": "twice (2).txt",
    "twice (2).txt": "twice (2) (2).txt",
    "x" * 3000 + ".txt": "x" * 193 + "….txt",
    "d/" * 800 + "deep.txt": "deep.txt",
    "..": "unnamed",
    ".": "unnamed (2)",
    "bang!/in.txt": "bang%21/in.txt",
}
"""Names in an archive, and the paths that the members get."""


@pytest.mark.parametrize("media_type", [formats.ZIP, formats.TAR, formats.SEVEN_ZIP])
def test_hostile_names_become_plain_unique_paths(media_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The library writes no such names.
    monkeypatch.setattr(py7zr.py7zr, "check_archive_path", lambda name: True)
    make: Any = {formats.ZIP: make_zip, formats.TAR: make_tar, formats.SEVEN_ZIP: make_7z}[media_type]
    names = dict(HOSTILE)
    if media_type != formats.ZIP:
        # Here, a NUL ends a name.
        del names["nul\0cut.txt"]
    contents = {name: f"word{number}" for number, name in enumerate(names)}
    sent = unpack(make(contents), media_type)
    assert sent.error is None
    assert sent.members == {names[name]: text.encode() for name, text in contents.items()}


def test_an_entry_without_a_name_is_no_document_and_hides_no_other() -> None:
    sent = unpack(make_zip([("", "x"), ("/", "y"), ("a.txt", "z")]), formats.ZIP)
    assert (sent.members, sent.skipped) == ({"a.txt": b"z"}, {"folder": 2})


@pytest.mark.parametrize(
    "name", [*HOSTILE, "", "\\\\server\\share\\x", "\ud800.txt", "é" * 2000, "a!/" * 400, "\u2028"]
)
def test_a_path_names_nothing_else(name: str) -> None:
    path = safe_path(name)
    assert path
    assert not path.startswith("/")
    assert not {"", ".", ".."} & set(path.split("/"))
    assert "!/" not in path
    assert "\\" not in path
    assert path.isprintable()
    assert len(path.encode()) <= LONGEST_PATH


def test_many_equal_names_cost_no_more_than_others() -> None:
    def seconds(names: list[str]) -> float:
        made, began = Names(), time.process_time()
        assert len({made.unique(name) for name in names}) == len(names)
        return time.process_time() - began

    different = min(seconds([f"{n}.txt" for n in range(5000)]) for _ in range(3))
    assert seconds(["a.txt"] * 5000) < 20 * different


def test_links_and_devices_are_no_documents(tmp_path: Path) -> None:
    kinds = {"symbolic": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "device": tarfile.CHRTYPE, "pipe": tarfile.FIFOTYPE}
    entries = []
    for name, kind in kinds.items():
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        entries.append(entry)
    sent = unpack(make_tar({"a.txt": "text"}, *entries), formats.TAR)
    assert (sent.members, sent.skipped) == ({"a.txt": b"text"}, {"link": 2, "device": 2})
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(link, "/etc/passwd")
        packed.writestr("a.txt", "text")
    assert unpack(made.getvalue(), formats.ZIP)[:3] == ({"a.txt": b"text"}, [], {"link": 1})


def test_a_wrong_checksum_costs_one_member() -> None:
    contents = {"a.txt": "The alphaword.", "b.txt": "The betaword.", "c.txt": "The gammaword."}
    stored = make_zip(contents, zipfile.ZIP_STORED).replace(b"betaword", b"BETAWORD", 1)
    sent = unpack(stored, formats.ZIP)
    assert set(sent.members) == {"a.txt", "c.txt"}
    assert sent.reasons == [("b.txt", "damaged")]
    assert "CRC" in sent.problems[0].message
    packed = bytearray(make_7z(contents))
    packed[40] ^= 0xFF
    sent = unpack(bytes(packed), formats.SEVEN_ZIP)
    assert sent.members == {}, "all of them are in one compressed stream"
    assert {reason for _, reason in sent.reasons} == {"damaged"}


def test_a_torn_stream_keeps_what_came_before() -> None:
    whole = make_tar_gz({f"{n}.txt": bytes(range(256)) * 40 for n in range(30)})
    sent = unpack(whole[: len(whole) * 2 // 3], formats.GZIP)
    assert sent.error is not None or sent.problems
    assert 0 < len(sent.members) < 30


@pytest.mark.parametrize("password", [None, "wrong"])
def test_locked_members_say_so_and_the_others_are_read(password: str | None) -> None:
    locked = make_partly_encrypted_zip({"a.txt": "open"}, "secret.txt", b"The secretword.", b"sesame")
    sent = unpack(locked, formats.ZIP, password=password)
    assert (sent.members, sent.reasons) == ({"a.txt": b"open"}, [("secret.txt", "encrypted")])
    assert unpack(locked, formats.ZIP, password="sesame").members == {
        "a.txt": b"open",
        "secret.txt": b"The secretword.",
    }


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_locked_7z_archive_says_so(password: str | None, whole: bool) -> None:
    """`whole`: its list of files is encrypted too."""
    locked = make_7z({"a.txt": "The secretword."}, "sesame", whole=whole)
    sent = unpack(locked, formats.SEVEN_ZIP, password=password)
    assert sent.members == {}
    assert {reason for _, reason in sent.reasons} | ({sent.error.reason} if sent.error else set()) == {"encrypted"}
    assert unpack(locked, formats.SEVEN_ZIP, password="sesame").members == {"a.txt": b"The secretword."}


def test_a_damaged_7z_archive_is_not_said_to_be_locked_because_a_password_was_given() -> None:
    torn = make_7z({"a.txt": "The alphaword."})[:-20]
    sent = unpack(torn, formats.SEVEN_ZIP, password="sesame")
    assert sent.error is not None
    assert sent.error.reason == "damaged"


def test_what_was_bad_is_read_again_and_nothing_else() -> None:
    locked = make_partly_encrypted_zip({"a.txt": "open", "b.txt": "too"}, "secret.txt", b"word", b"sesame")
    assert unpack(locked, formats.ZIP, password="sesame", start=3, again=[0]).members == {"secret.txt": b"word"}
