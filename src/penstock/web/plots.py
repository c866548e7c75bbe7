"""Plots as SVG: bars that are stacked, and lines."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from markupsafe import Markup

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 560, 190, 46, 8, 22, 10
TICKS = 6
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")
"""Lines differ not by colour alone."""


class Series(NamedTuple):
    name: str
    look: int
    """The number of its colour, from 1 on."""
    values: Sequence[float | None]
    """None: it is not known."""
    told: str
    """What the legend says of it."""


class Axis(NamedTuple):
    labels: Sequence[str]
    """One for each interval: its beginning."""
    shown: Callable[[float], str]
    """How a value is written."""


def bars(title: str, axis: Axis, series: Sequence[Series]) -> Markup:
    """One bar for each interval, stacked from the bottom."""
    totals = [sum(value or 0 for value in values) for values in zip(*(one.values for one in series), strict=True)]
    most = nice(max([*totals, 0]))
    step, scale = _step(axis), (HEIGHT - BOTTOM - TOP) / most
    drawn = []
    for i, label in enumerate(axis.labels):
        x, y = LEFT + i * step, float(HEIGHT - BOTTOM)
        for one in series:
            value = one.values[i] or 0
            if value <= 0:
                continue
            height = max(value * scale, 0.8)
            y -= height
            told = escape(f"{label}: {axis.shown(value)} {one.name}")
            drawn.append(
                f'<rect class="s{one.look}" x="{x + step * 0.08:.1f}" y="{y:.1f}" width="{step * 0.84:.1f}" '
                f'height="{height:.1f}"><title>{told}</title></rect>'
            )
    return _figure(title, axis, series, most, drawn)


def lines(title: str, axis: Axis, series: Sequence[Series]) -> Markup:
    """One line for each series, interrupted where its value is not known."""
    most = nice(max((value for one in series for value in one.values if value is not None), default=0))
    step, scale = _step(axis), (HEIGHT - BOTTOM - TOP) / most
    drawn = []
    for n, one in enumerate(series):
        path, pen_is_down = [], False
        for i, value in enumerate(one.values):
            if value is None:
                pen_is_down = False
                continue
            x, y = LEFT + (i + 0.5) * step, HEIGHT - BOTTOM - value * scale
            path.append(f"{'L' if pen_is_down else 'M'}{x:.1f} {y:.1f}")
            pen_is_down = True
            # A line of one point cannot be seen.
            drawn.append(f'<circle class="s{one.look}" cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>')
        if path:
            dash = f' stroke-dasharray="{DASHES[n % len(DASHES)]}"' if n % len(DASHES) else ""
            name = escape(one.name)
            drawn.append(f'<path class="line s{one.look}" d="{"".join(path)}"{dash}><title>{name}</title></path>')
    return _figure(title, axis, series, most, drawn)


def nice(most: float) -> float:
    """The end of an axis: the next 1, 2 or 5 of its magnitude."""
    if most <= 0:
        return 1.0
    unit: float = 10.0 ** math.floor(math.log10(most))
    return next((unit * n for n in (1, 2, 5) if unit * n >= most * 0.999), unit * 10)


def _step(axis: Axis) -> float:
    return (WIDTH - LEFT - RIGHT) / max(len(axis.labels), 1)


def _figure(title: str, axis: Axis, series: Sequence[Series], most: float, drawn: Sequence[str]) -> Markup:
    bottom, step = HEIGHT - BOTTOM, _step(axis)
    frame = []
    for part in (0, 0.5, 1):
        y = bottom - part * (bottom - TOP)
        frame.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        frame.append(_text(LEFT - 6, y + 4, axis.shown(most * part), "end"))
    every = max(1, math.ceil(len(axis.labels) / TICKS))
    frame += [
        _text(LEFT + i * step, HEIGHT - 5, label, "start")
        for i, label in enumerate(axis.labels)
        if i % every == 0 and i + every // 2 < len(axis.labels)
    ]
    told = [f"{one.name} {one.told}".strip() for one in series]
    legend = "".join(
        f'<span class="key s{one.look}">{escape(text)}</span>' for one, text in zip(series, told, strict=True)
    )
    summary = escape(f"{title}: {', '.join(told) or 'nothing'}")
    return Markup(
        f'<figure><figcaption>{escape(title)}</figcaption><svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{summary}">{"".join(frame)}{"".join(drawn)}'
        f'</svg><div class="legend">{legend or "Nothing in this time."}</div></figure>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'
