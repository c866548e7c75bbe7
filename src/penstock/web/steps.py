"""The steps of a document over time."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.model.nouns import StepView
from penstock.model.states import StepStatus
from penstock.web.words import duration


class Bar(NamedTuple):
    """A part of the time of a step, in percent of the time of all steps."""

    kind: str
    x: float
    width: float


class Row(NamedTuple):
    step: StepView
    bars: list[Bar]
    waited: str
    worked: str
    attempts: str
    about: str
    """The bars in words."""


def timeline(steps: Sequence[StepView], now: float) -> list[Row]:
    """The rows of the steps, on one scale of time: waiting, working, and waiting for another attempt."""
    times = [time for step in steps for _, *both in _spans(step, now) for time in both]
    first = min(times, default=now)
    whole = max(max(times, default=now) - first, 0.001)
    return [_row(step, first, whole, now) for step in steps]


def _spans(step: StepView, now: float) -> Iterator[tuple[str, float, float]]:
    """What the step did, from when to when. The clock of the ledger may be ahead of ours."""
    begun = step.created_at or step.started_at
    if begun is None:
        return
    started = step.started_at or (step.finished_at or max(now, begun))
    if started > begun:
        yield "wait", begun, started
    if step.started_at is None:
        return
    until = step.finished_at or max(now, started)
    if step.status == StepStatus.ERROR:
        until = max(started, min(until, step.last_progress or until))
    yield ("fail" if step.status == StepStatus.FAILED else "retried" if _retries(step) else "work"), started, until
    if step.status == StepStatus.ERROR and step.retry_at is not None:
        yield "wait", until, max(until, step.retry_at)


def _row(step: StepView, first: float, whole: float, now: float) -> Row:
    spans = list(_spans(step, now))
    bars = [_bar(kind, 100 * (since - first) / whole, 100 * (until - since) / whole) for kind, since, until in spans]
    waited = sum(until - since for kind, since, until in spans if kind == "wait")
    worked = sum(until - since for kind, since, until in spans if kind != "wait")
    said = [f"waited {duration(waited)}"] if waited >= 0.0005 else []
    said += [f"{'in attempts for' if _retries(step) else 'worked'} {duration(worked)}"] if worked else []
    return Row(
        step,
        bars,
        duration(waited) if waited >= 0.0005 else "",
        duration(worked) if worked else "",
        _attempts(step),
        ", ".join(said) or "not begun",
    )


def _bar(kind: str, x: float, width: float) -> Bar:
    """A bar that can be seen, however short its time."""
    least = 0.0 if kind == "wait" else 0.8
    width = max(width, least)
    return Bar(kind, round(min(x, 100 - width), 2), round(width, 2))


def _retries(step: StepView) -> int:
    return step.crashes + step.errors - (step.status == StepStatus.FAILED)


def _attempts(step: StepView) -> str:
    parts = [f"{step.errors} failed"] if step.errors else []
    parts += [f"{step.crashes} interrupted"] if step.crashes else []
    return f"{step.attempts} ({', '.join(parts)})" if parts else str(step.attempts or "")
