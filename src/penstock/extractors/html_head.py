"""The metadata of HTML: the title, the language and the `meta` elements of its head."""

from typing import Any

from penstock.extractors.html_tokens import attributes, tokens
from penstock.extractors.properties import properties

LARGEST = 1 << 17
"""Characters that are searched for the head."""
_NAMES = {
    "author": "author",
    "article:author": "author",
    "dc.creator": "author",
    "dcterms.creator": "author",
    "og:title": "title",
    "dc.title": "title",
    "dcterms.title": "title",
    "article:published_time": "created",
    "datepublished": "created",
    "dcterms.created": "created",
    "dc.date": "created",
    "date": "created",
    "article:modified_time": "modified",
    "dcterms.modified": "modified",
    "last-modified": "modified",
    "content-language": "language",
}


def head_properties(html: str) -> dict[str, Any]:
    found: dict[str, str] = {}
    title: list[str] | None = None
    for kind, content, more in tokens(html[:LARGEST]):
        if kind == "text":
            if title is not None:
                title.append(content)
        elif kind == "end" or content == "body":
            if content in ("head", "body"):
                break
            if content == "title" and title is not None:
                found.setdefault("title", "".join(title))
                title = None
        elif content == "title" and "title" not in found:
            title = []
        elif content == "html":
            given = attributes(more)
            if language := given.get("lang") or given.get("xml:lang"):
                found["language"] = language
        elif content == "meta":
            given = attributes(more)
            name = given.get("name") or given.get("property") or given.get("http-equiv") or given.get("itemprop") or ""
            if (key := _NAMES.get(name.lower())) and given.get("content", "").strip():
                found.setdefault(key, given["content"])
    return properties(**found)
