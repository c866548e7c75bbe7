"""Documents that a call chooses by collection, status, name, path or filter, instead of naming each."""

import fnmatch
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from penstock.errors import UsageError
from penstock.ledger.engine import documents
from penstock.ledger.engine.documents import Counted, Examined, Listed
from penstock.ledger.reads import related
from penstock.model.states import DocumentStatus
from penstock.search.filters import Fields, Predicate, compiled, parts
from penstock.sources.folder import printable
from penstock.verbs import arguments, views
from penstock.verbs.scope import Scope
from penstock.verbs.views import DocumentView

PAGE = 500
COUNTED = 10_000
"""The number of documents that a count looks at. It is not exact if there are more."""
_WILD = re.compile(r"[*?\[]")
_WILD_PART = re.compile(r"[*?]|\[.*")
"""What ends a literal part of a pattern of names. Behind a bracket, nothing is taken to be literal."""
_LAST = "\U0010ffff"
_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^\]]+\]|.", re.DOTALL)
_WORDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


_RELATED: dict[str, Callable[..., Examined]] = {
    "parent": related.inside,
    "batch": related.of_batch,
    "group": related.of_group,
    "updated_since": related.updated_since,
}


@dataclass(frozen=True)
class Selection:
    """Validated criteria. A document must meet all of them."""

    status: str = ""
    collection: str = ""
    name: str | None = None
    """A glob pattern."""
    accepts: Predicate | None = None
    parts: tuple[str, ...] = ()
    """Texts of which the metadata of every accepted document contain one. Empty: this is not known."""
    part_of_name: str = ""
    """A text that the name of every accepted document contains. Empty: this is not known."""
    before: str = ""
    """Only documents with a smaller id: those that are listed after it."""
    paths: "tuple[PathPattern, ...]" = ()
    """Patterns of which the source must match one. Empty: any source."""
    relation: tuple[str, str | float] | None = None
    """What it must belong to: a `parent` or `group` by id, a `batch` by name, or `updated_since` a time."""
    reason: str = ""
    """The reason for which it must have failed, that of its open dead letter. Empty: any."""

    @property
    def by_ledger(self) -> bool:
        """Whether the ledger alone can select the documents."""
        return self.name is None and self.accepts is None and not self.paths and not self.related

    @property
    def related(self) -> bool:
        """Whether the documents are found by what belongs to them."""
        return self.relation is not None or bool(self.reason)


def selection(
    *,
    status: str | None = None,
    collection: str | None = None,
    name: str | None = None,
    filter: Mapping[str, Any] | None = None,
    after: str | None = None,
    path: str | None = None,
    parent: str = "",
    batch: str | None = None,
    group: str | None = None,
    updated_since: float | None = None,
    reason: str | None = None,
) -> Selection:
    """Validate criteria. Raises UsageError."""
    arguments.maybe("name", name)
    arguments.seconds("updated_since", updated_since)
    values = {
        "parent": parent or None,
        "batch": arguments.maybe("batch", batch),
        "group": (arguments.maybe("group", group) or "").upper() or None,
        "updated_since": updated_since,
    }
    relations = [(kind, value) for kind, value in values.items() if value is not None]
    if len(relations) + bool(reason) > 1:
        raise UsageError(f"choose documents by one of {', '.join(values)} and reason, not by several")
    return Selection(
        arguments.one_of("status", status, DocumentStatus) or "",
        arguments.maybe("collection", collection) or "",
        name,
        compiled(filter) if filter else None,
        tuple(parts(filter)) if filter else (),
        max(_WILD_PART.split(name), key=len) if name else "",
        (arguments.maybe("after", after) or "").upper(),
        patterns(path) if path is not None else (),
        relations[0] if relations else None,
        arguments.maybe("reason", reason) or "",
    )


async def pages(scope: Scope, chosen: Selection, wanted: int = PAGE) -> AsyncIterator[list[Listed]]:
    """Yield the matching documents, newest first. A page may be empty: it stands for the documents that were looked at,
    as many as `_page_sizes` says. `wanted`: the number of documents that the caller needs."""
    read: Callable[..., Examined] = partial(
        documents.examined,
        scope.owner,
        status=chosen.status,
        collection=chosen.collection,
        parts=chosen.parts,
        name=chosen.part_of_name,
    )
    if chosen.relation is not None:
        kind, value = chosen.relation
        look = _RELATED[kind]
        read = lambda connection, **page: look(scope.owner, connection, value, **page)  # noqa: E731
    elif chosen.reason:
        read = partial(related.failed_for, scope.owner, reason=chosen.reason)
    last: str | None = chosen.before
    for size in _page_sizes(chosen, wanted):
        if last is None:
            return
        page = await scope.ledger.read(read, before=last, count=size)
        yield [entry for entry in page.documents if _matches(chosen, entry)]
        last = page.last


def _page_sizes(chosen: Selection, wanted: int = PAGE) -> Iterator[int]:
    """The number of documents that each statement looks at: the first one few, because they may be all that is wanted.
    The database passes on only some of them if it knows a part of their metadata or of their name."""
    yield min(wanted, PAGE) if chosen.by_ledger else PAGE
    yield from repeat(10 * PAGE if (chosen.parts or chosen.part_of_name) and not chosen.related else PAGE)


def _matches(chosen: Selection, entry: Listed) -> bool:
    d = entry.document
    if chosen.name is not None and not fnmatch.fnmatchcase(d.name, chosen.name):
        return False
    if chosen.paths and not any(pattern.matches(d.source) for pattern in chosen.paths):
        return False
    if chosen.collection and d.collection != chosen.collection:
        return False
    if chosen.status and d.status != chosen.status:
        return False
    if chosen.accepts is None:
        return True
    metadata = (json.dumps(d.metadata),)
    place = (d.id, d.collection, d.name, d.source, d.media_type, d.size, d.status, d.pages, d.created_at)
    return chosen.accepts(Fields(*place, metadata))


async def counted(scope: Scope, chosen: Selection, most: int = COUNTED) -> Counted:
    """Count the matching documents, but look at no more than `most`."""
    if chosen.by_ledger:
        where = {"status": chosen.status, "collection": chosen.collection, "before": chosen.before}
        return await scope.ledger.read(partial(documents.counted, scope.owner), most=most, **where)
    if chosen == Selection(reason=chosen.reason):
        return await scope.ledger.read(partial(related.count_failed_for, scope.owner), chosen.reason, most)
    found, examined, sizes = 0, 0, _page_sizes(chosen)
    async for page in pages(scope, chosen):
        if examined >= most:
            return Counted(found, False)
        found, examined = found + len(page), examined + next(sizes)
    return Counted(found, True)


async def sourced(scope: Scope, chosen: Selection) -> AsyncIterator[list[DocumentView]]:
    """Yield the matching documents of a selection by path, in the order of their sources. Only sources that begin like
    the pattern are read."""
    read = partial(documents.sourced, scope.owner)
    for pattern in chosen.paths:
        for between in pattern.ranges():
            after = ("", "")
            while True:
                page = await scope.ledger.read(read, chosen.collection, between, after, PAGE)
                found = [one for one in page if pattern.matches(one.document.source)]
                yield [views.listed(one) for one in found if _matches(chosen, one)]
                if len(page) < PAGE:
                    break
                last = page[-1].document
                after = (last.source, last.id)


async def listed(scope: Scope, chosen: Selection) -> AsyncIterator[list[DocumentView]]:
    """Yield the matching documents: by source for a selection by path, else newest first."""
    if chosen.paths:
        async for some in sourced(scope, chosen):
            yield some
        return
    async for page in pages(scope, chosen):
        yield [views.listed(one) for one in page]


class PathPattern:
    """A pattern of sources. `*` and `?` do not match a slash; `**` does."""

    def __init__(self, pattern: str) -> None:
        try:
            self._expression = re.compile(_expression(pattern), re.DOTALL)
        except re.error:
            raise UsageError(f"path {pattern!r}: the part in brackets cannot be understood") from None
        self._literal = _WILD.split(pattern, maxsplit=1)[0]

    def matches(self, source: str) -> bool:
        return self._expression.fullmatch(source) is not None

    def ranges(self) -> list[tuple[str, str]]:
        """The sources that may match, as a first one and one after the last one."""
        if self._literal:
            return [(self._literal, self._literal + _LAST)]
        # A pattern that begins with a wildcard is one of sources that are not paths.
        return [("", "/"), ("0", _LAST)]


def is_pattern(text: str) -> bool:
    return _WILD.search(text) is not None


def patterns(path: str) -> tuple[PathPattern, ...]:
    """Return the patterns for a path with wildcards: one below the current folder, unless it is absolute, and one as
    written, for sources that are not paths."""
    given = arguments.text("path", path)
    if not given:
        raise UsageError("path: it is empty; use a pattern such as 'drafts/*.pdf'")
    whole = printable(os.path.join(os.getcwd(), given))
    # A wildcard has no meaning for the file system, so only the folders before the first one are made normal.
    folder = _WILD.split(whole, maxsplit=1)[0].rpartition("/")[0]
    absolute = os.path.normpath(folder or "/").rstrip("/") + whole[len(folder) :]
    return tuple(PathPattern(one) for one in dict.fromkeys((absolute, given)))


def _expression(pattern: str) -> str:
    """A glob pattern as a regular expression."""
    return "".join(_WORDS.get(part) or _bracketed(part) for part in _PARTS.findall(pattern))


def _bracketed(part: str) -> str:
    if not (part.startswith("[") and len(part) > 2):
        return re.escape(part)
    inner = part[1:-1].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
    return f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
