"""The results as a picture: bars of text for a terminal, and an SVG file."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from penstock.evaluation.combinations import label
from penstock.evaluation.report import Result

SHADES = "█▓▒░"
COLOURS = ("#1f4e79", "#2e86c1", "#7fb3d5", "#c6dcec")
BAR, LINE, TOP, SIDE = 420, 30, 70, 20


def title(result: Result) -> str:
    name = label(result.settings)
    return f"{name} (present)" if result.present and result.settings else name


def bars(results: Sequence[Result], ks: Sequence[int], space: int) -> list[str]:
    """One bar for each combination. Its parts are recall at the lowest k, then what each higher k adds."""
    if not results:
        return []
    shown = ks[: len(SHADES)]
    names = [title(result) for result in results]
    left = min(max(len(name) for name in names), space // 2)
    width = max(10, min(50, space - left - 2))
    lines = ["recall  " + "  ".join(f"{SHADES[i]} @{k}" for i, k in enumerate(shown))]
    for name, result in zip(names, results, strict=True):
        bar, ended = "", 0
        for i, k in enumerate(shown):
            end = round(width * result.recall[str(k)])
            bar += SHADES[i] * (end - ended)
            ended = max(ended, end)
        lines.append(f"{name[:left]:<{left}}  {bar:·<{width}}")
    return lines


def svg(results: Sequence[Result], ks: Sequence[int], collection: str, questions: int) -> str:
    """The same bars as an SVG document, with numbers."""
    shown = ks[: len(COLOURS)]
    left = SIDE + 8 * max((len(title(result)) for result in results), default=0) + 12
    width, height = left + BAR + 280, TOP + LINE * len(results) + 50
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{SIDE}" y="26" font-size="16">{escape(f"Recall in {collection}: {questions:,} questions")}</text>',
    ]
    for i, k in enumerate(shown):
        x = left + 80 * i
        lines.append(f'<rect x="{x}" y="40" width="14" height="14" fill="{COLOURS[i]}"/>')
        lines.append(f'<text x="{x + 20}" y="52">@{k}</text>')
    for n, result in enumerate(results):
        y = TOP + LINE * n
        lines.append(f'<text x="{left - 12}" y="{y + 16}" text-anchor="end">{escape(title(result))}</text>')
        for i, k in reversed(list(enumerate(shown))):
            wide = round(BAR * result.recall[str(k)], 1)
            lines.append(f'<rect x="{left}" y="{y}" width="{wide}" height="22" fill="{COLOURS[i]}"/>')
        numbers = " / ".join(f"{result.recall[str(k)]:.2f}" for k in ks)
        text = f"{numbers} · MRR {result.mrr:.2f} · p50 {result.latency_ms.p50:.0f} ms"
        lines.append(f'<text x="{left + BAR + 10}" y="{y + 16}">{escape(text)}</text>')
    base = TOP + LINE * len(results)
    for tenth in range(0, 11, 2):
        x = left + BAR * tenth // 10
        lines.append(f'<line x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{base}" stroke="#999" stroke-dasharray="2 4"/>')
        lines.append(f'<text x="{x}" y="{base + 18}" text-anchor="middle">{tenth / 10:g}</text>')
    return "\n".join([*lines, "</svg>", ""])
