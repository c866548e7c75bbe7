"""How values are shown on a page. Text from outside is escaped by the templates; here its control characters become
visible."""

import json
import math
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.search.results import Hit
from penstock.verbs.actions import ActionView

MARKS = {
    "good": "✓",
    "bad": "✗",
    "work": "▶",
    "wait": "◷",
    "none": "–",
}
TONES = {
    "COMPLETED": "good",
    "READY": "good",
    "alive": "good",
    "searchable": "good",
    "current": "good",
    "DONE": "good",
    "DELIVERED": "good",
    "active": "good",
    "ACTIVE": "good",
    "DISABLED": "none",
    "FAILED": "bad",
    "dead": "bad",
    "ERROR": "bad",
    "PENDING": "wait",
    "HELD": "none",
    "SUBMITTING": "wait",
    "CANCELLED": "none",
    "replaced": "none",
    "revoked": "none",
    "expired": "none",
    "NOT_INDEXABLE": "none",
    "UNSUPPORTED": "none",
    "CHOOSING": "work",
    "WORKING": "work",
}
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


class Part(NamedTuple):
    text: str
    marked: bool


def tone(name: object) -> str:
    return TONES.get(str(name), "work")


def mark(name: object) -> str:
    return MARKS[tone(name)]


def shown(text: object) -> str:
    """Text in one line: control and direction characters are written out."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in str(text))


def size(count: float | None) -> str:
    if count is None:
        return ""
    step = min(int(math.log(count, 1_000)), len(_UNITS) - 1) if count >= 1 else 0
    value = count / 1_000**step
    return f"{value:.1f} {_UNITS[step]}" if step and value < 100 else f"{value:.0f} {_UNITS[step]}"


def money(dollars: float) -> str:
    return f"${dollars:,.2f}" if dollars >= 0.01 or not dollars else f"${dollars:.4f}"


def duration(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for limit, unit, name in ((90, 1, "s"), (5_400, 60, "min"), (129_600, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"


def title_of_action(action: ActionView) -> str:
    documents = f"{action.total:,} document{'' if action.total == 1 else 's'}"
    return f"{action.verb.capitalize()} {documents}{' or more' if action.state == 'CHOOSING' else ''}"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def number(value: float) -> str:
    return f"{value:,}"


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def moment(seconds: float) -> str:
    """A time with its date, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def clock(seconds: float) -> str:
    """The time of the day, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")


def snippet(hit: Hit) -> list[Part]:
    """The best part of a passage, with the matched words marked."""
    start, end = hit.snippet_start, hit.snippet_start + len(hit.snippet or hit.text)
    return marked(hit.text, start, end, hit.highlights)


def marked(text: str, start: int, end: int, spans: Any) -> list[Part]:
    """Cut `text[start:end]` at the spans, which are marked."""
    parts, at = [], start
    for low, high in sorted(spans):
        low, high = max(low, at), min(high, end)
        if low >= high:
            continue
        if low > at:
            parts.append(Part(text[at:low], False))
        parts.append(Part(text[low:high], True))
        at = high
    if at < end:
        parts.append(Part(text[at:end], False))
    return parts


def score_parts(hit: Hit) -> list[tuple[str, str]]:
    """Why a passage was found: the words that match, and what its score is made of."""
    words = dict.fromkeys(hit.text[low:high].lower() for low, high in hit.highlights)
    found = [("matching words", ", ".join(list(words)[:20]))] if words else []
    if hit.explain is None:
        return found
    names = {"cosine": "similarity of the vectors", "words": "words (BM25)", "grams": "parts of words (BM25)"}
    values = {name: getattr(hit.explain, name) for name in hit.explain.__struct_fields__}
    return found + [(names.get(name, name), f"{value:.4f}") for name, value in values.items() if value is not None]


FILTERS = {
    "tone": tone,
    "mark": mark,
    "shown": shown,
    "size": size,
    "money": money,
    "duration": duration,
    "iso": iso,
    "clock": clock,
    "moment": moment,
    "snippet": snippet,
    "parts": score_parts,
    "title_of_action": title_of_action,
    "json": as_json,
    "number": number,
}
