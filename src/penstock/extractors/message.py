"""A message, whatever file it comes from, as Markdown."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.extractors.pieces import Piece, render
from penstock.extractors.properties import properties

_ADDRESS = re.compile(r"<?[^\s<>@]+@[^\s<>@]+>?$")


class Message(NamedTuple):
    subject: str
    headers: list[tuple[str, str]]
    body: Callable[[], str]
    """Makes the Markdown of its text."""
    attachments: list[str]
    """Names."""

    def properties(self) -> dict[str, Any]:
        headers = dict(self.headers)
        sender = headers.get("From", "")
        return properties(self.subject, _ADDRESS.sub("", sender).strip('" ') or sender, headers.get("Date"))

    def texts(self) -> list[str]:
        lines = [f"{name}: {value}" for name, value in self.headers if value]
        named = [Piece("item", name, 0, "-") for name in self.attachments]
        head = render([Piece("heading", self.subject, 1), Piece("paragraph", "\n".join(lines))])
        tail = render([Piece("paragraph", "Attachments:"), *named]) if named else ""
        return ["\n\n".join(part for part in (head, self.body().strip("\n"), tail) if part.strip())]


def plain_markdown(text: str) -> str:
    """Plain text as Markdown: empty lines separate its paragraphs."""
    paragraphs = text.replace("\r\n", "\n").replace("\f", " ").split("\n\n")
    return render(Piece("paragraph", one) for one in paragraphs)
