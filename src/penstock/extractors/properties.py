"""Metadata that files contain: title, author, dates, language. It is made by strangers, so its size is limited and each
value gets a plain type."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

KEYS = ("title", "author", "created", "modified", "language")
MOST_KEYS = 50
LONGEST_KEY = 100
LONGEST_TEXT = 1_000
MOST_VALUES = 50
_DEEPEST = 3
_LARGEST = 1 << 53
"""Larger integers are not the same in every reader of JSON."""

_PRODUCERS = re.compile(r"^(?:Microsoft (?:Word|PowerPoint|Excel)|Print)\s*-\s*", re.IGNORECASE)
_NO_TITLE = frozenset(("untitled", "no title", "title", "powerpoint presentation", "presentation", "document"))
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
_PDF_DATE = re.compile(
    r"D?:?(?P<y>\d{4})(?P<m>\d\d)?(?P<d>\d\d)?(?P<H>\d\d)?(?P<M>\d\d)?(?P<S>\d\d)?"
    r"(?:(?P<sign>[-+Z])(?P<h>\d\d)?'?(?P<n>\d\d)?'?)?"
)
_DATE = re.compile(r"\d{4}(?:-\d\d){0,2}")
_FRACTION = re.compile(r"(\d\d:\d\d:\d\d)[.,]\d+")


def properties(
    title: str | None = None,
    author: str | Iterable[str] | None = None,
    created: str | datetime | None = None,
    modified: str | datetime | None = None,
    language: str | None = None,
) -> dict[str, Any]:
    """The metadata of a file. What is missing, empty or not plausible is left out."""
    authors = [author] if isinstance(author, str) else list(author or ())
    names = list(dict.fromkeys(name for one in authors[:MOST_VALUES] if (name := plain(one))))
    found = {
        "title": _title(title or ""),
        "author": names[0] if len(names) == 1 else names,
        "created": moment(created),
        "modified": moment(modified),
        "language": _language(language or ""),
    }
    return {key: value for key, value in found.items() if value}


def plain(text: str) -> str:
    """The text in one line, without control characters, in limited length."""
    kept = "".join(
        " " if letter.isspace() else letter
        for letter in text[: 4 * LONGEST_TEXT]
        if letter.isspace() or unicodedata.category(letter) not in ("Cc", "Cs", "Cn", "Co")
    )
    return " ".join(kept.split())[:LONGEST_TEXT].rstrip()


def _title(text: str) -> str:
    title = _PRODUCERS.sub("", plain(text))
    return "" if title.lower() in _NO_TITLE or not any(map(str.isalnum, title)) else title


def _language(text: str) -> str:
    """A language tag such as `de` or `pt-BR`. Names of languages and placeholders are left out."""
    tag = text.strip().replace("_", "-")
    if not _LANGUAGE.fullmatch(tag) or tag.lower() in ("und", "mul", "zxx", "x-none"):
        return ""
    first, _, rest = tag.partition("-")
    return f"{first.lower()}-{rest}" if rest else first.lower()


def moment(value: str | datetime | None) -> str:
    """A date in the form of ISO 8601: in UTC with a Z if its time zone is known, otherwise without one. Empty if it is
    no date."""
    try:
        return _moment(value)
    except (ValueError, OverflowError, TypeError, IndexError):
        return ""


def _moment(value: str | datetime | None) -> str:
    if isinstance(value, datetime):
        return _written(value)
    text = (value or "").strip()[:100].replace(" UTC", "+00:00")
    if not text:
        return ""
    if _DATE.fullmatch(text):
        datetime.fromisoformat(f"{text}-01-01"[:10] if len(text) == 4 else f"{text}-01"[:10])
        return text if int(text[:4]) else ""
    if (found := _PDF_DATE.fullmatch(text)) is not None:
        return _pdf(found)
    if text[:4].isdigit():
        return _written(datetime.fromisoformat(_FRACTION.sub(r"\1", text)))
    return _written(parsedate_to_datetime(text))


def _pdf(found: re.Match[str]) -> str:
    parts = [int(found[name] or least) for name, least in (("y", 0), ("m", 1), ("d", 1), ("H", 0), ("M", 0), ("S", 0))]
    text = "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}".format(*parts)
    if found["H"] is None:
        datetime.fromisoformat(text)
        return text[:10] if found["d"] else text[:7] if found["m"] else text[:4]
    sign = found["sign"]
    zone = "" if sign is None else "+00:00" if sign == "Z" else f"{sign}{found['h'] or '00'}:{found['n'] or '00'}"
    return _written(datetime.fromisoformat(text + zone))


def _written(at: datetime) -> str:
    if at.tzinfo is None:
        return at.strftime("%Y-%m-%dT%H:%M:%S").zfill(19)
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ").zfill(20)


def bounded(found: Mapping[Any, Any]) -> dict[str, Any]:
    """What may be stored of the metadata that an extractor returns: text, numbers, true, false, and lists and mappings
    of them, limited in number and length. Everything else is left out."""
    result: dict[str, Any] = {}
    for key, value in found.items():
        if len(result) >= MOST_KEYS:
            break
        name = plain(key)[:LONGEST_KEY] if isinstance(key, str) else ""
        if name and (kept := _bounded(value, 0)) is not None:
            result[name] = kept
    return result


def _bounded(value: Any, depth: int) -> Any:
    match value:
        case bool():
            return value
        case int():
            return value if abs(value) < _LARGEST else None
        case float():
            return value if value - value == 0 else None
        case str():
            return plain(value)
        case list() | tuple() if depth < _DEEPEST:
            kept = (_bounded(one, depth + 1) for one in value[:MOST_VALUES])
            return [one for one in kept if one is not None]
        case dict() if depth < _DEEPEST:
            return bounded(value) if depth == 0 else None
    return None
