"""The styles and the numbering of a Word document."""

import re
from typing import NamedTuple
from xml.etree.ElementTree import Element

from penstock.extractors.omml import child, local, value

_HEADING = re.compile(r"heading\s*([1-9])$", re.IGNORECASE)
_CODE = re.compile(r"\b(?:code|preformatted|verbatim|source)\b", re.IGNORECASE)
_QUOTE = re.compile(r"\bquote\b|\bquotations?\b", re.IGNORECASE)
_MARKER = re.compile(r"\d{1,9}[.)]$")
_PLACE = re.compile(r"%([1-9])")
_BODY_TEXT = 9
"""The outline level of paragraphs that are not headings."""
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"))
_ROMAN_ONES = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")


class Format(NamedTuple):
    """The format of a paragraph, from its style and its own settings."""

    kind: str = "paragraph"
    level: int = 0
    number: str = ""
    """The id of the list that it belongs to; "" if none."""
    depth: int = 0
    breaks: bool = False


class Styles:
    def __init__(self, root: Element | None, numbering: "Numbering") -> None:
        self._styles = {value(style, "styleId"): style for style in _all(root, "style")}
        self._default = next(
            (
                name
                for name, style in self._styles.items()
                if value(style, "type") == "paragraph" and value(style, "default") in ("1", "true")
            ),
            None,
        )
        self._numbering = numbering
        self._known: dict[str | None, Format] = {}

    def format(self, settings: Element | None) -> Format:
        """The format of a paragraph with these settings (its pPr)."""
        style = value(child(settings, "pStyle")) or self._default
        if style not in self._known:
            self._known[style] = self._of_style(style)
        known = self._known[style]
        return known if settings is None else self._with(known, settings, style)

    def _of_style(self, style: str | None) -> Format:
        chain: list[tuple[str | None, Element | None]] = []
        while style is not None and all(style != seen for seen, _ in chain):
            chain.append((style, self._styles.get(style)))
            style = value(child(chain[-1][1], "basedOn"))
        known = Format()
        for name, element in reversed(chain):
            known = _named(known, value(child(element, "name")) or name or "")
            settings = child(element, "pPr")
            if settings is not None:
                known = self._with(known, settings, name)
        return known

    def _with(self, known: Format, settings: Element, style: str | None) -> Format:
        level, number = value(child(settings, "outlineLvl")), value(child(settings, "numPr", "numId"))
        depth = value(child(settings, "numPr", "ilvl"))
        if level is not None and level.isdecimal():
            heading = int(level) < _BODY_TEXT
            known = known._replace(kind="heading" if heading else "paragraph", level=int(level) + 1 if heading else 0)
        if number is not None:
            known = known._replace(number="" if number == "0" else number)
            if depth is None and known.number:
                known = known._replace(depth=self._numbering.depth_of(number, style))
        if depth is not None and depth.isdecimal():
            known = known._replace(depth=int(depth))
        return known._replace(breaks=True) if on(child(settings, "pageBreakBefore")) else known


def _named(known: Format, name: str) -> Format:
    heading = _HEADING.match(name)
    if heading or name.lower() == "title":
        return known._replace(kind="heading", level=int(heading[1]) if heading else 1)
    if _CODE.search(name) or name == "HTMLPreformatted":
        return known._replace(kind="code", level=0)
    return known._replace(kind="quote", level=0) if _QUOTE.search(name) else known


def on(element: Element | None) -> bool:
    """Whether a boolean element exists and is not set to false."""
    return element is not None and value(element) not in ("0", "false", "off", "none")


class _Level(NamedTuple):
    start: int
    format: str
    text: str
    style: str | None


class Numbering:
    """Counts the items of all lists. Lists with the same abstract numbering share one count."""

    def __init__(self, root: Element | None) -> None:
        abstract = {value(found, "abstractNumId"): _levels(found) for found in _all(root, "abstractNum")}
        self._abstract: dict[str, str] = {}
        self._levels: dict[str, dict[int, _Level]] = {}
        self._restarts: dict[str, dict[int, int]] = {}
        self._counts: dict[str, dict[int, int]] = {}
        for found in _all(root, "num"):
            number, kind = value(found, "numId") or "", value(child(found, "abstractNumId")) or ""
            self._abstract[number] = kind
            overrides = [part for part in found if local(part) == "lvlOverride"]
            own = {depth: level for part in overrides for depth, level in _levels(part).items()}
            self._levels[number] = {**abstract.get(kind, {}), **own}
            self._restarts[number] = {
                _int(value(part, "ilvl")): _int(value(child(part, "startOverride")))
                for part in overrides
                if child(part, "startOverride") is not None
            }

    def depth_of(self, number: str, style: str | None) -> int:
        """The level of a list that is assigned to a style."""
        levels = self._levels.get(number, {})
        return next((depth for depth, level in levels.items() if level.style == style), 0)

    def next(self, number: str, depth: int) -> str:
        """The label of the next item, as Word shows it; "" for a bullet."""
        levels = self._levels.get(number, {})
        counts = self._counts.setdefault(self._abstract.get(number, number), {})
        restart = self._restarts.get(number, {}).pop(depth, None)
        if restart is not None:
            counts.pop(depth, None)
        level = levels.get(depth)
        if level is None:
            return ""
        counts[depth] = counts[depth] + 1 if depth in counts else level.start if restart is None else restart
        for deeper in [known for known in counts if known > depth]:
            del counts[deeper]
        if level.format in ("bullet", "none"):
            return ""

        def place(match: re.Match[str]) -> str:
            at = int(match[1]) - 1
            shown = levels.get(at, level)
            return numeral(counts.setdefault(at, shown.start), shown.format)

        return _PLACE.sub(place, level.text).strip()


def marker(label: str) -> str:
    """The beginning of a list item in Markdown. Labels that Markdown does not support, such as 1.1 or (a), become part
    of the text."""
    return label if _MARKER.match(label) else f"- {label}".strip()


def numeral(number: int, style: str) -> str:
    if style in ("lowerLetter", "upperLetter") and 0 < number < 1000:
        letters = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
        return letters.upper() if style == "upperLetter" else letters
    if style in ("lowerRoman", "upperRoman") and 0 < number < 4000:
        roman = _roman(number)
        return roman.upper() if style == "upperRoman" else roman
    return f"{number:02d}" if style == "decimalZero" else str(number)


def _roman(number: int) -> str:
    text = ""
    for size, letters in _ROMAN:
        count, number = divmod(number, size)
        text += letters * count
    return text + _ROMAN_ONES[number]


def _levels(element: Element) -> dict[int, _Level]:
    return {
        _int(value(level, "ilvl")): _Level(
            _int(value(child(level, "start")), 1),
            value(child(level, "numFmt")) or "decimal",
            value(child(level, "lvlText")) or "",
            value(child(level, "pStyle")),
        )
        for level in element
        if local(level) == "lvl"
    }


def _all(root: Element | None, name: str) -> list[Element]:
    return [found for found in root if local(found) == name] if root is not None else []


def _int(text: str | None, default: int = 0) -> int:
    return int(text) if text is not None and text.isdecimal() else default
