"""Plots as SVG."""

from collections.abc import Sequence

from markupsafe import Markup

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 180, 48, 24, 8


def stacked(title: str, labels: Sequence[str], series: Sequence[tuple[str, str, Sequence[int]]]) -> Markup:
    """Draw bars, one for each label. `series`: names, colours and values, stacked from the bottom."""
    totals = [sum(values) for values in zip(*(values for _, _, values in series), strict=True)]
    most = max([*totals, 1])
    step = (WIDTH - LEFT) / max(len(labels), 1)
    scale = (HEIGHT - BOTTOM - TOP) / most
    drawn = [
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}" stroke="var(--quiet)"/>',
        _text(LEFT - 6, TOP + 10, str(most), "end"),
        _text(LEFT - 6, HEIGHT - BOTTOM, "0", "end"),
    ]
    for i, label in enumerate(labels):
        x, y = LEFT + i * step, float(HEIGHT - BOTTOM)
        for name, colour, values in series:
            height = values[i] * scale
            if not height:
                continue
            y -= height
            drawn.append(
                f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}" '
                f'fill="{colour}"><title>{label}: {values[i]} {name}</title></rect>'
            )
        if i % max(1, len(labels) // 6) == 0:
            drawn.append(_text(x, HEIGHT - 6, label, "start"))
    legend = ", ".join(f"{sum(values)} {name}" for name, _, values in series)
    return Markup(
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{title}: {legend}">{"".join(drawn)}</svg><p class="quiet">{title}: {legend}.</p>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="12" fill="currentColor" text-anchor="{anchor}">{text}</text>'
