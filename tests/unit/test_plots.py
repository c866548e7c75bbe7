"""Plots: what they draw, and what they say."""

import re
from xml.etree import ElementTree

import pytest

from penstock.ledger.engine.samples import DOCUMENT, QueueSlot, StepSlot
from penstock.web import charts
from penstock.web.charts import Window
from penstock.web.plots import Axis, Series, bars, lines, nice

AXIS = Axis(["12:00", "12:01", "12:02"], lambda value: f"{value:.0f}")
HOUR = Window(60, 999, 3)


def heights(plot: str) -> list[float]:
    return [float(one) for one in re.findall(r'<rect class="s\d"[^>]* height="([\d.]+)"', plot)]


@pytest.mark.parametrize(("most", "end"), [(0, 1), (1, 1), (1.4, 2), (3, 5), (7, 10), (0.034, 0.05), (99_999, 100_000)])
def test_an_axis_ends_at_a_round_number(most: float, end: float) -> None:
    assert nice(most) == pytest.approx(end)


def test_bars_are_stacked_and_true_to_scale() -> None:
    plot = bars("Documents", AXIS, [Series("done", 2, [1, 0, 4], "5"), Series("failed", 3, [0, 0, 6], "6")])
    one, four, six = heights(plot)
    assert four == pytest.approx(4 * one, rel=0.02)
    assert six == pytest.approx(6 * one, rel=0.02)
    assert "<title>12:02: 6 failed</title>" in plot
    assert 'aria-label="Documents: done 5, failed 6"' in plot


def test_a_line_is_interrupted_where_its_value_is_not_known() -> None:
    plot = lines("Time", AXIS, [Series("chunk", 1, [1.0, None, 2.0], "1.5 s")])
    [path] = re.findall(r'<path class="line s1" d="([^"]*)"', plot)
    assert path.count("M") == 2
    assert "L" not in path


def test_names_in_plots_are_only_text() -> None:
    evil = '"><script>'
    for draw in (bars, lines):
        plot = draw(evil, Axis([evil], lambda value: evil), [Series(evil, 1, [1], evil)])
        assert "<script" not in plot
        ElementTree.fromstring(plot)


def test_a_plot_without_anything_says_so() -> None:
    assert "Nothing in this time" in lines("Time", AXIS, [])
    assert heights(bars("Documents", AXIS, [Series("done", 2, [0, 0, 0], "0")])) == []


def test_rates_and_times_are_those_of_the_samples() -> None:
    steps = [
        StepSlot(1000, DOCUMENT, 9, 3, 0, 0.0, 0.0),
        StepSlot(1000, "extract", 12, 0, 600, 24.0, 5.0),
        StepSlot(1002, "extract", 1, 0, 60, 4.0, 4.0),
    ]
    assert "done 9, at most 0.2 a second" in charts._ended(HOUR, steps)
    assert "pages 660, at most 10 a second" in charts._pages(HOUR, steps)
    assert "extract 2.2 s, longest 5.0 s" in charts._latency(HOUR, steps)


def test_the_queue_stays_as_it_was_where_nothing_was_sampled() -> None:
    queues = [QueueSlot(900, 4, 0, 4, 0, 0), QueueSlot(1001, 1, 1, 8, 0, 0)]
    found = [(last.waiting if last else None, is_new) for last, is_new in charts._followed(HOUR, queues)]
    assert found == [(4, False), (1, True), (1, False)]
    plot = charts._queue(HOUR, queues, waiting=2, working=0)
    assert "<title>16:41: 7 waiting</title>" in plot
    assert "waiting 2 now" in plot


def test_money_counts_from_the_beginning_of_the_window() -> None:
    queues = [QueueSlot(990, 0, 0, 0, 10**9, 0), QueueSlot(1001, 0, 0, 0, 3 * 10**9, 5 * 10**8)]
    [plot] = charts._money(HOUR, queues)
    assert "spent $2.00" in plot
    assert "saved $0.50" in plot
    assert charts._money(HOUR, [QueueSlot(1001, 1, 0, 1, 0, 0)]) == []
