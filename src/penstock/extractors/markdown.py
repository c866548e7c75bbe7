"""Find the blocks of Markdown text, with one regular expression match per block."""

import re
from typing import Any, NamedTuple

from penstock.extractors.properties import properties
from penstock.model.items import Block

_EOL = r"(?:\n|\Z)"
_BLANK = rf"[ \t\r]*+{_EOL}"
_FENCE = rf"(?:`{{3,}}(?=[^`\n]*+{_EOL})|~{{3,}})"
_ITEM = r"(?:[-*+]|\d{1,9}[.)])(?=[ \t\r\n]|\Z)"
_HASHES = r"\#{1,6}(?=[ \t\r\n]|\Z)"
_RULE = rf"(?:-{{3,}}|\*{{3,}}|_{{3,}})[ \t\r]*+{_EOL}"
_CELL = r"[ \t]*+:?-++:?[ \t]*+"

_BLOCK = re.compile(
    rf"""
      (?P<blank> (?:[ \t\r]*+\n)++ | [ \t\r]++\Z )
    | [ ]{{0,3}} (?P<hashes>{_HASHES}) (?P<title>[^\n]*+) {_EOL}
    | [ ]{{0,3}} (?P<fence>{_FENCE}) [^\n]*+ {_EOL}
    | (?P<nested> [ \t]++ (?P<inner>{_FENCE}) [^\n]*+ \n
        (?: (?![ \t]*+(?P=inner)) [^\n]*+ \n )*+ [ \t]*+ (?P=inner) [^\n]*+ {_EOL} )
    | (?P<rule> [ ]{{0,3}} (?: (?:-[ \t]*+){{3,}}+ | (?:\*[ \t]*+){{3,}}+ | (?:_[ \t]*+){{3,}}+ ) \r?+ {_EOL} )
    | (?P<quote> (?: [ ]{{0,3}} > [^\n]*+ {_EOL} )++ )
    | (?P<table> [^\n|]*+ \| [^\n]*+ \n
        [ ]{{0,3}} (?=[^\n]*\|) \|?+ {_CELL} (?:\|{_CELL})*+ \|?+ [ \t\r]*+ {_EOL}
        (?: (?=[^\n|]*+\|) [^\n]*+ {_EOL} )*+ )
    | (?P<list> [ ]{{0,3}} {_ITEM} [^\n]*+ {_EOL}
        (?: (?:[ \t\r]*+\n)++ (?= [ \t]{{2,}}+\S | [ ]{{0,3}}{_ITEM} )
          | (?! {_BLANK} | [ ]{{0,3}}(?:{_HASHES}|\||{_RULE}) | [ \t]*+{_FENCE} ) [^\n]*+ {_EOL} )*+ )
    | (?P<indented> (?: (?:[ ]{{4}}|[ ]{{0,3}}\t) [^\n]*+ {_EOL}
        | (?:[ \t\r]*+\n)++ (?=[ ]{{4}}|[ ]{{0,3}}\t) )++ )
    | (?P<paragraph> [^\n]*+ {_EOL}
        (?: (?! {_BLANK} | [ \t]*+{_FENCE}
              | [ ]{{0,3}} (?: {_HASHES} | > | \| | [-*+][ \t] | 1[.)][ \t] | (?:=++|-++)[ \t\r]*+{_EOL} | {_RULE} ) )
            [^\n]*+ {_EOL} )*+ )
      (?P<underline> [ ]{{0,3}} (?:=++|--++) [ \t\r]*+ {_EOL} )?+
    """,
    re.VERBOSE,
)
_KINDS = {
    "list": "list",
    "table": "table",
    "quote": "quote",
    "nested": "code",
    "indented": "code",
    "paragraph": "paragraph",
}
_CLOSING_HASHES = re.compile(r"(?:^|[ \t]+)#+$")
_FRONT_MATTER = re.compile(rf"---[ \t]*\r?\n(?=[\w-]+:)(?:(?!---|\.\.\.)[^\n]*+\n)*+(?:---|\.\.\.){_BLANK}")

_ENTRY = re.compile(r"^([A-Za-z]+):[ \t]*(\S[^\n]{0,2000})", re.MULTILINE)

_BLANKS = " \t\r\n"
_LONGEST_TITLE = 300
_MOST_TITLE_LINES = 3


class State(NamedTuple):
    """What is open where a page begins: the headings (`path[i]` has level i + 1, "" if there is none) and a code
    fence."""

    path: tuple[str, ...] = ()
    fence: str = ""


def front_matter(text: str) -> dict[str, Any]:
    """The metadata in the front matter of a Markdown file. Only plain `key: value` lines are read."""
    matter = _FRONT_MATTER.match(text)
    if matter is None:
        return {}
    found = {name.lower(): value.strip(" \t\r\"'") for name, value in _ENTRY.findall(matter[0])}
    return properties(
        found.get("title"),
        [name.strip(" \"'") for name in found.get("author", found.get("authors", "")).strip("[]").split(",")],
        found.get("date") or found.get("created"),
        found.get("modified") or found.get("updated") or found.get("lastmod"),
        found.get("lang") or found.get("language"),
    )


def scan(text: str, state: State, first: bool) -> tuple[tuple[Block, ...], State]:
    """The blocks of a page, and the state after it. `first`: this is the first page, which may begin with front
    matter."""
    blocks: list[Block] = []
    path, fence = state
    at = 0
    if fence:
        at, fence = _code(text, 0, 0, fence, blocks)
    elif first and (matter := _FRONT_MATTER.match(text)):
        at = _add(blocks, "code", matter)
    while at < len(text):
        match = _BLOCK.match(text, at)
        assert match is not None
        kind = match.lastgroup or ""
        if kind == "title":
            path = _heading(blocks, path, match, len(match["hashes"]), _CLOSING_HASHES.sub("", match["title"].strip()))
            at = match.end()
        elif kind == "fence":
            at, fence = _code(text, at, match.end(), match["fence"], blocks)
        elif kind == "underline" and match["paragraph"].count("\n") <= _MOST_TITLE_LINES:
            level = 1 if "=" in match["underline"] else 2
            path = _heading(blocks, path, match, level, match["paragraph"])
            at = match.end()
        elif kind in ("blank", "rule"):
            at = match.end()
        else:
            at = _add(blocks, _KINDS.get(kind, "paragraph"), match)
    return tuple(blocks), State(path, fence)


def _add(blocks: list[Block], kind: str, match: re.Match[str]) -> int:
    blocks.append(Block(kind, match.start(), match.start() + len(match.group().rstrip(_BLANKS))))
    return match.end()


def _heading(
    blocks: list[Block], path: tuple[str, ...], match: re.Match[str], level: int, title: str
) -> tuple[str, ...]:
    title = " ".join(title.split())[:_LONGEST_TITLE]
    blocks.append(Block("heading", match.start(), match.start() + len(match.group().rstrip(_BLANKS)), level, title))
    return opened(path, level, title)


def opened(path: tuple[str, ...], level: int, title: str) -> tuple[str, ...]:
    """The path after a heading. It closes headings of the same or a deeper level."""
    return (*path[: level - 1], *[""] * (level - 1 - len(path)), title)


def _code(text: str, start: int, body: int, fence: str, blocks: list[Block]) -> tuple[int, str]:
    """Add the code block of an open fence. Returns the offset after it, and the fence if it is still open there."""
    closing = re.compile(rf"^[ \t]*+{fence[0]}{{{len(fence)},}}+[ \t\r]*$", re.MULTILINE).search(text, body)
    end = closing.end() if closing else len(text)
    code = text[start:end].rstrip(_BLANKS)
    if code:
        blocks.append(Block("code", start, start + len(code)))
    return (end + 1, "") if closing else (len(text), fence)
