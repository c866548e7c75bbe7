"""`penstock demo`: the first thing a newcomer runs. It checks what it claims, and leaves nothing behind."""

import asyncio
import fcntl
import io
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import termios
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kit.cli import COMMAND, Cli, finish

from penstock.cli import demo
from penstock.demo import story as told
from penstock.demo.printer import Printer
from penstock.demo.samples import HANDBOOK, HANDBOOK_PAGES, question
from penstock.demo.story import DemoRun, LedgerCounts
from penstock.model.nouns import DocumentId
from penstock.model.states import DocumentStatus
from penstock.verbs.views import DocumentDetails, DocumentProgress


def test_the_demo_shows_what_it_claims(cli: Cli, tmp_path: Path) -> None:
    """From end to end, with the real embedder. Settings of the caller, here a wrong one, are none of its business."""
    cli.settings["PENSTOCK_EMBEDDER"] = "no-such"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = finish(cli.start("demo", "--json", "--home", tmp_path / "demo"), timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.code == 0, result.err
    answer = result.json
    assert answer["ok"] is True
    assert len(answer["claims"]) == 8
    assert all(claim["ok"] for claim in answer["claims"])

    killed, resumed, total = answer["killed"], answer["resumed"]["made"], answer["resumed"]["held"]
    assert killed["by"] == "SIGKILL"
    assert HANDBOOK_PAGES // 3 <= killed["handbook_pages"] < HANDBOOK_PAGES
    assert killed["accepted"] == answer["documents"] == 7
    assert killed["pages"] + resumed["pages"] == total["pages"] > HANDBOOK_PAGES
    assert killed["chunks"] + resumed["chunks"] == total["chunks"] == total["embedded"]
    assert answer["changed"]["skipped"] == 6
    assert answer["changed"]["made"]["pages"] == 1
    assert [hit["name"] for hit in answer["hits"]] == [HANDBOOK, "field-notes.md"]
    assert answer["hits"][0]["page"] == question().page

    assert "\x1b" not in result.err
    assert max(map(len, result.err.splitlines())) <= 120
    assert result.err.count("$ penstock ingest documents\n") == 3
    assert f"{killed['handbook_pages']} of {HANDBOOK_PAGES} pages" in " ".join(result.err.split())
    assert re.search(rf"^ 1\. 0\.\d+  \S*{HANDBOOK}  p\. 161\b", result.err, re.MULTILINE)

    # Half a minute on two cores; what others do on this machine meanwhile does not count.
    assert sum(after[:2]) - sum(before[:2]) < 30
    assert answer["folder"] == str(tmp_path / "demo")
    kept = Cli(tmp_path / "demo" / ".penstock", cli.folder, {}).documents()
    assert {document["status"] for document in kept.values()} == {"COMPLETED"}


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal of 60 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    yield ours, theirs
    os.close(ours)


def test_an_interrupted_demo_leaves_nothing_behind(cli: Cli, tmp_path: Path, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    cli.settings.update({"TMPDIR": str(tmp_path), "TERM": "xterm", "NO_COLOR": "1"})
    environment = cli.environment()
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [*COMMAND, "demo"],
        cwd=cli.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = read_until(ours, "3. Run the same command again")
    [folder] = tmp_path.glob("penstock-demo-*")
    assert (folder / "documents" / HANDBOOK).exists()
    # Ctrl-C reaches its children, too, but it does not depend on their goodwill.
    child = child_of(process.pid)
    time.sleep(0.3)
    os.kill(child, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(5) == 130
        deadline = time.monotonic() + 3
        while group_lives(process.pid):
            assert time.monotonic() < deadline, "a child of the demo is still there"
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert not folder.exists()
    shown += read_until(ours, None)
    assert "interrupted" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    # Paths and commands stay whole, so that they can be copied.
    assert [line for line in plain.split("\r\n") if len(line) > 60 and not re.match(r"\$ |/", line)] == []
    assert "\x1b[1m2." not in shown, "NO_COLOR"


def child_of(process: int) -> int:
    """Once it is a command of its own: before that its parent waits for it in the kernel."""
    while True:
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            if b"\0ingest\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        time.sleep(0.005)


def read_until(descriptor: int, words: str | None) -> str:
    """What the terminal shows, up to these words, or to the end."""
    shown = b""
    while words is None or words.encode() not in shown:
        try:
            part = os.read(descriptor, 4096)
        except OSError:
            part = b""
        if not part:
            assert words is None, shown.decode()
            break
        shown += part
    return shown.decode()


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("options", [("--owner", "me"), ("--config", "x.yaml"), ("--home", "/etc"), ("--home", "full")])
def test_the_demo_takes_no_folder_or_settings_that_are_in_use(cli: Cli, options: tuple[str, str]) -> None:
    (cli.folder / "full").write_text("a file")
    result = cli("demo", "--json", *options)
    assert result.code == 2
    assert set(result.json) == {"error"}


def test_a_claim_that_does_not_hold_fails_the_demo(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(story: DemoRun) -> dict[str, Any]:
        story._claim(True, "Water is wet.")
        story._claim(False, "Fire is wet.")
        return {"ok": story.ok, "claims": story.claims}

    monkeypatch.setattr(DemoRun, "run", run)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = cli("demo")
    assert result.code == 1
    assert "✓ Water is wet.\n✗ WRONG: Fire is wet.\n" in result.out
    assert "1 of 2 claims were wrong" in result.out
    assert not list(tmp_path.glob("penstock-demo-*"))


class Wrong(DemoRun):
    """A story in which the commands answer what we like."""

    answer: dict[str, Any]

    async def _answer(self, *arguments: str) -> dict[str, Any]:
        return self.answer


def wrong(**answer: Any) -> Wrong:
    story = Wrong(Path("/nowhere"), Printer(io.StringIO()), {})
    story.answer = answer
    return story


def held(status: str, pages: int, chunks: int, completed: int = 7) -> LedgerCounts:
    now = DocumentStatus(status)
    handbook = DocumentDetails(
        id=DocumentId("1"), name=HANDBOOK, source="/", collection="default", status=now, media_type=None, size=1,
        pages=None, chunks=None, searchable=False, stale=False, error=None, created_at=0.0, attempts=0, retry_count=0,
        metadata={}, artifacts_dropped_at=None, steps=[], parent=None, children={},
        progress=DocumentProgress(now, pages, None, chunks, None, chunks, 0, None),
    )  # fmt: skip
    return LedgerCounts(7, completed, handbook, {"pages": pages, "chunks": chunks, "embedded": chunks})


BEFORE, AFTER = held("EXTRACTING", 80, 10, 3), held("COMPLETED", HANDBOOK_PAGES, 700)


@pytest.mark.parametrize(
    ("made", "after", "claims"),
    [
        ({"pages": 120, "chunks": 690, "embedded": 690}, AFTER, [True, True]),
        ({"pages": 200, "chunks": 690, "embedded": 690}, AFTER, [False, True]),
        ({"pages": 120, "chunks": 700, "embedded": 690}, AFTER, [False, True]),
        ({"pages": 120, "chunks": 690, "embedded": 700}, AFTER, [False, True]),
        ({"pages": 120, "chunks": 690, "embedded": 690}, held("COMPLETED", HANDBOOK_PAGES, 700, 6), [True, False]),
        ({"pages": 119, "chunks": 690, "embedded": 690}, held("COMPLETED", 199, 700), [True, False]),
    ],
)
def test_work_that_was_done_twice_or_lost_is_noticed(
    monkeypatch: pytest.MonkeyPatch, made: dict[str, int], after: LedgerCounts, claims: list[bool]
) -> None:
    async def look(app: object) -> LedgerCounts:
        return after

    monkeypatch.setattr(told, "_counts", look)
    story = wrong(made=made)
    asyncio.run(story._go_on(None, BEFORE, 7))  # type: ignore[arg-type]
    assert [claim["ok"] for claim in story.claims] == claims


@pytest.mark.parametrize(
    ("name", "page", "text", "ok"),
    [
        (HANDBOOK, 161, question().answer, True),
        (HANDBOOK, 160, question().answer, False),
        ("inspection.pdf", 161, question().answer, False),
        (HANDBOOK, 161, "something else", False),
    ],
)
def test_a_hit_in_the_wrong_place_is_noticed(name: str, page: int, text: str, ok: bool) -> None:
    story = wrong(hits=[{"name": name, "page": page, "text": f"Its wall is {text}."}])
    asyncio.run(story._ask(question()))
    assert story.ok is ok


def test_a_half_done_document_that_is_found_is_noticed() -> None:
    story = wrong(hits=[{"name": HANDBOOK}])
    asyncio.run(story._unseen(BEFORE))
    assert not story.ok
    asyncio.run(story._unseen(AFTER))
    assert len(story.claims) == 1


def test_stores_that_differ_are_noticed() -> None:
    story = wrong(ok=False, problems=["a blob is gone"])
    asyncio.run(story._check())
    assert not story.ok


def test_the_end_of_the_demo_names_a_command_that_the_shell_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    for name in ("python", "penstock", "activate"):
        (bin / name).touch()
        (bin / name).chmod(0o755)
    monkeypatch.setattr("sys.executable", str(bin / "python"))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path)
    assert demo._command() == ".venv/bin/penstock"
    assert demo._command(absolute=True) == str(bin / "penstock")
    assert ". .venv/bin/activate" in demo._activate()
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin")
    assert demo._command() == demo._command(absolute=True) == "penstock"
    assert demo._activate() == ""
    (bin / "penstock").unlink()
    assert demo._command() == f"{bin / 'python'} -m penstock.cli.main"


def test_the_demo_is_shown_in_the_dashboard_until_it_is_stopped(cli: Cli, tmp_path: Path) -> None:
    running = cli.start("demo", "--serve", "--home", tmp_path / "demo")
    printed = b""
    deadline = time.monotonic() + 120
    while b"Ctrl-C ends it" not in printed:
        assert time.monotonic() < deadline, printed
        assert running.stdout is not None
        piece = os.read(running.stdout.fileno(), 65_536)
        assert piece, printed
        printed += piece
    urls = re.findall(rb"http://127\.0\.0\.1:\d+", printed)
    assert len(urls) == 2
    assert urls[0] == urls[1]
    with urllib.request.urlopen(urls[0].decode(), timeout=30) as answer:
        page = answer.read().decode()
    assert "No worker is running" not in page
    assert re.search(r">7</a></strong><span>accepted", page)
    running.send_signal(signal.SIGINT)
    assert finish(running).code == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(urls[0].decode(), timeout=5)
