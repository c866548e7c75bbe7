"""The rules of a `robots.txt` for one user agent, as RFC 9309 defines them."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

AGENT = "penstock"
MAX_DELAY_S = 60.0
LINES = 10_000
"""Later lines of the file are not read."""


class _Rule(NamedTuple):
    pattern: str
    allow: bool

    def matches(self, path: str) -> bool:
        """Whether the path begins with the pattern. Not by a regular expression: with many `*` it would take for
        ever."""
        first, *rest = self.pattern.removesuffix("$").split("*")
        if not path.startswith(first):
            return False
        place = len(first)
        if not self.pattern.endswith("$"):
            for part in rest:
                if (found := path.find(part, place)) < 0:
                    return False
                place = found + len(part)
            return True
        if not rest:
            return place == len(path)
        for part in rest[:-1]:
            if (found := path.find(part, place)) < 0:
                return False
            place = found + len(part)
        return path.endswith(rest[-1]) and len(path) - len(rest[-1]) >= place


class Rules(NamedTuple):
    rules: Sequence[_Rule] = ()
    delay_s: float = 0.0
    """The `Crawl-delay`, at most a minute."""

    def allow(self, url: str) -> bool:
        """Whether the URL may be fetched. The longest matching rule decides, and an `Allow` where two are equal."""
        parts = urlsplit(url)
        path = _normal(parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        found = [rule for rule in self.rules if rule.matches(path)]
        return max(found, key=lambda rule: (len(rule.pattern), rule.allow)).allow if found else True


def parse(text: str, agent: str = AGENT) -> Rules:
    """The rules of the groups that name this agent, or else those for all agents."""
    own: list[tuple[str, str]] = []
    other: list[tuple[str, str]] = []
    named = False
    agents: set[str] = set()
    in_rules = False
    for field, value in _fields(text.splitlines()[:LINES]):
        if field == "user-agent":
            agents, in_rules = (set() if in_rules else agents), False
            agents.add(value.lower())
            named = named or value.lower() == agent
        elif field in ("allow", "disallow", "crawl-delay"):
            in_rules = True
            if agent in agents:
                own.append((field, value))
            if "*" in agents:
                other.append((field, value))
    return _rules(own if named else other)


def _fields(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        field, colon, value = line.lstrip("\ufeff").partition("#")[0].partition(":")
        if colon:
            yield field.strip().lower(), value.strip()


def _rules(fields: Iterable[tuple[str, str]]) -> Rules:
    rules, delay = [], 0.0
    for field, value in fields:
        if field == "crawl-delay":
            with suppress(ValueError):
                delay = min(max(float(value), 0.0), MAX_DELAY_S)
        elif value:
            rules.append(_Rule(_normal(value), field == "allow"))
    return Rules(tuple(rules), delay)


def _normal(path: str) -> str:
    """The path with the same characters encoded, so that `/a%2Db` equals `/a-b`."""
    return quote(unquote(path, errors="replace"), safe="/*$?=&;:@!+,'()~-._")
