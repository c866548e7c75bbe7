"""What is drawn and said while a job runs: rates, the time that is left, lines that fit."""

import io
import re
import shutil
import sys
from itertools import pairwise
from typing import Any

import pytest
from rich.text import Text

from penstock.cli.live import Row, Screen, table
from penstock.cli.progress import Meter, ProgressDisplay, about, line, picture, waits
from penstock.ledger.engine.documents import ArtifactProgress
from penstock.model.states import DocumentStatus
from penstock.verbs import views
from penstock.verbs.jobs import Progress
from penstock.worker.counters import Counters, DocumentInProgress, left_s, to_come

STEERING = "\x1b]0;title\x07\x1b[2Jname\n.pdf"


def progress(elapsed_s: float, ended: int = 0, total: int = 100, **more: Any) -> Progress:
    made = {"pages": 10 * ended, "chunks": 20 * ended, "embedded": 20 * ended, "indexed": 20 * ended}
    values: dict[str, Any] = {"made": made, **more}
    return Progress(False, total, 0, total, ended, elapsed_s, **values)


def test_a_rate_begins_with_the_work_and_follows_the_last_seconds() -> None:
    meter = Meter()
    for second in range(5):
        meter.look(progress(second))
    for second in range(5, 15):
        meter.look(progress(second, ended=2 * (second - 4)))
    assert meter.rate("documents") == pytest.approx(2.0)
    assert meter.rate("pages") == pytest.approx(20.0)
    for second in range(15, 60):
        meter.look(progress(second, ended=20 + 5 * (second - 14), total=1000))
    assert meter.rate("documents") == pytest.approx(5.0)


def test_the_time_that_is_left_is_followed_slowly() -> None:
    meter = Meter()
    for second in range(4):
        meter.look(progress(second, ended=1 + second, left_s=20.0 - second))
    assert meter.left_s == pytest.approx(17.0)
    meter.look(progress(4, ended=5, left_s=100.0))
    assert meter.left_s is not None
    assert 16 < meter.left_s < 50
    meter.look(progress(5, ended=6, left_s=None))
    assert meter.left_s is None


def test_nothing_is_said_about_the_time_left_after_a_moment() -> None:
    meter = Meter()
    meter.look(progress(0.5, ended=1, left_s=3.0))
    meter.look(progress(1.0, ended=2, left_s=3.0))
    assert meter.left_s is None


def test_loading_models_is_no_pace() -> None:
    meter = Meter()
    for second in range(5):
        meter.look(progress(second))
    meter.look(progress(5, ended=1, left_s=3.0))
    assert meter.left_s is None


def tally(**passed: int) -> Counters:
    """`extract=3`: three documents of 1,000 bytes, each of 10 pages and 20 chunks, have passed extract and clean."""
    found = Counters()
    for kind, documents in passed.items():
        items = documents * (10 if kind in ("extract", "clean") else 20)
        found.passed[kind] = 1000 * documents
        found.items[kind] = found.made[kind] = items
    found.opened = passed["extract"]
    return found


ALL = {"extract": 3, "clean": 3, "chunk": 3, "embed": 3, "index": 3}


def test_what_nobody_has_opened_holds_as_much_for_each_byte() -> None:
    seen = tally(**ALL)
    seen.ended["COMPLETED"] = 3
    expected = {"pages": 70, "chunks": 140, "embedded": 140, "indexed": 140}
    assert to_come(seen, [], total=10, ended=3, size=10_000) == expected
    assert to_come(seen, [], total=10, ended=3) == expected
    large = to_come(seen, [], total=4, ended=3, size=103_000)
    assert large["pages"] == 1000


def test_what_other_workers_ended_is_not_to_come() -> None:
    seen = tally(**ALL)
    seen.ended["COMPLETED"] = 3
    assert to_come(seen, [], total=10, ended=8, size=10_000)["pages"] == 20
    assert to_come(seen, [], total=10, ended=10, size=10_000)["pages"] == 0


def test_a_document_in_hand_says_itself_how_many_pages_are_left() -> None:
    seen = tally(**ALL)
    seen.ended["COMPLETED"] = 3
    hand = DocumentInProgress("a.pdf", "extract", 100, 619, None, items=100, size=1)
    assert to_come(seen, [hand], total=4, ended=3, size=3001) == {
        "pages": 519, "chunks": 1238, "embedded": 1238, "indexed": 1238,
    }  # fmt: skip


def test_what_was_read_is_still_to_be_cut_embedded_and_indexed() -> None:
    seen = tally(extract=4, clean=3, chunk=3, embed=2, index=1)
    seen.ended["COMPLETED"] = 1
    assert to_come(seen, [], total=4, ended=1, size=4000) == {
        "pages": 0, "chunks": 20, "embedded": 40, "indexed": 60,
    }  # fmt: skip


def test_nobody_knows_what_is_to_come_before_something_has_passed() -> None:
    assert to_come(Counters(), [DocumentInProgress("a.txt", "extract", 3, None)], total=1, ended=0, size=1000) == {}


def test_the_time_left_counts_every_stage_by_what_it_took() -> None:
    seen = Counters()
    more = {"pages": 100, "chunks": 200, "embedded": 200, "indexed": 200}
    seen.worked("extract", 100, 0.0, 8.0)
    assert left_s(seen, more, 4.0) is None
    seen.worked("chunk", 200, 0.0, 1.0)
    seen.worked("embed", 100, 0.0, 1.0)
    # Ten seconds of batches within five: 8 × 1, 1 × 1 and 1 × 2 more of them.
    assert left_s(seen, more, 5.0) == pytest.approx(5.5)
    seen.worked("index", 100, 4.0, 4.5)
    assert left_s(seen, more, 5.0) == pytest.approx(6.0)


def test_the_pages_of_a_pdf_are_known_while_it_is_read() -> None:
    reading = ArtifactProgress("extract", "extract", False, 32, '{"pages": 32, "of": 619}', 1.0)
    assert views._progress(DocumentStatus.EXTRACTING, {"extract": reading}).total_pages == 619
    of_text = ArtifactProgress("extract", "extract", False, 3, '{"offset": 9000}', 1.0)
    assert views._progress(DocumentStatus.EXTRACTING, {"extract": of_text}).total_pages is None


ROWS = [
    Row("documents", 0.5, ("83 of 214", "12/s", "11 s left")),
    Row("pages", None, ("1,204 of ~3,000", "310/s")),
]


@pytest.mark.parametrize(
    ("columns", "bars", "cells"),
    [(119, True, 3), (79, True, 3), (44, False, 3), (35, False, 2), (26, False, 1), (15, False, 1)],
)
def test_a_narrow_terminal_loses_bars_first_and_then_the_last_cells(columns: int, bars: bool, cells: int) -> None:
    lines = [found.plain for found in table(ROWS, columns)]
    assert ("━" in lines[0]) is bars
    assert [word in lines[0] for word in ("83 of 214", "12/s", "11 s left")] == [i < cells for i in range(3)]
    if columns > 26:
        assert max(map(len, lines)) <= columns


def screen(
    monkeypatch: pytest.MonkeyPatch, columns: int, rows: int = 24, **environment: str
) -> tuple[Screen, io.StringIO]:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    resize(monkeypatch, columns, rows)
    stream = Terminal()
    return Screen(stream), stream


def resize(monkeypatch: pytest.MonkeyPatch, columns: int, rows: int = 24) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda fallback: (columns, rows))


def test_lines_are_drawn_over_in_place_and_never_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, stream = screen(monkeypatch, 40)
    drawn.draw([Text("x" * 100), Text("second")])
    assert stream.getvalue() == "\r" + "x" * 38 + "…\x1b[K\nsecond\x1b[K\n\x1b[J"
    stream.truncate(0)
    stream.seek(0)
    drawn.draw([Text("one")])
    assert stream.getvalue() == "\r\x1b[2Aone\x1b[K\n\x1b[J"
    drawn.erase()
    assert stream.getvalue().endswith("\r\x1b[1A\x1b[J")


def test_after_a_resize_the_first_line_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, stream = screen(monkeypatch, 100)
    drawn.draw([Text("x" * 90), Text("short"), Text("y" * 40)])
    resize(monkeypatch, 40)
    stream.truncate(0)
    drawn.draw([Text("one")])
    assert "\x1b[5A" in stream.getvalue()


def test_no_more_lines_are_drawn_than_the_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, stream = screen(monkeypatch, 80, rows=4)
    drawn.draw([Text(str(i)) for i in range(10)])
    assert stream.getvalue().count("\n") == 3


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_without_colours_there_are_still_bars(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], coloured: bool
) -> None:
    drawn, stream = screen(monkeypatch, 80, 24, **environment)
    drawn.draw(table(ROWS, 79))
    assert bool(re.search(r"\x1b\[[\d;]*3\d", stream.getvalue())) is coloured
    assert re.search("━+.*╌+", stream.getvalue())


def test_a_picture_names_documents_waits_and_failures_and_no_name_steers_it() -> None:
    meter = Meter()
    hand = DocumentInProgress(STEERING, "extract", 310, 1222, None)
    look = progress(12.0, 50, failed=2, waiting={"parser": 3, STEERING: 1}, in_hand=(hand,), left_s=9.0)
    meter.look(look)
    text = "\n".join(found.plain for found in picture(look, meter, 79, [hand]))
    assert r"\x1b]0;title\x07\x1b[2Jname\n.pdf  page 310 of 1,222" in text
    assert "3 for a parser" in text
    assert "2 failed" in text
    assert "\x1b" not in text
    assert "\x1b" not in line(look, meter)
    assert len(text.splitlines()) == 8


def test_a_plain_line_says_the_same() -> None:
    meter = Meter()
    for second in range(5):
        look = progress(second, 1 + second, failed=1, waiting={"lock": 2}, left_s=12.0 - second)
        meter.look(look)
    said = line(look, meter)
    assert said == (
        "5 of 100 documents  50 pages  100 chunks  1 failed  waiting: 2 for the index lock  1.0/s  8 s left  4.0 s"
    )


@pytest.mark.parametrize(("term", "terminal"), [("dumb", True), ("xterm", False)])
def test_where_nothing_can_be_drawn_over_a_line_comes_now_and_then(
    monkeypatch: pytest.MonkeyPatch, term: str, terminal: bool
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", term)
    display = ProgressDisplay()
    for quarter in range(100):
        display(progress(quarter / 4, ended=quarter))
    display(progress(50.0, ended=100))
    display.close()
    said = stream.buffer.getvalue().decode().splitlines()
    assert [found.split("  ")[-1] for found in said] == ["5.0 s", "15.0 s"]
    assert "\x1b" not in "".join(said)


def test_what_ends_soon_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    display = ProgressDisplay()
    display(progress(0.4, ended=99))
    display.close()
    assert stream.buffer.getvalue() == b""
    display(progress(0.6, ended=99))
    assert b"documents" in stream.buffer.getvalue()


def test_a_guess_does_not_count_tenths() -> None:
    assert [about(seconds) for seconds in (0.2, 11.6, 75, 4000)] == ["1 s", "12 s", "1 min 15 s", "1 h 06 min"]
    assert waits({"unheard of": 1}) == "1 for unheard of"


def test_the_time_left_does_not_jump_with_a_restless_estimate() -> None:
    """A simulated clock: the true time left goes down from ten minutes, and estimates are off by half of it."""
    meter, shown = Meter(), []
    for tick in range(4 * 300):
        second = tick / 4
        estimate = (600 - second) * (1.5 if tick // 8 % 2 else 0.5)
        meter.look(progress(second, ended=1 + tick, total=5000, left_s=estimate))
        if meter.left_s is not None:
            shown.append((600 - second, meter.left_s))
    steps = [abs(after - before) / before for (_, before), (_, after) in pairwise(shown)]
    assert max(steps) < 0.02, "between two drawings"
    assert all(0.7 < left / true < 1.5 for true, left in shown[400:]), "it follows the truth nevertheless"
