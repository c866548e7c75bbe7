"""Batches, groups, dead letters, actions, collections, keys, and what operators need."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client.connection import Connection, segment

if TYPE_CHECKING:
    from penstock.client.answers import CountedAction, ParameterSetView, Session, WorkflowView
    from penstock.ledger.engine.api_keys import ApiKey
    from penstock.ledger.engine.audit_log import AuditEntry
    from penstock.ledger.engine.dead_letters import DeadLetter
    from penstock.ledger.reads.batches import Batch, Group
    from penstock.ledger.reads.stats import ListedStep
    from penstock.upkeep.report import CheckReport
    from penstock.verbs.actions import ActionView
    from penstock.verbs.collections import CollectionView, Dropped
    from penstock.verbs.dead_letters import DeadLetters
    from penstock.verbs.groups import BatchStart, GroupView
    from penstock.verbs.keys import CreatedKey, Token
    from penstock.verbs.maintenance import Locks
    from penstock.verbs.replays import Discard, Replay
    from penstock.verbs.usage import UsageReport
    from penstock.verbs.views import Counts, WorkerView

T = TypeVar("T")

CHECK_S = 3600.0
LOOK_S = (0.1, 2.0)
"""The first and the longest pause between two looks at an action."""
Values = Mapping[str, Mapping[str, Any]]


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


class Operations:
    """The operations on many documents, and those for operators."""

    _connection: Connection

    async def status(self) -> "Counts":
        """Return the counts of documents and steps by status, and what waits on what."""
        from penstock.verbs.views import Counts

        found: Counts = await self._connection.json("GET", "status", Counts)
        return found

    async def session(self) -> "Session":
        """Return who the caller is, and what its key allows."""
        from penstock.client.answers import Session

        found: Session = await self._connection.json("GET", "session", Session)
        return found

    async def usage(self, *, days: int = 30) -> "UsageReport":
        """Return what was bought from providers and what was saved, by model and day."""
        from penstock.verbs.usage import UsageReport

        found: UsageReport = await self._connection.json("GET", "usage", UsageReport, query={"days": days})
        return found

    async def list_batches(self) -> "list[Batch]":
        """Return batches, newest first."""
        from penstock.ledger.reads.batches import Batch

        return await self._list("batches", "batches", Batch)

    async def start_batch(
        self,
        batch: str,
        *,
        workflow: str | None = None,
        params: str | None = None,
        values: Values | None = None,
        collection: str | None = None,
        priority: int = 0,
        again: bool = False,
    ) -> "BatchStart":
        """Start a workflow for all documents of a batch, with the arguments of `App.start_batch`."""
        from penstock.verbs.groups import BatchStart

        data = given(
            workflow=workflow, params=params, values=values, collection=collection, priority=priority, again=again
        )
        found: BatchStart = await self._connection.json(
            "POST", f"batches/{segment(batch)}/start", BatchStart, data=data
        )
        return found

    async def list_groups(self, *, batch: str | None = None, limit: int = 100) -> "list[Group]":
        """Return groups of runs that were started together, newest first."""
        from penstock.ledger.reads.batches import Group

        return await self._list("groups", "groups", Group, {"batch": batch, "limit": limit})

    async def group(self, group: str) -> "GroupView":
        """Return one group with its counts, durations, rate and estimated time left."""
        from penstock.verbs.groups import GroupView

        found: GroupView = await self._connection.json("GET", f"groups/{segment(group)}", GroupView)
        return found

    async def retry_group(self, group: str, *, cancelled: bool = False) -> int:
        """Continue the failed runs of a group (with `cancelled`, also the cancelled ones). Return their number."""
        query = {"cancelled": cancelled or None}
        return int((await self._connection.json("POST", f"groups/{segment(group)}/retry", query=query))["retried"])

    async def cancel_group(self, group: str) -> int:
        """Cancel the runs of a group that have not ended. Return their number."""
        return int((await self._connection.json("POST", f"groups/{segment(group)}/cancel"))["cancelled"])

    async def list_dead_letters(self, *, limit: int = 100) -> "DeadLetters":
        """Return the number of open dead letters for each reason, and the newest of them."""
        from penstock.verbs.dead_letters import DeadLetters

        found: DeadLetters = await self._connection.json("GET", "dead-letters", DeadLetters, query={"limit": limit})
        return found

    async def dead_letter(self, letter: int) -> "DeadLetter":
        """Return one dead letter with its error."""
        from penstock.ledger.engine.dead_letters import DeadLetter

        found: DeadLetter = await self._connection.json("GET", f"dead-letters/{letter:d}", DeadLetter)
        return found

    async def replay(
        self, letters: Sequence[int] | None = None, *, reason: str | None = None, dry_run: bool = False
    ) -> "Replay":
        """Continue the documents of dead letters, by number, by reason, or (with neither) of all of them."""
        from penstock.verbs.replays import Replay

        found: Replay = await self._on_letters("replay", Replay, letters, reason, dry_run)
        return found

    async def discard(
        self, letters: Sequence[int] | None = None, *, reason: str | None = None, dry_run: bool = False
    ) -> "Discard":
        """Close dead letters without another attempt, chosen as for `replay`."""
        from penstock.verbs.replays import Discard

        found: Discard = await self._on_letters("discard", Discard, letters, reason, dry_run)
        return found

    async def _on_letters(
        self, verb: str, kind: Any, letters: Sequence[int] | None, reason: str | None, dry_run: bool
    ) -> Any:
        async def done(chosen: dict[str, Any]) -> Any:
            return await self._connection.json(
                "POST", f"dead-letters/{verb}", kind, data={**chosen, "dry_run": dry_run}
            )

        if letters is not None or reason is not None:
            return await done(given(letters=None if letters is None else list(letters), reason=reason))
        whole = kind(dry_run=dry_run)
        for one in (await self.list_dead_letters(limit=1)).by_reason:
            _add(whole, await done({"reason": one}))
        return whole

    async def count_action(
        self,
        verb: str,
        *,
        status: str | None = None,
        collection: str | None = None,
        name: str | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> "CountedAction":
        """Count the documents that an action would change. `name` is a glob pattern, and `filter` a filter as for a
        search."""
        from penstock.client.answers import CountedAction

        chosen = given(status=status, collection=collection, name=name, metadata=filter)
        data = {"verb": verb, "filter": chosen, "dry_run": True}
        found: CountedAction = await self._connection.json("POST", "actions", CountedAction, data=data)
        return found

    async def start_action(
        self,
        verb: str,
        *,
        ids: Sequence[str] | None = None,
        status: str | None = None,
        collection: str | None = None,
        name: str | None = None,
        filter: Mapping[str, Any] | None = None,
        values: Values | None = None,
    ) -> "ActionView":
        """Begin `retry`, `cancel`, `delete` or `discard` on all documents with these ids, or that meet the criteria of
        `count_action`. A worker does it. `values`: for retry, other values, by step and name."""
        from penstock.verbs.actions import ActionView

        criteria = given(status=status, collection=collection, name=name, metadata=filter)
        chosen: dict[str, Any] = {"ids": list(ids)} if ids is not None else {"filter": criteria}
        data = given(verb=verb, values=values, **chosen)
        found: ActionView = await self._connection.json("POST", "actions", ActionView, data=data)
        return found

    async def action(self, action: str) -> "ActionView":
        """Return an action, with its progress and the first failures."""
        from penstock.verbs.actions import ActionView

        found: ActionView = await self._connection.json("GET", f"actions/{segment(action)}", ActionView)
        return found

    async def wait_action(self, action: str) -> "ActionView":
        """Return an action when it has ended."""
        runtime, pause = self._connection.runtime, LOOK_S[0]
        while (found := await self.action(action)).state in ("CHOOSING", "WORKING"):
            await runtime.sleep(pause)
            pause = min(LOOK_S[1], pause * 1.5)
        return found

    async def list_actions(self, *, limit: int = 100) -> "list[ActionView]":
        """Return actions, newest first."""
        from penstock.verbs.actions import ActionView

        return await self._list("actions", "actions", ActionView, {"limit": limit})

    async def cancel_action(self, action: str) -> "ActionView":
        """End an action. What it has done stays."""
        from penstock.verbs.actions import ActionView

        found: ActionView = await self._connection.json("POST", f"actions/{segment(action)}/cancel", ActionView)
        return found

    async def list_collections(self) -> "list[CollectionView]":
        """Return the collections with their counts."""
        from penstock.verbs.collections import CollectionView

        return await self._list("collections", "collections", CollectionView)

    async def collection(self, name: str) -> "CollectionView":
        """Return one collection with its counts."""
        from penstock.verbs.collections import CollectionView

        found: CollectionView = await self._connection.json("GET", f"collections/{segment(name)}", CollectionView)
        return found

    async def drop_collection(self, name: str) -> "Dropped":
        """Delete all documents of a collection, and the collection."""
        from penstock.verbs.collections import Dropped

        found: Dropped = await self._connection.json("DELETE", f"collections/{segment(name)}", Dropped)
        return found

    async def list_workflows(self) -> "list[WorkflowView]":
        """Return the workflows with the names of their steps."""
        from penstock.client.answers import WorkflowView

        return await self._list("workflows", "workflows", WorkflowView)

    async def list_parameter_sets(self) -> "list[ParameterSetView]":
        """Return the parameter sets with their values."""
        from penstock.client.answers import ParameterSetView

        return await self._list("parameter-sets", "parameter_sets", ParameterSetView)

    async def create_key(
        self,
        *,
        scopes: Sequence[str] = ("search", "read"),
        name: str = "",
        collections: Sequence[str] | None = None,
        expires_s: float | None = None,
    ) -> "CreatedKey":
        """Create an API key. `secret` of the result is the whole key, which is not shown again: if the connection is
        lost before it arrives, a key that nobody knows may be left, which can be revoked."""
        from penstock.verbs.keys import CreatedKey

        data = given(name=name, scopes=list(scopes), collections=collections and list(collections))
        data |= given(expires_in=expires_s)
        found: CreatedKey = await self._connection.json("POST", "keys", CreatedKey, data=data)
        return found

    async def list_keys(self) -> "AsyncGenerator[ApiKey, None]":
        """Yield the keys of the owner, those that were revoked too."""
        from penstock.client.documents import paged
        from penstock.ledger.engine.api_keys import ApiKey

        async with aclosing(paged(self._connection, "keys", "keys", ApiKey)) as found:
            async for key in found:
                yield key

    async def revoke_key(self, key: str) -> "ApiKey":
        """Revoke a key, by its id, with its tokens and sessions."""
        from penstock.ledger.engine.api_keys import ApiKey

        found: ApiKey = await self._connection.json("DELETE", f"keys/{segment(key)}", ApiKey)
        return found

    async def create_token(
        self,
        *,
        scopes: Sequence[str] = ("search", "read"),
        collections: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        expires_s: float = 3600,
    ) -> "Token":
        """Create a tenant token from the key of this client. It only searches and reads."""
        from penstock.verbs.keys import Token

        data = given(scopes=list(scopes), collections=collections and list(collections), filter=filter)
        data |= {"expires_in": expires_s}
        found: Token = await self._connection.json("POST", "tokens", Token, data=data)
        return found

    async def list_audit(self, *, action: str = "") -> "AsyncGenerator[AuditEntry, None]":
        """Yield who changed what and when, the newest first."""
        from penstock.client.documents import paged
        from penstock.ledger.engine.audit_log import AuditEntry

        async with aclosing(
            paged(self._connection, "audit", "entries", AuditEntry, {"action": action or None})
        ) as found:
            async for entry in found:
                yield entry

    async def list_steps(
        self, *, status: str | None = None, kind: str | None = None, stuck_s: float | None = None, limit: int = 100
    ) -> "list[ListedStep]":
        """Return steps, newest first."""
        from penstock.ledger.reads.stats import ListedStep

        query = {"status": status, "kind": kind, "stuck_s": stuck_s, "limit": limit}
        return await self._list("steps", "steps", ListedStep, query)

    async def list_workers(self) -> "list[WorkerView]":
        """Return the workers of the ledger."""
        from penstock.verbs.views import WorkerView

        return await self._list("workers", "workers", WorkerView)

    async def list_locks(self) -> "Locks":
        """Return the locks that are held, and the newest forced releases."""
        from penstock.verbs.maintenance import Locks

        found: Locks = await self._connection.json("GET", "locks", Locks)
        return found

    async def release_lock(self, key: str) -> dict[str, Any]:
        """Release a lock by force. Its holder can no longer write."""
        found: dict[str, Any] = await self._connection.json("POST", "locks/release", data={"key": key})
        return found

    async def check(self, *, repair: bool = False, sample: float = 1.0) -> "CheckReport":
        """Compare ledger, blobs and index."""
        from penstock.upkeep.report import CheckReport

        data = {"repair": repair, "sample": sample}
        found: CheckReport = await self._connection.json("POST", "checks", CheckReport, data=data, wait_s=CHECK_S)
        return found

    async def vacuum(self, collection: str | None = None) -> dict[str, Any]:
        """Compact the indexes."""
        data = given(collection=collection)
        return dict(await self._connection.json("POST", "maintenance/vacuum", data=data, wait_s=CHECK_S))

    async def prune(self, *, dry_run: bool = False) -> dict[str, Any]:
        """Remove old data of all owners."""
        data = {"dry_run": dry_run}
        return dict(await self._connection.json("POST", "maintenance/prune", data=data, wait_s=CHECK_S))

    async def ready(self) -> bool:
        """Return whether the server answers, with ledger, blobs and index."""
        from penstock.client.errors import Unavailable
        from penstock.errors import Away

        try:
            await self._connection.request("GET", "/readyz", patience=self._connection.patience(0))
        except (Unavailable, Away):
            return False
        return True

    async def metrics(self) -> str:
        """Return the metrics, in the format of Prometheus."""
        return (await self._connection.request("GET", "/metrics")).body.decode()

    async def _list(self, path: str, name: str, of: type[T], query: dict[str, Any] | None = None) -> list[T]:
        answer = await self._connection.json("GET", path, query=query)
        return [self._connection.restored(one, of) for one in answer.get(name, ())]


def _add(whole: Any, part: Any) -> None:
    """Add the counts and lists of a replay or discard to another one."""
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, bool):
            continue
        if isinstance(value, dict):
            getattr(whole, name).update(value)
        else:
            setattr(whole, name, getattr(whole, name) + value)
