"""The steps of a document over time."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.model.nouns import StepView
from penstock.web.words import duration


class Row(NamedTuple):
    step: StepView
    seconds: str
    x: float
    """Where the bar begins, in percent; `width` is its length."""
    width: float
    about: str


def timeline(steps: Sequence[StepView], now: float) -> list[Row]:
    begun = [step.started_at for step in steps if step.started_at is not None]
    if not begun:
        return [Row(step, "", 0, 0, "not begun") for step in steps]
    first = min(begun)
    whole = max(*(step.finished_at or now for step in steps if step.started_at is not None), first + 0.001) - first
    return [_row(step, first, whole, now) for step in steps]


def _row(step: StepView, first: float, whole: float, now: float) -> Row:
    if step.started_at is None:
        return Row(step, "", 0, 0, "not begun")
    # The clock of the ledger may be ahead of ours.
    seconds = max(0.0, (step.finished_at or now) - step.started_at)
    x = 100 * (step.started_at - first) / whole
    width = min(max(100 * seconds / whole, 1), 100 - min(x, 99))
    about = f"{duration(seconds)}, beginning {duration(step.started_at - first)} after the first step"
    return Row(step, f"{seconds:.2f}", round(x, 1), round(width, 1), about)
