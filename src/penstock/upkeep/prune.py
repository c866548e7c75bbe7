"""Prune: remove unreferenced data, and data past its retention time. Rows are removed first, then the blobs that they
named. A crash in between leaves unreferenced blobs, which the next prune finds, and never a row without its blob.

Unreferenced blobs are removed only when they are older than a day, because a submit or a running step stores bytes
before it names them. A day may pass at once, when the clock is changed or the machine sleeps. Therefore blobs that a
submit in progress or a lease may still name are kept at any age."""

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec

from penstock.blobs.base import BlobInfo, is_raw, is_sent_by_others, parts_of
from penstock.indexes.base import TableId
from penstock.ledger.database import histories
from penstock.ledger.database.liveness import Liveness
from penstock.ledger.database.store import Ledger
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import admission, backup_guard, uploads
from penstock.ledger.upkeep import audit, evictions, repairs, retention, retired_versions
from penstock.model.nouns import WorkerId
from penstock.upkeep import reindex
from penstock.upkeep.check_blobs import batches, unnamed
from penstock.upkeep.drop import finish_drops
from penstock.upkeep.purge import hold, hold_table, purge
from penstock.upkeep.report import Stores

DAY_S = 86_400.0
HOUR_S = 3600.0
ROWS, LEFTOVERS = "prune:rows", "prune:leftovers"
WINDOW = 10_000
"""Number of artifacts that one statement examines."""
SNAPSHOTS = 20
"""Number of snapshots removed in one transaction: for each one the database searches all runs."""
EVICTED = 10
"""Number of segments of bought answers that are removed at once."""
COUNTS = 100
"""Rows of the counts of an owner that may wait to be added up."""
BATCH = 100
"""Number of documents whose artifacts are dropped in one transaction: they may have many segments."""


class Ages(msgspec.Struct, frozen=True):
    """Retention times in seconds."""

    keep: Callable[[str], float | None]
    """For the artifacts of completed documents, by the name of the collection; None: no limit."""
    history_s: float
    """For replaced runs and other history."""
    unnamed_s: float
    """For unreferenced data."""
    bought_s: float
    """For bought answers, since their last use."""
    bought_bytes: int
    """The total size above which bought answers are removed earlier."""
    former_s: float
    """For the former index version of a re-index."""


class Pruned(msgspec.Struct):
    """The counts of removed data, or, for a dry run, of data that would be removed."""

    purged: int = 0
    """Replaced and deleted generations that were removed from the index."""
    dropped: int = 0
    """Documents whose pages, chunks and vectors were dropped."""
    runs: int = 0
    documents: int = 0
    """Remaining rows of deleted documents."""
    dead_letters: int = 0
    lock_releases: int = 0
    events: int = 0
    webhook_deliveries: int = 0
    groups: int = 0
    """Groups without runs. A dry run does not count groups whose runs it would remove."""
    snapshots: int = 0
    """Workflow snapshots of removed runs. A dry run counts only the first few."""
    artifacts: int = 0
    blobs: int = 0
    bytes: int = 0
    workers: int = 0
    """Files of dead workers."""
    answers: int = 0
    """Answers of paid calls that were not used for long."""
    waiting: int = 0
    """Unreferenced artifacts and blobs that are too young to be removed."""
    uploads: int = 0
    """Resumable uploads that have expired."""
    trials: int = 0
    """Indexes that an interrupted `eval` left."""


class Prune:
    def __init__(self, stores: Stores, worker: WorkerId, ages: Ages, *, dry_run: bool = False) -> None:
        self._stores = stores
        self._ledger = stores.ledger
        self._worker = worker
        self._ages = ages
        self._dry_run = dry_run
        self.pruned = Pruned()

    async def rows(self) -> None:
        """Remove rows of the ledger, and the blobs that they name."""
        if not self._dry_run:
            await finish_drops(self._ledger)
            await reindex.expire(self._ledger, self._ages.former_s)
        await self._purge()
        await self._remove_tables()
        await self._drop()
        await self._expire()
        for table in retention.HISTORY:
            await self._clear(table)
        await self._snapshots()
        await self._expire_uploads()
        await self._settle_holdings()
        await self._forget()
        await self._evict()

    async def leftovers(self, liveness: Liveness) -> None:
        """Remove blobs that no row names (of purged generations, of killed steps and submits) and files of dead
        workers. This lists all blobs."""
        runtime = self._ledger.database.runtime
        before = runtime.now() - self._ages.unnamed_s
        await self._unnamed(before)
        await self._abort_parts(before)
        long_ago = min(before, runtime.now() - HOUR_S)
        swept = await runtime.run_blocking("io", lambda: liveness.sweep(long_ago, dry_run=self._dry_run))
        self.pruned.workers += swept

    async def _unnamed(self, before: float) -> None:
        if await self._ledger.read(histories.unsettled):
            # The blobs may belong to documents of the correct ledger: `check` says what to do.
            return
        async for infos in batches(self._stores.blobs, self._stores.owner):
            old = [info for info in infos if info.modified_at < before]
            gone = await self._left_behind(old) if old else []
            young = [info for info in infos if info.modified_at >= before]
            self.pruned.waiting += len(await self._left_behind(young)) if young else 0
            # Checked afterwards: everything that a backup starting now names had a row before.
            held = await self._ledger.read(backup_guard.is_running)
            if held:
                return
            await self._delete([(info.key, info.size) for info in gone])

    async def _abort_parts(self, before: float) -> None:
        """Abort uploads in parts straight into the bucket that nobody completed."""
        parts = parts_of(self._stores.blobs)
        if parts is None:
            return
        # First what the bucket has: an upload is begun there before it has a row.
        left = await parts.left(f"{self._stores.owner}/" if self._stores.owner else "")
        planned = {json.loads(request)["parts"]["upload"] for request in await self._ledger.read(uploads.planned)}
        for one in left:
            if is_sent_by_others(one.key) and (one.begun_at or before) < before and one.upload not in planned:
                if not self._dry_run:
                    await parts.abort(one.key, one.upload)
                self.pruned.uploads += 1

    async def _left_behind(self, infos: Sequence[BlobInfo]) -> list[BlobInfo]:
        """Blobs that no row names and that no submit or step is about to name. The order of the reads matters: a submit
        or step that ends after the first two reads has named its blobs before the third."""
        since = await self._stores.blobs.submitted_since()
        leases = await self._ledger.read(audit.leases)
        gone = await unnamed(self._stores, infos)
        return [info for info in gone if not _may_be_named(info.key, since, leases)]

    async def _purge(self) -> None:
        if self._dry_run:
            self.pruned.purged = await self._ledger.read(retention.due_purges)
            return
        while gone := await purge(self._ledger, self._stores.index, self._worker):
            self.pruned.purged += gone

    async def _remove_tables(self) -> None:
        """Remove the empty index tables of collections that were dropped. The table goes first: after a crash in
        between, the version is found again."""
        for version in [] if self._dry_run else await self._ledger.read(retired_versions.empty):
            place = TableId(version.owner, version.collection, version.version)
            async with hold_table(self._ledger, self._stores.index, place, self._worker, "prune") as fence:
                if fence is not None:
                    await self._stores.index.drop(place)
                    await self._ledger.write(retired_versions.FORGET_VERSION, version)

    async def _drop(self) -> None:
        for collection in await self._ledger.read(retention.collections):
            kept_s = self._ages.keep(collection)
            after = (-1.0, 0)
            while kept_s is not None:
                page = await self._ledger.read(retention.droppable, collection, kept_s, after, BATCH)
                if not page:
                    break
                after = page[-1]
                dropped = await self._write(retention.DROP_ARTIFACTS, tuple(generation for _, generation in page))
                await self._delete(dropped.blobs)
                self.pruned.dropped += dropped.generations
                self.pruned.artifacts += dropped.artifacts

    async def _expire(self) -> None:
        last = 0
        while True:
            expired = await self._write(retention.EXPIRE, retention.Expire(last, self._ages.history_s, audit.PAGE))
            self.pruned.runs += expired.runs
            self.pruned.documents += expired.documents
            if not expired.last:
                return
            last = expired.last

    async def _clear(self, table: str) -> None:
        last: int | str = "" if table == retention.GROUPS else 0
        while True:
            request = retention.Clear(table, last, self._ages.history_s, audit.PAGE)
            cleared = await self._write(retention.CLEAR, request)
            if not cleared.last:
                return
            last = cleared.last
            setattr(self.pruned, table, getattr(self.pruned, table) + cleared.rows)

    async def _snapshots(self) -> None:
        request = retention.Unused(self._ages.unnamed_s, SNAPSHOTS)
        while gone := await self._write(retention.FORGET_SNAPSHOTS, request):
            self.pruned.snapshots += gone
            if gone < SNAPSHOTS or self._dry_run:
                return

    async def _expire_uploads(self) -> None:
        """Remove uploads that nobody continued, and ended ones that nobody asks for any more."""
        while True:
            gone, keys = await self._write(uploads.EXPIRE_UPLOADS, BATCH)
            self.pruned.uploads += gone
            # The object of an upload into the bucket may be that of a document, if a process died before it said so.
            named = await self._ledger.read(audit.named, [key for key, _ in keys]) if keys else set()
            await self._delete([(key, size) for key, size in keys if key not in named])
            if gone < BATCH or self._dry_run:
                return

    async def _settle_holdings(self) -> None:
        """Add up the counts of owners that have many rows."""
        for owner in [] if self._dry_run else await self._ledger.read(admission.unsettled, COUNTS):
            await self._ledger.write(admission.SETTLE_HOLDINGS, owner)

    async def _forget(self) -> None:
        """Remove artifacts that no generation refers to and no step builds, with their segments."""
        end, older_s = await self._ledger.read(audit.last_artifact), self._ages.unnamed_s
        for start in range(0, end, WINDOW):
            unused = await self._ledger.read(repairs.forgettable, start, start + WINDOW, older_s)
            young = await self._ledger.read(repairs.forgettable, start, start + WINDOW, 0.0)
            self.pruned.waiting += len(set(young).difference(unused))
            for i in range(0, len(unused), audit.PAGE):
                request = repairs.Forget(tuple(unused[i : i + audit.PAGE]), older_s)
                forgotten = await self._write(repairs.FORGET, request)
                await self._delete(forgotten.blobs)
                self.pruned.artifacts += forgotten.artifacts

    async def _evict(self) -> None:
        """Remove bought answers that were not used for long, then as many as exceed the total size."""
        await self._evict_older(self._ages.bought_s)
        size, _ = await self._ledger.read(evictions.total)
        while size > self._ages.bought_bytes:
            # A few at a time, to remove no more than necessary.
            evicted = await self._evict_once(0.0, EVICTED)
            size -= sum(blob[1] for blob in evicted.blobs)
            if not evicted.blobs or self._dry_run:
                return

    async def _evict_older(self, older_s: float) -> None:
        while (await self._evict_once(older_s, BATCH)).segments == BATCH and not self._dry_run:
            pass

    async def _evict_once(self, older_s: float, count: int) -> evictions.Evicted:
        evicted: evictions.Evicted = await self._write(evictions.EVICT, evictions.Evict(older_s, count))
        await self._delete(evicted.blobs)
        self.pruned.answers += evicted.answers
        return evicted

    async def _delete(self, blobs: Sequence[tuple[str, int]]) -> None:
        if blobs and not self._dry_run:
            await self._stores.blobs.delete([key for key, _ in blobs])
        self.pruned.blobs += len(blobs)
        self.pruned.bytes += sum(size for _, size in blobs)

    async def _write(self, verb: Verb[Any, Any], item: object) -> Any:
        return await (self._ledger.rehearse if self._dry_run else self._ledger.write)(verb, item)


def _may_be_named(key: str, since: str | None, leases: Collection[str]) -> bool:
    name = key.rpartition("/")[2]
    if is_raw(key):
        return since is not None and name > since
    return any(part in leases for part in name.split("-"))


async def tend(ledger: Ledger, worker: WorkerId, liveness: Liveness, start: Callable[[], Awaitable[Prune]]) -> None:
    """Prune what is due, for a worker that calls this regularly: rows every hour, unreferenced blobs once a day. The
    lock of each excludes other workers and records when it was last done."""
    for key, every_s in ((ROWS, HOUR_S), (LEFTOVERS, DAY_S)):
        if await ledger.read(retention.is_due, key, every_s):
            async with hold(ledger, key, worker, "prune", HOUR_S) as mine:
                if mine is not None:
                    prune = await start()
                    await (prune.rows() if key == ROWS else prune.leftovers(liveness))
