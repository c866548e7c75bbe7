"""Bring documents in line with the objects that events name.

An event only says which object to look at. What counts is the object as it is now: if it exists, it is submitted unless
its revision is known; if it does not, its document is deleted. So events may come twice, late and in any order."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Literal, NamedTuple

import msgspec

from penstock.config import check_name
from penstock.errors import (
    Away,
    ConfigError,
    IntakePaused,
    PenstockError,
    Refused,
    SourceAway,
    SourceChanged,
    SourceDenied,
    SourceError,
    TooMuch,
    UsageError,
)
from penstock.intake import FULL
from penstock.intake_items import Receipt, SubmitItem
from penstock.ledger.engine import deletions, forgotten, revisions, runs
from penstock.net.buckets import SCHEMES as BUCKETS
from penstock.registry import split
from penstock.sources.base import Findable, Found, Known, Revised, Source
from penstock.streams.notifications import BAD_EVENT, ObjectEvent, newest
from penstock.verbs import arguments
from penstock.verbs.accepting import Order, accept
from penstock.verbs.changing import change
from penstock.verbs.scope import Scope, chosen_collection

LOOKS = 16
"""The number of objects that are looked at side by side."""
ROUNDS = 3
"""An object that changes while its document is submitted is looked at again so many times. Then it waits."""

FORBIDDEN = "place_not_allowed"


class Outcome(msgspec.Struct, frozen=True):
    """What an event led to."""

    kind: Literal["accepted", "unchanged", "deleted", "gone", "refused", "away"]
    """`gone`: there is no such object, and no document. `refused`: another attempt cannot help. `away`: another attempt
    may help."""
    reason: str = ""
    """The short word that dead letters are counted by."""
    error: str = ""


class Rules(msgspec.Struct, frozen=True):
    """What an operator allows events to do."""

    owner: str | None = None
    """The only owner of documents. None: the one that the event names, or else the configured one."""
    places: tuple[str, ...] = ()
    """The buckets, or prefixes of URIs, whose objects are read. None: all that the credentials allow."""


class _Target(NamedTuple):
    """An object to look at. If the key of an event may be encoded or not, there are two of them."""

    uri: str
    event: ObjectEvent


class ObjectEvents:
    """Follows events, for any number of owners."""

    def __init__(self, scope_of: Callable[[str | None], Scope], order: Order, rules: Rules) -> None:
        """`scope_of` returns the verbs of an owner; those of the configured owner for None."""
        self._scope_of = scope_of
        self._order = order
        self._rules = rules
        self._sources: dict[str, Source | None] = {}
        """None: nothing can read what the URI names."""
        named = {split(place)[0] for place in rules.places}
        self._expected = named & set(BUCKETS) or {"s3"}
        """Schemes of objects that the operator wants to be read."""
        self._has_access = False
        """The credentials allowed something: a refusal is about one object or bucket, and not about our key."""

    @property
    def fixed_owner(self) -> str | None:
        return self._rules.owner

    async def follow(self, events: Sequence[ObjectEvent]) -> list[Outcome]:
        """Return the outcome of each event, in order. Raises StorageError and ConfigError."""
        outcomes: dict[tuple[str | None, str], Outcome] = {}
        owners: dict[str | None, list[ObjectEvent]] = {}
        for event in newest(events):
            refused = self._refused(event)
            if refused is not None:
                outcomes[event.owner, event.uri] = refused
            else:
                owners.setdefault(self._rules.owner or event.owner, []).append(event)
        for owner, some in owners.items():
            found = await self._of_owner(self._scope_of(owner), some)
            outcomes.update(((event.owner, event.uri), found[event.uri]) for event in some)
        return [outcomes[event.owner, event.uri] for event in events]

    def _refused(self, event: ObjectEvent) -> Outcome | None:
        if event.owner is not None:
            try:
                check_name("owner", event.owner)
            except ConfigError as error:
                return Outcome("refused", BAD_EVENT, str(error))
            if self._rules.owner not in (None, event.owner):
                return Outcome(
                    "refused", "wrong_owner", f"the event names the owner {event.owner!r}, which is not allowed here"
                )
        if "\0" in event.uri or arguments.is_long(event.uri):
            return Outcome("refused", BAD_EVENT, "the URI of the object is too long, or contains a NUL")
        if self._rules.places and not any(_is_within(event.uri, place) for place in self._rules.places):
            return Outcome("refused", "place_not_allowed", f"{event.uri} is in none of the allowed buckets")
        return None

    async def _of_owner(self, scope: Scope, events: Sequence[ObjectEvent]) -> dict[str, Outcome]:
        collection = chosen_collection(scope, self._order.collection)
        away = await scope.ledger.read(partial(forgotten.sources, scope.owner), collection)
        targets = {uri: _Target(uri, event) for event in events for uri in (event.literal, event.uri) if uri}
        outcomes = {uri: Outcome("unchanged") for uri in targets if uri in away}
        left = [target for uri, target in targets.items() if uri not in away]
        for _ in range(ROUNDS):
            if not left:
                break
            left = [targets[uri] for uri in await self._round(scope, collection, left, outcomes)]
        for target in left:
            outcomes[target.uri] = Outcome("away", "changing", f"{target.uri}: it changes again and again")
        return {event.uri: _combined(event, outcomes) for event in events}

    async def _round(
        self, scope: Scope, collection: str, targets: Sequence[_Target], outcomes: dict[str, Outcome]
    ) -> list[str]:
        """Set the outcomes of these objects. Return those to look at again."""
        look = partial(revisions.of, scope.owner)
        known = await scope.ledger.read(look, collection, [target.uri for target in targets])
        places = asyncio.Semaphore(LOOKS)

        async def seen(target: _Target) -> Found | Outcome | None:
            before = known.get(target.uri)
            if target.event.etag and before is not None and before.revision == f"etag {target.event.etag}":
                return Outcome("unchanged")
            async with places:
                return await self._look(scope, target.uri)

        items, gone = list[_Found](), list[str]()
        for target, there in zip(targets, await asyncio.gather(*map(seen, targets)), strict=True):
            before = known.get(target.uri)
            if isinstance(there, Outcome):
                outcomes[target.uri] = there
            elif there is None and before is not None:
                outcomes[target.uri] = Outcome("deleted")
                gone.append(target.uri)
            elif there is None:
                # Unless it was deleted a moment ago.
                outcomes.setdefault(target.uri, Outcome("gone"))
            elif before is not None and there.revision and before.revision == there.revision:
                outcomes.setdefault(target.uri, Outcome("unchanged"))
            elif (source := self._source(scope, target.uri)) is not None:
                items.append(_Found(source, there, target.event))
        replaced = await self._submit(scope, items, outcomes)
        if gone:
            chosen = runs.Selected(scope.owner, tuple(known[uri].document for uri in gone))
            await change(scope, deletions.DELETE, chosen)
        # Another process may have looked at the object later than we, and have submitted or deleted before us: whoever
        # writes last looks again.
        return [*replaced, *gone]

    async def _look(self, scope: Scope, uri: str) -> Found | Outcome | None:
        source: object = self._source(scope, uri)
        if not isinstance(source, Findable):
            return Outcome("refused", BAD_EVENT, f"{uri}: events name objects in buckets, such as s3://BUCKET/KEY")
        try:
            found = await source.find(uri)
        except Away as error:
            return Outcome("away", error.reason, f"{uri}: {error}")
        except SourceError as error:
            return self._unreadable(uri, error)
        self._has_access = True
        return found

    async def _submit(self, scope: Scope, items: "Sequence[_Found]", outcomes: dict[str, Outcome]) -> list[str]:
        """Submit the objects. Return the URIs of those that have replaced another version."""
        if not items:
            return []
        try:
            receipts = await accept(scope, self._order, [item.submitted() for item in items])
        except (TooMuch, Away, IntakePaused) as error:
            outcomes.update((item.found.uri, Outcome("away", "refused", str(error))) for item in items)
            return []
        except ConfigError:
            raise
        except (UsageError, Refused) as error:
            if len(items) > 1:
                # One of them is to blame, and the others must not suffer.
                return [uri for item in items for uri in await self._submit(scope, [item], outcomes)]
            outcomes[items[0].found.uri] = Outcome("refused", BAD_EVENT, str(error))
            return []
        for item in items:
            outcomes[item.found.uri] = self._outcome(item, receipts[item.found.uri])
        return [item.found.uri for item in items if receipts[item.found.uri].outcome == "changed"]

    def _outcome(self, item: "_Found", receipt: Receipt) -> Outcome:
        if receipt.outcome == "skipped":
            return Outcome("unchanged")
        if receipt.id is not None:
            return Outcome("accepted")
        problem = receipt.problem or item.found.uri
        if isinstance(item.error, SourceError):
            return self._unreadable(item.found.uri, item.error)
        if "more than its quota of" in problem:
            return Outcome("refused", "quota_exceeded", problem)
        return Outcome("away", "disk_full", problem) if FULL in problem else Outcome("refused", BAD_EVENT, problem)

    def _unreadable(self, uri: str, error: SourceError) -> Outcome:
        said = f"{uri}: {error}"
        if isinstance(error, SourceAway | SourceChanged):
            return Outcome("away", "away", said)
        if isinstance(error, SourceDenied):
            # If nothing was ever allowed, the key is wrong, and no object is to blame.
            return Outcome("refused" if self._has_access else "away", "access_denied", said)
        return Outcome("refused", "object_unreadable", said)

    def _source(self, scope: Scope, uri: str) -> Source | None:
        scheme, rest = split(uri)
        root = f"{scheme}://{rest.partition('/')[0]}"
        if root not in self._sources:
            try:
                [self._sources[root]] = scope.resources.make_sources([root], (), ())
            except ConfigError:
                # What is wrong is here: a missing package, or credentials. But a message that names a service that
                # nobody has set up must not stop the others.
                if scheme in self._expected:
                    raise
                self._sources[root] = None
            except UsageError:
                self._sources[root] = None
        return self._sources[root]


class _Found:
    """An object that is there. As a source, it reads this one, and keeps the error."""

    problems: Sequence[str] = ()
    repeatable = True

    def __init__(self, source: Source, found: Found, event: ObjectEvent) -> None:
        self.found = found
        self.event = event
        self.error: PenstockError | None = None
        self._source = source

    def submitted(self) -> SubmitItem:
        metadata = arguments.metadata(dict(self.event.metadata))
        return SubmitItem(self, self.found, None, metadata, isinstance(self._source, Revised))

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        yield self.found

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        self.error = None
        try:
            async with aclosing(self._source.read(found)) as pieces:
                async for piece in pieces:
                    yield piece
        except PenstockError as error:
            self.error = error
            raise

    def learned(self, found: Found) -> Found:
        return self._source.learned(found) if isinstance(self._source, Revised) else found


def _combined(event: ObjectEvent, outcomes: dict[str, Outcome]) -> Outcome:
    """The outcome of an event, of those of its objects."""
    both = [outcomes[uri] for uri in (event.uri, event.literal) if uri]
    for kind in ("away", "accepted", "deleted", "unchanged"):
        for one in both:
            if one.kind == kind:
                return one
    refused = next((one for one in both if one.kind == "refused"), None)
    if refused is None and event.required:
        return Outcome("refused", "object_missing", f"{event.uri}: there is no such object")
    return refused or both[0]


def _is_within(uri: str, place: str) -> bool:
    return uri == place or uri.startswith(place if place.endswith("/") else f"{place}/")
