"""Progress of a job: redrawn lines on a terminal, otherwise a line every ten seconds."""

import math
import sys
from collections import deque
from typing import TYPE_CHECKING

from penstock.cli.output import count, distinct, drawable, duration, note, visible

if TYPE_CHECKING:
    from rich.text import Text

    from penstock.cli.live import Row, Screen
    from penstock.verbs.jobs import Progress
    from penstock.worker.counters import DocumentInProgress

WINDOW_S = 20.0
"""The rate covers the last seconds, so that it follows changes."""
SURE_S = 2.0
"""Minimum observation time before a rate is used."""
CALM_S = 5.0
"""The shortest time constant for smoothing the time left."""
CALM_SHARE = 1 / 6
"""The time constant as a share of the time left: an estimate for long is less certain, and is not needed at once."""
FIRST_S, EVERY_S = 5.0, 10.0
DRAW_AFTER_S = 0.5
"""A job that ends sooner shows no progress."""
HANDS = 3

WAITS = {
    "artifact": "another run with the same content",
    "index": "an index table that cannot be used",
    "limit": "a provider's limit",
    "lock": "the index lock",
    "parser": "a parser",
    "server": "the server",
    "slot": "a free slot",
}
DOING = {
    "extract": "page",
    "clean": "cleaning page",
    "chunk": "chunking page",
    "embed": "embedding",
    "index": "indexing",
    "upload": "uploading MB",
}


class Meter:
    """Computes rates and the time left from successive observations."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, int]]] = deque()
        self._left: float | None = None

    def look(self, progress: "Progress") -> None:
        counts = {"documents": progress.ended, **progress.made}
        if self._seen and not any(self._seen[-1][1].values()):
            # Ignore the time in which models are loaded.
            self._seen.pop()
        before = self._seen[-1][0] if self._seen else progress.elapsed_s
        self._seen.append((progress.elapsed_s, counts))
        while self._seen[0][0] < progress.elapsed_s - WINDOW_S:
            self._seen.popleft()
        sure = self._seen[-1][0] - self._seen[0][0] >= SURE_S
        self._left = self._follow(progress.left_s if sure else None, progress.elapsed_s - before)

    def rate(self, name: str) -> float:
        """The rate over the window, or since the first item: a stage that started late is not slow."""
        end, after = self._seen[-1]
        start, before = next((look for look in reversed(self._seen) if not look[1].get(name)), self._seen[0])
        return (after.get(name, 0) - before.get(name, 0)) / (end - start) if end > start else 0.0

    @property
    def left_s(self) -> float | None:
        return self._left

    def _follow(self, estimate: float | None, passed: float) -> float | None:
        if estimate is None or self._left is None:
            return estimate
        expected = max(0.0, self._left - passed)
        calm_s = max(CALM_S, CALM_SHARE * expected)
        return expected + (1 - math.exp(-passed / calm_s)) * (estimate - expected)


class ProgressDisplay:
    """Shows the progress of a job on standard error."""

    def __init__(self) -> None:
        self._terminal = drawable(sys.stderr)
        self._screen: Screen | None = None
        self._meter = Meter()
        self._next = FIRST_S
        self._hands: set[tuple[str, str]] = set()

    def __call__(self, progress: "Progress") -> None:
        self._meter.look(progress)
        if self._terminal:
            if progress.elapsed_s >= DRAW_AFTER_S:
                self._draw(progress)
        elif progress.elapsed_s >= self._next and progress.ended < progress.total:
            self._next = progress.elapsed_s + EVERY_S
            note(line(progress, self._meter))

    def close(self) -> None:
        if self._screen is not None:
            try:
                self._screen.erase()
            except OSError:
                self._terminal = False
            self._screen = None

    def _draw(self, progress: "Progress") -> None:
        from penstock.cli.live import Screen

        if self._screen is None:
            self._screen = Screen(sys.stderr)
        # Documents that are running only for a moment would flicker.
        staying = [hand for hand in progress.in_hand if _place(hand) in self._hands and not hand.waiting_on]
        self._hands = {_place(hand) for hand in progress.in_hand}
        try:
            self._screen.draw(picture(progress, self._meter, self._screen.size()[0], staying[:HANDS]))
        except OSError:
            self._terminal = False


def _place(hand: "DocumentInProgress") -> tuple[str, str]:
    return hand.name, hand.source


def picture(progress: "Progress", meter: Meter, columns: int, hands: "list[DocumentInProgress]") -> "list[Text]":
    from rich.text import Text

    from penstock.cli.live import table

    lines = table(rows(progress, meter), columns)
    names = distinct([_place(hand) for hand in hands])
    lines += [Text(f"{visible(name)}  ").append(doing(hand), "cyan") for name, hand in zip(names, hands, strict=True)]
    if progress.waiting:
        lines.append(Text(f"waiting: {waits(progress.waiting)}", "yellow"))
    last = Text(duration(progress.elapsed_s))
    if progress.failed:
        last.append(" · ").append(f"{progress.failed:,} failed", "red")
    if progress.skipped:
        last.append(f" · {progress.skipped:,} skipped")
    if progress.submitting:
        last.append(" · submitting")
    return [*lines, last]


def rows(progress: "Progress", meter: Meter) -> "list[Row]":
    """A row for the documents, then one for the output of each stage."""
    from penstock.cli.live import Row

    left = f"{about(meter.left_s)} left" if meter.left_s is not None else ""
    share = progress.ended / progress.total if progress.total else None
    of = f"{progress.ended:,} of {progress.total:,}"
    found = [Row("documents", share, (of, pace(meter.rate("documents")), left))]
    for name, made in progress.made.items():
        more = 0 if progress.submitting else progress.to_come.get(name, 0)
        whole, rate = made + more, meter.rate(name)
        of = f"{made:,} of ~{whole:,}" if more and name == "pages" else f"{made:,}"
        time = f"{about(more / rate)} left" if more and rate and name == "pages" else ""
        found.append(Row(name, made / whole if whole and not progress.submitting else None, (of, pace(rate), time)))
    return found


def line(progress: "Progress", meter: Meter) -> str:
    """The progress as one line, for output that cannot be redrawn."""
    parts = [f"{progress.ended:,} of {count(progress.total, 'document')}"]
    parts += [count(n, name[:-1]) for name in ("pages", "chunks") if (n := progress.made.get(name))]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.skipped:
        parts.append(f"{progress.skipped:,} skipped")
    if progress.submitting:
        parts.append("submitting")
    if progress.waiting:
        parts.append(f"waiting: {waits(progress.waiting)}")
    if rate := meter.rate("documents"):
        parts.append(pace(rate))
    if meter.left_s is not None:
        parts.append(f"{about(meter.left_s)} left")
    return "  ".join([*parts, duration(progress.elapsed_s)])


def doing(hand: "DocumentInProgress") -> str:
    what = DOING.get(hand.kind, visible(hand.kind))
    return f"{what} {hand.done:,}" + (f" of {hand.of:,}" if hand.of is not None else "")


def waits(waiting: dict[str, int]) -> str:
    return ", ".join(f"{n:,} for {WAITS.get(on, visible(on))}" for on, n in sorted(waiting.items()))


def pace(rate: float) -> str:
    if not rate:
        return ""
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def about(seconds: float) -> str:
    """An estimated duration, without tenths of a second."""
    return f"{max(1, round(seconds))} s" if seconds < 59.5 else duration(seconds)
