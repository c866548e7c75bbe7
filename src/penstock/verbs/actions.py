"""Bulk actions: one verb on all documents that match, done by a worker, in short transactions.

The documents are chosen once, at the beginning. A worker that dies leaves the action to another one, which goes on:
what was done to a document and that it was done are one transaction.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Literal

import msgspec

from penstock.errors import LeaseLost, NotFound, StorageError, UsageError
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import actions, cancellations, dead_letters, deletions, restarts, runs
from penstock.ledger.engine.actions import Act, Action, Held
from penstock.model.nouns import DocumentId
from penstock.verbs import arguments
from penstock.verbs.changing import change
from penstock.verbs.replays import replayer
from penstock.verbs.scope import Scope, record
from penstock.verbs.selection import Selection, counted, pages, selection

VERBS = ("retry", "cancel", "delete", "discard")
BATCH = 200
"""The number of documents of one transaction."""
LEASE_S = 10.0
LOOK_S = 1.0
MOST_IDS = 10_000
COUNTED = 1_000_000
FAILURES = 100


class Criteria(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which documents: those that meet all criteria."""

    status: str | None = None
    collection: str | None = None
    name: str | None = None
    filter: dict[str, Any] | None = None
    parent: str | None = None
    """The id of the document that contains them."""
    reason: str | None = None
    """Why they failed: the reason of their dead letters."""


class _Request(msgspec.Struct, frozen=True):
    criteria: Criteria | None
    values: dict[str, dict[str, Any]] | None = None
    workflow: str | None = None
    params: str | None = None


class ActionFailure(msgspec.Struct, frozen=True):
    document: str
    error: str


class ActionView(msgspec.Struct, frozen=True):
    """A bulk action, and how far it is."""

    id: str
    verb: str
    state: Literal["CHOOSING", "WORKING", "DONE", "CANCELLED", "FAILED"]
    total: int
    """The number of chosen documents. It grows while the state is CHOOSING."""
    changed: int
    unchanged: int
    """Documents to which the verb did not apply any more."""
    failed: int
    failures: list[ActionFailure]
    """The first hundred."""
    created_at: float
    finished_at: float | None


class DryRun(msgspec.Struct, frozen=True):
    """What an action would be about."""

    verb: str
    count: int
    exact: bool
    """False: there are at least so many."""


async def count_action(scope: Scope, verb: str, criteria: Criteria) -> DryRun:
    """Count the documents that an action would choose now, and change nothing."""
    _check_verb(verb)
    found = await counted(scope, _selection(criteria), COUNTED)
    return DryRun(verb, found.count, found.exact)


async def start_action(
    scope: Scope,
    verb: str,
    criteria: Criteria | None = None,
    *,
    ids: Sequence[str] | None = None,
    values: Mapping[str, Mapping[str, Any]] | None = None,
    workflow: str | None = None,
    params: str | None = None,
) -> ActionView:
    """Begin an action on the documents that meet the criteria, or on named ones (by their ids). The verbs are those of
    single documents: `retry` (with the same changes as there), `cancel`, `delete`, and `discard` for their dead
    letters. A worker does it. The result shows what became of it later: `action`."""
    _check_verb(verb)
    if (criteria is None) == (ids is None):
        raise UsageError("choose the documents of an action either by a filter or by their ids")
    if verb != "retry" and (values or workflow or params):
        raise UsageError(f"{verb}: only retry takes other values")
    if criteria is not None:
        if criteria == Criteria():
            raise UsageError("choose the documents: by collection, status, name, filter, parent or reason")
        _selection(criteria)
    named = None if ids is None else tuple(dict.fromkeys(arguments.texts("ids", ids)))
    if named is not None and not 1 <= len(named) <= MOST_IDS:
        raise UsageError(f"ids: use 1 to {MOST_IDS:,} of them")
    if verb == "retry":
        replayer(scope, workflow, params, values, None)
    request = _Request(criteria, {step: dict(one) for step, one in arguments.values(values).items()}, workflow, params)
    text = msgspec.json.encode(request).decode()
    start = actions.Start(scope.runtime.ulid(), scope.owner, verb, text, named)
    made = await scope.ledger.write(actions.START_ACTION, start)
    await record(scope, "action", made.id, {"verb": verb})
    return await action(scope, made.id)


async def action(scope: Scope, action_id: str) -> ActionView:
    """Return an action, with its progress and the first failures."""
    found = await scope.ledger.read(partial(actions.get, scope.owner), arguments.text("action", action_id))
    if found is None:
        raise NotFound(f"no action {action_id!r}")
    why = await scope.ledger.read(partial(actions.failures, scope.owner), found.id, FAILURES) if found.failed else []
    return _view(found, why)


async def list_actions(scope: Scope, *, limit: int = 100) -> list[ActionView]:
    """Return the newest actions, without their failures."""
    found = await scope.ledger.read(partial(actions.newest, scope.owner), arguments.count("limit", limit))
    return [_view(one, []) for one in found]


async def cancel_action(scope: Scope, action_id: str) -> ActionView:
    """End an action. What it has done stays."""
    await action(scope, action_id)
    await scope.ledger.write(actions.CANCEL_ACTION, (scope.owner, action_id))
    return await action(scope, action_id)


async def run_actions(scope: Scope) -> int:
    """Do the actions of all owners that nobody works on. Return how many."""
    done = 0
    # An idle worker only reads.
    while not scope.resources.stopping and await scope.ledger.read(actions.is_waiting):
        token = scope.runtime.token()
        found = await scope.ledger.write(actions.TAKE_ACTION, actions.Take(token, LEASE_S))
        if found is None:
            break
        held = Held(found.id, token, LEASE_S)
        try:
            await _Doing(Scope(scope.resources, found.owner), found, held).run()
            done += 1
        except LeaseLost:
            continue
        except BaseException:
            with suppress(StorageError):
                await scope.ledger.write(actions.LET_ACTION_GO, held)
            raise
    return done


async def follow_actions(scope: Scope) -> None:
    """Do actions until cancelled."""
    while True:
        await scope.runtime.sleep(LOOK_S)
        try:
            await run_actions(scope)
        except Exception as error:
            logging.getLogger("penstock").warning("a bulk action was interrupted, and goes on later: %s", error)
            await scope.runtime.sleep(LEASE_S)


class _Marking:
    """The ledger for the verbs of an action: each write also notes what became of the documents."""

    def __init__(self, ledger: Ledger, held: Held, batch: Mapping[DocumentId, int]) -> None:
        self.read = ledger.read
        self.left = dict(batch)
        self._ledger = ledger
        self._held = held

    async def write(self, verb: Any, item: Any) -> Any:
        if isinstance(item, restarts.Retry):
            ids = [one.id for one in item.submission.documents]
        else:
            ids = list(item.documents)
        mine = tuple((self.left[one], one) for one in ids if one in self.left)
        result = await self._ledger.write(actions.ACT, Act(self._held, mine, verb, item))
        if result is None:
            raise LeaseLost("the action was cancelled, or another process does it")
        for _, one in mine:
            self.left.pop(DocumentId(one))
        return result

    async def note(self, error: str | None = None) -> None:
        """Note the rest: the verb does not apply to them, or failed."""
        items = tuple((ordinal, one) for one, ordinal in self.left.items())
        if await self._ledger.write(actions.ACT, Act(self._held, items, error=error)) is None:
            raise LeaseLost("the action was cancelled, or another process does it")
        self.left.clear()

    async def despite_full_disk(self, call: Callable[[], Awaitable[Any]]) -> Any:
        return await self._ledger.despite_full_disk(call)


class _Doing:
    """One action that this process works on."""

    def __init__(self, scope: Scope, one: Action, held: Held) -> None:
        self._scope = scope
        self._action = one
        self._held = held
        self._request = msgspec.json.decode(one.request, type=_Request)

    async def run(self) -> None:
        if self._action.state == actions.CHOOSING:
            await self._choose()
        look = partial(actions.waiting, self._scope.owner)
        while batch := await self._scope.ledger.read(look, self._action.id, BATCH):
            await self._do({document: ordinal for ordinal, document in batch})
        await self._scope.ledger.write(actions.END_ACTION, self._held)

    async def _choose(self) -> None:
        """Documents that are submitted meanwhile are not chosen, because their ids are larger."""
        assert self._request.criteria is not None
        async for page in pages(self._scope, _selection(self._request.criteria, self._action.place)):
            await self._chosen(tuple(one.document.id for one in page), over=False)
        await self._chosen((), over=True)

    async def _chosen(self, ids: tuple[str, ...], *, over: bool) -> None:
        if not await self._scope.ledger.write(actions.CHOOSE, actions.Choice(self._held, ids, over)):
            raise LeaseLost("the action was cancelled, or another process does it")

    async def _do(self, batch: dict[DocumentId, int]) -> None:
        marking = _Marking(self._scope.ledger, self._held, batch)
        inner = copy(self._scope)
        inner.ledger = marking  # type: ignore[assignment]
        try:
            await self._apply(inner, tuple(batch))
            await marking.note()
        except UsageError as error:
            if len(batch) == 1:
                await marking.note(str(error)[:2_000])
                return
            # The reason is one document: do the others.
            for document, ordinal in dict(marking.left).items():
                await self._do({document: ordinal})

    async def _apply(self, scope: Scope, documents: tuple[DocumentId, ...]) -> None:
        match self._action.verb:
            case "retry":
                request = self._request
                await replayer(scope, request.workflow, request.params, request.values, None).retry(documents)
            case "discard":
                await scope.ledger.write(dead_letters.DISCARD_OF, dead_letters.OfDocuments(scope.owner, documents))
            case verb:
                word = cancellations.CANCEL if verb == "cancel" else deletions.DELETE
                await change(scope, word, runs.Selected(scope.owner, documents))


def _check_verb(verb: str) -> None:
    if verb not in VERBS:
        raise UsageError(f"verb {str(verb)[:80]!r}: use one of {', '.join(VERBS)}")


def _selection(criteria: Criteria, after: str | None = None) -> Selection:
    return selection(
        status=criteria.status,
        collection=criteria.collection,
        name=criteria.name,
        filter=criteria.filter,
        after=after,
        parent=arguments.maybe("parent", criteria.parent) or "",
        reason=criteria.reason,
    )


def _view(found: Action, why: Sequence[tuple[str, str]]) -> ActionView:
    return ActionView(
        found.id, found.verb, found.state, found.total, found.changed, found.unchanged, found.failed,  # type: ignore[arg-type]
        [ActionFailure(*one) for one in why], found.created_at, found.finished_at,
    )  # fmt: skip
