"""Split HTML into tags and text as browsers do, in linear time for any input."""

import re
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple

RAW = frozenset(("script", "style"))
"""Elements whose content is not HTML."""

# Quotes are recognised only after an equals sign. Elsewhere a stray quote would hide the text up to the next one.
_TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>]*+)((?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+'|))*+)>""")
_ATTRIBUTE = re.compile(r"""([^\s"'>/=]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>]++)))?""")
_OTHERS = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<!", ">"), ("<?", ">"), ("</", ">"))
_RAW_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in RAW}


class Token(NamedTuple):
    """`kind` is text, start or end. `value` is the text, or the name of the tag in lower case."""

    kind: str
    value: str
    attributes: str = ""


def tokens(html: str) -> Iterator[Token]:
    at, begin, last = 0, html.find("<"), html.rfind(">")
    absent: set[str] = set()
    while 0 <= begin < last:
        tag = _TAG.match(html, begin)
        end = tag.end() if tag else _past_other(html, begin, absent)
        if end == begin:
            begin = html.find("<", begin + 1)
            continue
        if begin > at:
            yield Token("text", _text(html[at:begin]))
        if tag:
            slash, name, attributes = tag.groups()
            name = name.lower()
            yield Token("end" if slash else "start", name, attributes)
            if attributes.endswith("/") and not slash:
                yield Token("end", name)
            elif name in RAW and not slash:
                closed = _RAW_ENDS[name].search(html, end)
                end = closed.start() if closed else len(html)
        elif html.startswith("<![CDATA[", begin):
            yield Token("text", html[begin + 9 : end - 3])
        at, begin = end, html.find("<", end)
    if at < len(html):
        yield Token("text", _text(html[at:]))


def _past_other(html: str, begin: int, absent: set[str]) -> int:
    """The end of a comment, declaration or similar markup; `begin` if it is not markup. A closing delimiter that was
    not found is added to `absent`, and is not searched for again."""
    if html[begin + 1] not in "!?/":
        return begin
    for opening, closing in _OTHERS:
        if closing not in absent and html.startswith(opening, begin):
            # <!--> is a complete comment too.
            end = html.find(closing, begin + 2)
            if end >= 0:
                return end + len(closing)
            absent.add(closing)
    return begin


def _text(raw: str) -> str:
    return unescape(raw) if "&" in raw else raw


def attributes(raw: str) -> dict[str, str]:
    """The attributes of a tag by name; "" for those without a value. The first of several with the same name counts."""
    found: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(raw):
        name, *values = match.groups()
        found.setdefault(name.lower(), _text(next((value for value in values if value is not None), "")))
    return found
