"""The plots of the overview: what happened in the last hour, day or week."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from markupsafe import Markup

from penstock.api.callers import Access
from penstock.ledger.engine import samples
from penstock.ledger.engine.samples import DOCUMENT, WIDTHS, QueueSlot, StepSlot
from penstock.model.usage import NANO
from penstock.web.plots import Axis, Series, bars, lines
from penstock.web.words import duration, money

WINDOWS = dict(zip(("hour", "day", "week"), WIDTHS, strict=True))
"""The seconds of an interval of each plot, by what it shows."""
DAYS_FROM = 10_800
"""Intervals from this width on are labelled with their day."""
KINDS = 5
"""The most kinds of steps in a plot: those that took the most time."""


class Window(NamedTuple):
    width: int
    before: int
    """The number of the interval before the first one."""
    length: int

    @property
    def slots(self) -> range:
        return range(self.before + 1, self.before + 1 + self.length)

    def values(self, found: Mapping[int, float]) -> list[float]:
        return [found.get(slot, 0.0) for slot in self.slots]

    def labels(self) -> list[str]:
        shape = "%d %b" if self.width >= DAYS_FROM else "%H:%M"
        return [datetime.fromtimestamp(self.width * slot, UTC).strftime(shape) for slot in self.slots]


async def charts(access: Access, name: str, waiting: int, working: int) -> list[Markup]:
    """The plots of a window. The queue is `waiting` and `working` documents long now."""
    width = WINDOWS[name]
    window = Window(width, int(access.scope.runtime.now() // width) - WIDTHS[width], WIDTHS[width])
    ledger, owner = access.scope.ledger, access.owner
    steps = await ledger.read(partial(samples.steps, owner), width, window.before)
    queues = await ledger.read(partial(samples.queues, owner), width, window.before)
    return [
        _ended(window, steps),
        _pages(window, steps),
        _latency(window, steps),
        _queue(window, queues, waiting, working),
        *_money(window, queues),
    ]


def _ended(window: Window, steps: Sequence[StepSlot]) -> Markup:
    ended = [one for one in steps if one.kind == DOCUMENT]
    completed = window.values({one.slot: one.completed for one in ended})
    failed = window.values({one.slot: one.failed for one in ended})
    rate = max((one.completed + one.failed for one in ended), default=0) / window.width
    told = f"{_count(sum(completed))}" + (f", at most {_rate(rate)} a second" if rate else "")
    series = [Series("done", 2, completed, told), Series("failed", 3, failed, _count(sum(failed)))]
    return bars("Documents that ended", Axis(window.labels(), _count), series)


def _pages(window: Window, steps: Sequence[StepSlot]) -> Markup:
    rates = {one.slot: one.items / window.width for one in steps if one.kind == "extract"}
    pages = sum(one.items for one in steps if one.kind == "extract")
    told = f"{_count(pages)}" + (f", at most {_rate(max(rates.values()))} a second" if pages else "")
    return bars("Pages per second", Axis(window.labels(), _rate), [Series("pages", 1, window.values(rates), told)])


def _latency(window: Window, steps: Sequence[StepSlot]) -> Markup:
    kinds: dict[str, list[StepSlot]] = {}
    for one in steps:
        if one.kind != DOCUMENT and one.completed:
            kinds.setdefault(one.kind, []).append(one)
    slowest = sorted(kinds, key=lambda kind: -sum(one.seconds for one in kinds[kind]))[:KINDS]
    series = []
    for look, kind in enumerate(slowest, 1):
        found = {one.slot: one.seconds / one.completed for one in kinds[kind]}
        mean = sum(one.seconds for one in kinds[kind]) / sum(one.completed for one in kinds[kind])
        told = f"{duration(mean)}, longest {duration(max(one.slowest for one in kinds[kind]))}"
        series.append(Series(kind, look, [found.get(slot) for slot in window.slots], told))
    return lines("Time of a step, on average", Axis(window.labels(), _seconds), series)


def _queue(window: Window, queues: Sequence[QueueSlot], waiting: int, working: int) -> Markup:
    """A bar is as long as the queue was at its longest in the interval."""
    waits: list[float] = []
    works: list[float] = []
    for last, is_new in _followed(window, queues):
        works.append(last.working if last is not None else 0)
        waits.append(0 if last is None else last.most - last.working if is_new else last.waiting)
    waits[-1], works[-1] = max(waits[-1], waiting), max(works[-1], working)
    series = [
        Series("in work", 1, works, f"{_count(working)} now"),
        Series("waiting", 4, waits, f"{_count(waiting)} now"),
    ]
    return bars("Length of the queue", Axis(window.labels(), _count), series)


def _money(window: Window, queues: Sequence[QueueSlot]) -> list[Markup]:
    """What was spent and saved since the beginning of the window. Nothing if there was never either."""
    if not queues or not (queues[-1].spent or queues[-1].saved):
        return []
    before = next((one for one in reversed(queues) if one.slot <= window.before), None)
    spent, saved = (before.spent, before.saved) if before is not None else (0, 0)
    found = [(last.spent - spent, last.saved - saved) if last else (0, 0) for last, _ in _followed(window, queues)]
    spending, saving = [one / NANO for one, _ in found], [one / NANO for _, one in found]
    series = [Series("spent", 3, spending, money(spending[-1])), Series("saved", 2, saving, money(saving[-1]))]
    return [lines("Money", Axis(window.labels(), money), series)]


def _followed(window: Window, queues: Sequence[QueueSlot]) -> Iterator[tuple[QueueSlot | None, bool]]:
    """The newest sample of each interval, and whether it is of this interval. Where nothing was sampled, the queue is
    as it was."""
    found = {one.slot: one for one in queues}
    last = next((one for one in reversed(queues) if one.slot <= window.before), None)
    for slot in window.slots:
        last = found.get(slot, last)
        yield last, slot in found


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _seconds(value: float) -> str:
    return duration(value) if value else "0"
