"""Retry and replay: run documents that failed again, in batches, with the same or with other values.

The same run continues if nothing has changed that affects its output. Otherwise a new run starts, which reuses all
artifacts that would be equal.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from penstock.errors import NotFound
from penstock.intake import RunSpec, submission
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import dead_letters, documents, restarts, submissions, work
from penstock.ledger.engine.dead_letters import Alike, ReplayableLetter
from penstock.ledger.engine.documents import Origin
from penstock.model import settings
from penstock.model.nouns import DocumentId, Owner, RunId, Workflow
from penstock.model.states import TEXTLESS
from penstock.runtime import Runtime
from penstock.verbs import arguments
from penstock.verbs.changes import Changes
from penstock.verbs.message_letters import follow_letters
from penstock.verbs.scope import Scope
from penstock.workflows.load import decode

BATCH = 500
"""The maximum number of documents in one transaction."""
LISTED = 1_000
"""The maximum number of ids in a result. Further ones are only counted."""


class Replay(msgspec.Struct):
    """What a replay did, or would do with `dry_run`."""

    replayed: list[DocumentId] = []
    """The first thousand of them."""
    count: int = 0
    resumed: int = 0
    """The number of runs that continue at their checkpoint."""
    started: int = 0
    """The number of new runs, started because something that affects their output has changed."""
    events: int = 0
    """The number of events that are delivered again. `count` counts documents only."""
    messages: int = 0
    """The number of messages of streams that were followed. Those that fail again stay open."""
    by_reason: dict[str, int] = {}
    notes: list[str] = []
    dry_run: bool = False


class Discard(msgspec.Struct):
    """What a discard did."""

    discarded: list[int] = []
    """The first thousand of them."""
    count: int = 0
    by_reason: dict[str, int] = {}
    dry_run: bool = False


Reorder = Callable[[Origin, Workflow, Changes], tuple[RunSpec, str | None]]
"""Makes the RunSpec for another run of a document with this origin and workflow, and a note for the user or None."""


Follow = Callable[[Sequence[int]], Awaitable[set[int]]]
"""Follows the messages of these letters again, and returns the letters that are closed now."""


class Replayer:
    """One call of `retry` or `replay`."""

    def __init__(
        self,
        owner: Owner,
        ledger: Ledger,
        runtime: Runtime,
        reorder: Reorder,
        changes: Changes,
        follow: Follow,
    ) -> None:
        self._owner = owner
        self._ledger = ledger
        self._runtime = runtime
        self._reorder = reorder
        self._changes = changes
        self._follow = follow
        self._run_specs: dict[Origin, RunSpec] = {}
        self.answer = Replay()

    async def retry(self, ids: Sequence[DocumentId]) -> set[DocumentId]:
        """Retry documents, however their runs ended."""
        origins = await self._ledger.read(lambda c: documents.origins(self._owner, c, ids))
        for origin in set(origins.values()):
            await self._run_spec(origin)
        done: set[DocumentId] = set()
        for i in range(0, len(ids), BATCH):
            done |= await self._again({document: origins[document] for document in ids[i : i + BATCH]})
        return done

    async def replay(self, letters: Sequence[int] | None, reason: str | None, *, dry_run: bool) -> Replay:
        """Replay dead letters by number, by reason, or all of them."""
        self.answer.dry_run = dry_run
        # Validate first: if a value is not valid for one of the workflows, nothing is changed.
        for alike in await self._waiting(letters, reason):
            spec = await self._run_spec(alike.origin) if alike.origin is not None else None
            if dry_run:
                self._tell(alike, spec)
        if not dry_run:
            async for page in _pages(self._owner, self._ledger, letters, reason):
                await self._events([letter for letter in page if letter.origin is None and not letter.is_message])
                await self._messages([letter for letter in page if letter.is_message])
                done = await self._again({x.document_id: x.origin for x in page if x.origin is not None})
                for letter in page:
                    if letter.origin is not None and letter.document_id in done:
                        self._tell(_alike(letter), await self._run_spec(letter.origin))
                        self.answer.replayed += [letter.document_id] if self.answer.count <= LISTED else []
        return self.answer

    async def _events(self, letters: Sequence[ReplayableLetter]) -> None:
        if letters:
            replay = dead_letters.EventReplay(self._owner, tuple(letter.id for letter in letters))
            await self._ledger.write(dead_letters.REPLAY_EVENTS, replay)
            for letter in letters:
                self._tell(_alike(letter), None)

    async def _messages(self, letters: Sequence[ReplayableLetter]) -> None:
        if letters:
            closed = await self._follow([letter.id for letter in letters])
            for letter in letters:
                if letter.id in closed:
                    self._tell(_alike(letter), None)

    async def _waiting(self, letters: Sequence[int] | None, reason: str | None) -> list[Alike]:
        if letters is None:
            return await self._ledger.read(lambda c: dead_letters.waiting(self._owner, c, reason or ""))
        return [_alike(letter) for letter in await _named(self._owner, self._ledger, letters)]

    def _tell(self, alike: Alike, spec: RunSpec | None) -> None:
        answer, count = self.answer, alike.count
        if alike.is_message:
            answer.messages += count
        elif alike.origin is None or spec is None:
            answer.events += count
        else:
            answer.count += count
            answer.resumed += count if _goes_on(alike.origin, spec) else 0
            answer.started += 0 if _goes_on(alike.origin, spec) else count
        answer.by_reason[alike.reason] = answer.by_reason.get(alike.reason, 0) + count

    async def _run_spec(self, origin: Origin) -> RunSpec:
        origin = _any_format(origin)
        if origin not in self._run_specs:
            body = await self._ledger.read(work.snapshot, origin.snapshot)
            self._run_specs[origin], note = self._reorder(origin, decode(body), self._changes)
            if note is not None and note not in self.answer.notes:
                self.answer.notes.append(note)
        return self._run_specs[origin]

    async def _again(self, origins: Mapping[DocumentId, Origin]) -> set[DocumentId]:
        """Retry documents, in one transaction for each origin."""
        alike: dict[Origin, list[DocumentId]] = {}
        for document, origin in origins.items():
            alike.setdefault(_any_format(origin), []).append(document)
        done: set[DocumentId] = set()
        for origin, ids in alike.items():
            spec = await self._run_spec(origin)
            part = submission(spec, tuple(_again(document, RunId(self._runtime.ulid())) for document in ids))
            retried = await self._ledger.write(restarts.RETRY, restarts.Retry(part))
            done |= retried
        return done


def replayer(
    scope: Scope,
    workflow: str | None,
    params: str | None,
    values: Mapping[str, Mapping[str, Any]] | None,
    password: str | None,
) -> Replayer:
    for what, text in (("workflow", workflow), ("params", params), ("password", password)):
        arguments.maybe(what, text)
    changes = Changes(workflow, params, arguments.values(values), password)
    reorder = partial(scope.resources.run_specs.again, scope.owner)
    return Replayer(scope.owner, scope.ledger, scope.runtime, reorder, changes, partial(follow_letters, scope))


async def discard(
    owner: Owner, ledger: Ledger, letters: Sequence[int] | None, reason: str | None, *, dry_run: bool
) -> Discard:
    """Discard dead letters by number, by reason, or all of them. Their documents stay FAILED."""
    answer = Discard(dry_run=dry_run)
    async for page in _pages(owner, ledger, letters, reason):
        ids = tuple(letter.id for letter in page)
        done = set(ids)
        if not dry_run:
            done = await ledger.write(dead_letters.DISCARD, (owner, ids))
        for letter in page:
            if letter.id in done:
                answer.count += 1
                answer.by_reason[letter.reason] = answer.by_reason.get(letter.reason, 0) + 1
                answer.discarded += [letter.id] if answer.count <= LISTED and not dry_run else []
    return answer


async def _pages(
    owner: Owner, ledger: Ledger, letters: Sequence[int] | None, reason: str | None
) -> AsyncIterator[list[ReplayableLetter]]:
    """Yield open dead letters in batches, oldest first. Dead letters that are added meanwhile, because a replay failed
    again, are not included."""
    if letters is not None:
        named = await _named(owner, ledger, letters)
        for i in range(0, len(named), BATCH):
            yield named[i : i + BATCH]
        return
    after, until = 0, await ledger.read(lambda c: dead_letters.last(owner, c))
    look = partial(dead_letters.page, owner)
    while page := await ledger.read(look, reason or "", after=after, until=until, count=BATCH):
        yield page
        after = page[-1].id


async def _named(owner: Owner, ledger: Ledger, letters: Sequence[int]) -> list[ReplayableLetter]:
    found = await ledger.read(lambda c: dead_letters.named(owner, c, letters))
    missing = set(letters) - {letter.id for letter in found}
    if missing:
        raise NotFound(f"no open dead letter {min(missing)}: `penstock dlq list` shows them")
    return found


def _alike(letter: ReplayableLetter) -> Alike:
    return Alike(letter.reason, letter.origin, letter.is_message, 1)


def _goes_on(origin: Origin, spec: RunSpec) -> bool:
    return settings.same(origin.settings, spec.settings, origin.media_type) and origin.status not in TEXTLESS


def _any_format(origin: Origin) -> Origin:
    """Documents of all formats can share a run spec and a transaction."""
    return msgspec.structs.replace(origin, media_type=None)


def _again(document: DocumentId, run: RunId) -> submissions.NewDocument:
    """The fields that a retry needs. The ledger has the others."""
    return submissions.NewDocument(document, run, "", "", "", 0, None, {})
