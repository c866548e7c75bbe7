"""What a person sees: on a terminal, on one that can do little, and in a pipe."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.acceptance.test_cli_work import large_text
from tests.kit.cli import COMMAND, Cli, Result, finish, write

PICTURE = Path(__file__).parents[2] / "docs" / "picture.svg"
STEERING = "big\x1b]0;owned\x07\x1b[31m.txt"


class Seen:
    """A pseudo-terminal for standard error, and all that was ever written to it."""

    def __init__(self, columns: int) -> None:
        self._leader, self.follower = os.openpty()
        self.data = b""
        fcntl.ioctl(self.follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while some := os.read(self._leader, 65536):
                self.data += some
        except OSError:
            # Nobody holds the other end any more.
            return

    @property
    def text(self) -> str:
        return self.data.decode()

    def until(self, word: str) -> None:
        deadline = time.perf_counter() + 20
        while word not in self.data.decode(errors="ignore"):
            assert time.perf_counter() < deadline, self.data
            time.sleep(0.05)

    def close(self) -> None:
        self._reader.join(10)
        os.close(self._leader)


@contextmanager
def terminal(
    cli: Cli, *arguments: str | Path, columns: int = 100, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], Seen]]:
    seen = Seen(columns)
    inherited = {name: value for name, value in cli.environment().items() if name not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=cli.folder,
        env={**inherited, "TERM": "xterm-256color", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=seen.follower,
    )
    os.close(seen.follower)
    try:
        yield process, seen
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        seen.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Some seconds of work: one large text with a name that would steer a terminal, and something to fail."""
    docs = write(tmp_path / "docs", a__txt="one", b__txt="two", empty__txt="")
    (docs / "rubbish.dat").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 40)
    large_text(docs / STEERING, 4)
    return docs


def test_a_terminal_sees_bars_and_standard_output_stays_clean(cli: Cli, folder: Path) -> None:
    with terminal(cli, "ingest", folder, "--json") as (process, seen):
        out, _ = process.communicate(timeout=60)
    assert json.loads(out)["completed"] == 3
    assert re.search("documents.*━+.*╌+.* of 5", seen.text)
    for stage in ("pages", "chunks", "embedded", "indexed"):
        assert f"{stage} " in seen.text
    assert re.search(
        r"\\x1b\[31m\.txt.*(reading|cleaning|chunking|embedding|indexing)[a-z ]* [\d,]+ of [\d,]+", seen.text
    )
    assert "\x1b]" not in seen.text
    assert "\x1b[31m." not in seen.text
    # The cursor is never hidden, and nothing of the picture stays behind.
    assert "\x1b[?25l" not in seen.text
    left = re.split(r"\r\x1b\[\d+A\x1b\[J", seen.text)[-1]
    assert left.startswith("  ")
    assert "\x1b" not in left


def test_nothing_wraps_on_a_narrow_terminal_and_no_color_means_no_colour(cli: Cli, tmp_path: Path) -> None:
    text = large_text(tmp_path / f"{'long ' * 12}.txt", 1)
    with terminal(cli, "ingest", text, COLUMNS="45", NO_COLOR="1") as (process, seen):
        process.communicate(timeout=60)
    drawn = seen.text[: seen.text.rindex("\x1b[J")]
    plain = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", drawn)
    assert "documents" in plain
    assert max(map(len, plain.splitlines())) < 45
    assert not re.search(r"\x1b\[[\d;]*[34]\d(;[\d;]*)?m", seen.text)


def test_a_dumb_terminal_sees_no_escapes(cli: Cli, tmp_path: Path) -> None:
    with terminal(cli, "ingest", large_text(tmp_path / "large.txt", 1), TERM="dumb") as (process, seen):
        process.communicate(timeout=60)
    assert "\x1b" not in seen.text


def test_an_interrupt_leaves_the_terminal_in_order(cli: Cli, folder: Path) -> None:
    with terminal(cli, "ingest", folder, "--json") as (process, seen):
        seen.until("embedding ")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)
    assert process.returncode == 130
    assert json.loads(out)["interrupted"] is True
    left = re.split(r"\r\x1b\[\d+A\x1b\[J", seen.text)[-1]
    assert "Accepted documents are kept" in left
    assert "\x1b" not in left


def test_the_end_says_what_to_do_about_what_failed(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", good__txt="a text", empty__txt="")
    (docs / "bad\x1b[31m.dat").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 40)
    result = cli("ingest", docs)
    assert re.fullmatch(r"1 completed, 1 not indexable, 1 failed in \d+\.\d s · 1 page, 1 chunk\n", result.out)
    lines = [line for line in result.err.splitlines() if " of 3 documents " not in line]
    assert lines[0].startswith(r"  bad\x1b[31m.dat: damaged – ")
    assert lines[1] == "  empty.txt: no_text – the file is empty"
    assert "penstock dlq list" in lines[2]
    assert "penstock dlq replay" in lines[2]
    again = cli("ingest", docs)
    assert "2 of the skipped documents had failed, had no text or were unsupported: --retry" in again.err
    many = write(tmp_path / "many")
    for i in range(6):
        (many / f"{i}.dat").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * (40 + i))
    assert re.search(r"^  6 × damaged: (\d\.dat, ){3}…$", cli("ingest", many).err, re.MULTILINE)


def watched(cli: Cli, *arguments: str, number: signal.Signals) -> Result:
    process = cli.start("status", "--watch", *arguments)
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(number)
    result = finish(process)
    return Result(result.code, first.decode() + result.out, result.err)


def test_a_watch_goes_on_until_an_interrupt_which_is_no_failure(cli: Cli, tmp_path: Path) -> None:
    cli("ingest", write(tmp_path / "docs", a__txt="a text", empty__txt=""))
    result = watched(cli, number=signal.SIGINT)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("1 COMPLETED, 1 NOT_INDEXABLE  0 workers · 0/s in the last 0.0 s\n")
    assert watched(cli, number=signal.SIGTERM).code == 143


def test_a_watch_of_one_document_ends_with_it(cli: Cli, tmp_path: Path) -> None:
    cli("ingest", large_text(tmp_path / "large.txt", 0.1), "--no-wait")
    document = cli.documents()["large.txt"]["id"]
    watch = cli.start("status", document, "--watch")
    assert watch.stdout is not None
    assert watch.stdout.readline() == b"PENDING  0 pages, 0 chunks, 0 embedded, 0 indexed\n"
    assert cli("run").code == 0
    ended = finish(watch)
    assert ended.code == 0
    assert re.search(r"^status +COMPLETED$", ended.out, re.MULTILINE)


def test_a_watch_on_a_terminal_draws_over_itself(cli: Cli, tmp_path: Path) -> None:
    cli("ingest", large_text(tmp_path / STEERING, 1), "--no-wait")
    document = next(iter(cli.documents().values()))["id"]
    for arguments, word in (((), "PENDING"), ((document,), "attempts since")):
        seen = Seen(80)
        environment = {**cli.environment(), "TERM": "xterm"}
        command = [*COMMAND, "status", "--watch", *arguments]
        process = subprocess.Popen(command, env=environment, cwd=cli.folder, stdout=seen.follower)
        os.close(seen.follower)
        seen.until(word)
        seen.until("A")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        seen.close()
        assert re.search(r"\r\x1b\[\d+A", seen.text)
        assert "\x1b]" not in seen.text


def test_rich_is_loaded_on_a_terminal_only(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "docs", a__txt="a text")
    code = "import sys; from penstock.cli.main import run; run(sys.argv[1:]); print(*sys.modules)"
    command = [COMMAND[0], "-c", code, "ingest", str(tmp_path / "docs")]
    shown = subprocess.run(command, env=cli.environment(), capture_output=True, text=True, check=True)
    assert "rich" not in shown.stdout.splitlines()[-1].split()


def test_the_picture_is_well_formed_and_names_no_host() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    words = " ".join(ElementTree.fromstring(text).itertext())
    assert "penstock" in words
    assert "━" in words
    assert set(re.findall(r"\w+://[^\s\"']*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@font-face|@import|/tmp/|/home/|/root/", text)
