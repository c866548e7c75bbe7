"""How a job goes: one line that is drawn over on a terminal, a line every ten seconds elsewhere."""

import os
import shutil
import sys
from collections import deque
from typing import TYPE_CHECKING

from penstock.cli.output import count, cut, duration, note

if TYPE_CHECKING:
    from penstock.jobs import Progress

WINDOW_S = 10.0
"""The rate is that of the last seconds, so that it follows a change of pace."""
EVERY_S = 10.0
BAR = 20


class ProgressLine:
    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._seen: deque[tuple[float, int]] = deque()
        self._next = EVERY_S
        self._drawn = False

    def __call__(self, progress: "Progress") -> None:
        self._seen.append((progress.elapsed_s, progress.ended))
        while self._seen[0][0] < progress.elapsed_s - WINDOW_S:
            self._seen.popleft()
        if self._terminal:
            columns = shutil.get_terminal_size((80, 24)).columns
            self._write("\r\x1b[K" + cut(self.line(progress), columns - 1))
            self._drawn = True
        elif progress.elapsed_s >= self._next:
            self._next = progress.elapsed_s + EVERY_S
            note(self.line(progress))

    def close(self) -> None:
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def line(self, progress: "Progress") -> str:
        parts = []
        if progress.total:
            share = progress.ended / progress.total
            filled = round(BAR * share)
            bar = "[" + "#" * filled + "." * (BAR - filled) + "] " if self._terminal else ""
            parts.append(f"{bar}{progress.ended:,} of {count(progress.total, 'document')}")
        if progress.skipped:
            parts.append(f"{progress.skipped:,} skipped")
        if progress.submitting:
            parts.append("submitting")
        rate = self._rate()
        if rate:
            parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
            if not progress.submitting and progress.ended < progress.total:
                parts.append(f"{duration((progress.total - progress.ended) / rate)} left")
        parts.append(duration(progress.elapsed_s))
        return "  ".join(parts)

    def _rate(self) -> float:
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / (end - start) if end > start else 0.0

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._terminal = False
