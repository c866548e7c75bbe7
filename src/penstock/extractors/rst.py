"""Find the headings of reStructuredText: a title with a line of punctuation below it, or above and below."""

import re

from penstock.extractors.markdown import opened
from penstock.model.items import Block

_ADORNED = re.compile(
    r"""^(?:(?P<over>(?P<mark>[!-/:-@\[-`{-~])(?P=mark)+)[ \t]*\r?\n[ \t]*(?P<inner>\S[^\n]*)\n(?P=over)
        |(?P<title>\S[^\n]*)\n(?P<under>(?P<sign>[!-/:-@\[-`{-~])(?P=sign)+))[ \t]*\r?$""",
    re.MULTILINE | re.VERBOSE,
)
_LONGEST_TITLE = 300
_DEEPEST = 6


def scan(
    text: str, path: tuple[str, ...], styles: tuple[str, ...]
) -> tuple[tuple[Block, ...], tuple[str, ...], tuple[str, ...]]:
    """The headings of a page, the headings that apply at its end, and the styles of lines in the order of their levels.
    The first style that appears is that of level 1."""
    blocks = []
    for match in _ADORNED.finditer(text):
        title = " ".join((match["inner"] or match["title"]).split())
        line = match["over"] or match["under"]
        if len(line) < min(len(title), 4) or not any(c.isalnum() for c in title):
            continue
        style = match["mark"] * 2 if match["over"] else match["sign"]
        if style not in styles:
            styles = (*styles, style)
        level = min(styles.index(style) + 1, _DEEPEST)
        blocks.append(Block("heading", match.start(), match.end(), level, title[:_LONGEST_TITLE]))
        path = opened(path, level, title[:_LONGEST_TITLE])
    return tuple(blocks), path, styles
