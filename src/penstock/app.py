"""The composition root: the only place where adapters are chosen. CLI and library call the same methods."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal
from weakref import WeakSet

import msgspec

from penstock import wiring
from penstock.blobs.local import make_home
from penstock.config import Config, check_name, load_config
from penstock.errors import LedgerDamaged, NotFound, Refused, StorageError, UsageError
from penstock.indexes import highest
from penstock.intake import Intake, Item
from penstock.ledger.database import histories, liveness
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.liveness import Liveness
from penstock.ledger.database.migrations import LATEST
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import cancellations, dead_letters, deletions, documents, generations, restarts, runs, work
from penstock.ledger.engine.dead_letters import DeadLetter
from penstock.ledger.engine.locks import Forced
from penstock.ledger.reads import batches, stats
from penstock.ledger.reads.batches import Batch, Group
from penstock.ledger.reads.stats import ListedStep
from penstock.metrics.base import NOTHING, Guarded, Metrics
from penstock.model.nouns import DocumentId, Owner, RunId, WorkerId, Workflow
from penstock.model.states import DocumentStatus, StepStatus
from penstock.privacy import tighten
from penstock.runtime import Failpoints, Runtime
from penstock.sources.folder import find, printable
from penstock.upkeep.restoring import refuse_half_restored
from penstock.verbs import arguments, groups, jobs, views
from penstock.verbs.jobs import Job, Report, Summary
from penstock.worker.broadcast import Broadcast, Listener
from penstock.worker.look import Tally

if TYPE_CHECKING:
    from penstock.ledger.database.writer import Verb
    from penstock.search.query import Hit, Mode
    from penstock.stages.base import Ports
    from penstock.upkeep.backup import BackupReport, Tell
    from penstock.upkeep.report import CheckReport
    from penstock.upkeep.restore import Places, Restored
    from penstock.upkeep.vacuum import VacuumReport
    from penstock.verbs.caretaker import Caretaker
    from penstock.verbs.orders import Orders
    from penstock.verbs.replays import Discard, Replay, Replayer
    from penstock.worker.holding import Held
    from penstock.worker.outage import Outage
    from penstock.worker.parsers.pool import ParserPool
    from penstock.worker.pool import Worker
    from penstock.workflows.catalog import Catalog

REMAKE_BATCH = 500
PIECE = 1_000
"""Documents that are deleted or cancelled in one transaction."""
PARSED = (".pdf", ".docx", ".html", ".htm", ".xhtml")
"""Names of files that probably need a parser process: those start while the files are being accepted."""
LOCK_RELEASES = 100
PATIENCE_S = 15.0
"""How long a call waits for a PostgreSQL server that is away."""
IN_HAND = 4
"""Runs that a worker holds for each step that it runs at once: while some are being committed, others work."""


class App:
    """An open Penstock. Every verb takes an owner; where none is given it is the configured one."""

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        metrics: Metrics | None = None,
        patience_s: float | None = PATIENCE_S,
    ) -> None:
        self.config = config
        self.runtime = runtime
        self._metrics = NOTHING if metrics is None else Guarded(metrics)
        self.ledger = Ledger(Database(config.database_url, runtime), self._metrics)
        self.ledger.database.patience.limit_s = patience_s
        self.blobs = wiring.make_blobs(config, runtime)
        self._broadcast = Broadcast()
        self._workers: WeakSet[Worker] = WeakSet()
        """One for each call that works: they end, and are forgotten, by themselves."""
        self._stopping = False

    @cached_property
    def ports(self) -> "Ports":
        return wiring.make_ports(self.config, self.runtime, self._parsers)

    @cached_property
    def catalog(self) -> "Catalog":
        """The workflows and parameter sets that can be named."""
        from penstock.workflows.catalog import open_catalog

        return open_catalog(self.config)

    @cached_property
    def _orders(self) -> "Orders":
        from penstock.verbs.orders import Orders

        return Orders(self.config, self.runtime, self.catalog, lambda: self.ports)

    @cached_property
    def _caretaker(self) -> "Caretaker":
        from penstock.verbs.caretaker import Caretaker

        return Caretaker(
            self.config,
            self.runtime,
            self.ledger,
            self.blobs,
            lambda: self.ports.index,
            self._liveness,
            self._metrics,
        )

    @cached_property
    def _parsers(self) -> "ParserPool":
        return wiring.make_parsers(self.config)

    # submit and work

    async def ingest(
        self,
        paths: Sequence[str | Path] = (),
        *,
        data: bytes | BinaryIO | None = None,
        name: str | None = None,
        key: str | None = None,
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
        collection: str | None = None,
        workflow: str | None = None,
        params: str | None = None,
        priority: int = 0,
        batch: str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        prune: bool = False,
        retry: bool = False,
        password: str | None = None,
        wait: bool = True,
        budget_s: float | None = None,
        report: Report | None = None,
    ) -> Summary:
        """Submit files, folders or `data`, then work until they are done (unless `wait` is False)."""
        began = self.runtime.clock()
        who, where = self._place(owner, collection)
        job = Job(who, self.ledger, self.runtime)
        arguments.number("priority", priority, -arguments.PRIORITY, arguments.PRIORITY)
        for what, text in (("name", name), ("key", key), ("batch", batch), ("password", password)):
            arguments.maybe(what, text)
        arguments.seconds("budget_s", budget_s)
        given, roots = arguments.metadata(metadata), arguments.paths(paths)
        found: set[str] = set()
        items = self._items(roots, include, exclude, job, found, data, name, key, given, wait)
        asked = self._orders.asked(where, workflow, params)
        order = self._orders.start(who, where, asked, priority=priority, batch=batch, retry=retry, password=password)
        start = (lambda: self._start_worker(budget_s, began)) if wait else None
        summary = await jobs.ingest(job, Intake(self.ledger, self.blobs, self.runtime), order, items, start, report)
        if prune and not self._stopping:
            summary.deleted = await self._prune_sources(who, where, roots, found, summary)
        return summary

    async def run(self, *, budget_s: float | None = None, report: Report | None = None) -> Summary:
        """Work off what is queued, then stop."""
        arguments.seconds("budget_s", budget_s)
        job = Job(Owner(self.config.owner), self.ledger, self.runtime)
        return await jobs.run(job, self._start_worker(budget_s, self.runtime.clock()), report)

    async def work(self, *, pools: str | None = None, tell: Callable[[str], None] = lambda text: None) -> Summary:
        """Work until `stop`, whoever submits. Counts the documents that ended here. `pools`: the kinds of steps to work
        on and how many side by side, as in `extract=2,embed=4,index=1,*=4`. Where the disk is full or fails, or the
        PostgreSQL server goes away, we wait for it and say so (`tell`)."""
        began = self.runtime.clock()
        sizes = pool_sizes(arguments.text("pools", pools)) if pools is not None else None
        tally = Tally()
        outage = self._outage(tell)
        patience = self.ledger.database.patience
        patience.limit_s, patience.say = None, tell
        while True:
            worker = self._start_worker(None, began, sizes)
            tending = asyncio.create_task(self._caretaker.tend(worker.bench.worker))
            try:
                await worker.run(None)
                break
            except (LedgerDamaged, Refused):
                # Waiting repairs neither a damaged ledger nor a statement that it refuses.
                raise
            except StorageError as error:
                failed = error
            finally:
                tending.cancel()
                await asyncio.gather(tending, return_exceptions=True)
                tally.made.update(worker.bench.record.tally.made)
                tally.ended.update(worker.bench.record.tally.ended)
            if self._stopping or not await outage.outlast(failed, worked=worker.steps_done > 0):
                break
        return Summary(
            completed=tally.ended[DocumentStatus.COMPLETED],
            not_indexable=tally.ended[DocumentStatus.NOT_INDEXABLE],
            failed=tally.ended[DocumentStatus.FAILED],
            elapsed_s=round(self.runtime.clock() - began, 3),
            interrupted=self._stopping,
            made=tally.named(),
        )

    def events(self, until: "asyncio.Future[Any] | None" = None) -> Listener:
        """What the workers of this app do, from now on: `async for event in app.events(): …`. Ends when `until` (a
        task) is done, raising what it raised, and in any case with the app. Each event is about something that is in
        the ledger. Several may listen; a reader that falls 10,000 events behind loses the oldest (`missed` counts).
        A step that is handed over (a stop, a spent budget, a cancel) has no end here; another process may end it."""
        return self._broadcast.listen(until)

    def stop(self) -> None:
        """Hand over running work within two seconds; what is done is kept. For the loop's signal handlers."""
        self._stopping = True
        self.ledger.database.patience.hurry()
        for worker in self._workers:
            worker.told_to_stop = True
            worker.stop()

    # read

    async def search(
        self,
        query: str,
        k: int = 5,
        *,
        collection: str | None = None,
        mode: "Mode" = "hybrid",
        owner: str | None = None,
    ) -> "list[Hit]":
        from penstock.search.query import search

        who, where = self._place(owner, collection)
        if not isinstance(query, str):
            raise UsageError(f"query {query!r}: expected text")
        arguments.number("k", k)
        if mode not in ("hybrid", "vector", "text"):
            raise UsageError(f"mode {mode!r}: use one of hybrid, vector, text")
        return await search(self.ledger, self.ports.index, self.ports.embedder, who, query, k, where, mode)

    async def status(self, document: str | None = None, *, owner: str | None = None) -> dict[str, Any]:
        who = self._owner(owner)
        if document is not None:
            return await views.status(who, self.ledger, arguments.text("document", document))
        async with self.ledger.snapshot() as snapshot:
            return {
                "documents": await snapshot.read(lambda c: stats.documents(who, c)),
                "steps": await snapshot.read(lambda c: stats.steps(who, c)),
                "dead_letters": await snapshot.read(lambda c: stats.dead_letters(who, c)),
                "running": await snapshot.read(lambda c: stats.running(who, c)),
                "events": await snapshot.read(lambda c: stats.events(who, c)),
            }

    async def count_workers(self) -> int:
        """Workers that are alive now, here and elsewhere."""
        return sum(worker["alive"] for worker in await self.list_workers())

    async def list_workers(self) -> list[dict[str, Any]]:
        """Who works on this ledger, for any owner. One that is not alive has died, and nobody has taken back yet what
        it held."""
        from penstock.ledger.database import workers

        liveness = self._liveness()

        def look(connection: Connection) -> list[dict[str, Any]]:
            found = workers.busy(connection)
            dead = set(liveness.dead([worker.id for worker in found], connection))
            return [{**msgspec.structs.asdict(worker), "alive": worker.id not in dead} for worker in found]

        return await self.ledger.read(look)

    async def list_steps(
        self,
        *,
        status: StepStatus | str | None = None,
        kind: str | None = None,
        stuck_s: float | None = None,
        limit: int = 100,
        owner: str | None = None,
    ) -> list[ListedStep]:
        """Steps, newest first. `stuck_s`: those that began, and got no further for so many seconds."""
        return await self.ledger.read(
            partial(stats.list_steps, self._owner(owner)),
            status=arguments.one_of("status", status, StepStatus),
            kind=arguments.maybe("kind", kind) or "",
            stuck_s=arguments.seconds("stuck_s", stuck_s),
            count=arguments.count("limit", limit),
        )

    async def list_locks(self, *, owner: str | None = None) -> dict[str, list[Any]]:
        """The locks that are held, and the newest of those that were taken away by force."""
        who = self._owner(owner)
        async with self.ledger.snapshot() as snapshot:
            return {
                "locks": await snapshot.read(lambda c: stats.locks(who, c)),
                "released": await snapshot.read(lambda c: stats.lock_releases(who, c, LOCK_RELEASES)),
            }

    async def list_documents(
        self,
        *,
        status: str | None = None,
        collection: str | None = None,
        name: str | None = None,
        limit: int = 100,
        owner: str | None = None,
    ) -> list[dict[str, Any]]:
        """Documents, newest first. `name` is a glob."""
        import fnmatch

        newest = partial(documents.newest, self._owner(owner))
        wanted = arguments.one_of("status", status, DocumentStatus) or ""
        where = arguments.maybe("collection", collection) or ""
        arguments.maybe("name", name)
        arguments.count("limit", limit)
        before = ""
        out: list[dict[str, Any]] = []
        while len(out) < limit:
            page = await self.ledger.read(newest, status=wanted, collection=where, before=before, count=500)
            out += [views.listed(e) for e in page if name is None or fnmatch.fnmatchcase(e.document.name, name)]
            if len(page) < 500:
                break
            before = page[-1].document.id
        return out[:limit]

    async def show(
        self, document: str, what: Literal["pages", "chunks", "blocks"], *, owner: str | None = None
    ) -> AsyncIterator[Any]:
        """What was extracted: pages (with their blocks), or chunks. Where a workflow has two steps of the kind, what
        the last one made: that is what search finds."""
        from penstock.worker.context import reader

        arguments.text("document", document)
        if what not in ("pages", "chunks", "blocks"):
            raise UsageError(f"what {what!r}: use one of pages, chunks, blocks")
        kind = "chunk" if what == "chunks" else "extract"
        stream = views.items(self._owner(owner), self.ledger, reader(self.ledger, self.blobs), document, kind)
        async for batch in stream:
            for item in batch:
                yield item

    # change

    async def cancel(self, names: Sequence[str], *, owner: str | None = None) -> set[DocumentId]:
        """Stop what has not ended of them."""
        return await self._in_pieces(cancellations.CANCEL, await self._selected(names, owner))

    async def delete(self, names: Sequence[str], *, owner: str | None = None) -> set[DocumentId]:
        """No search that starts after this finds them. Many are deleted in pieces, each whole; where that was
        interrupted, the same call does the rest: ids of deleted documents are left out of the answer."""
        return await self._in_pieces(deletions.DELETE, await self._selected(names, owner, deleted=True))

    async def retry(
        self,
        names: Sequence[str],
        *,
        workflow: str | None = None,
        params: str | None = None,
        values: Mapping[str, Mapping[str, Any]] | None = None,
        password: str | None = None,
        dropped: bool = False,
        notes: list[str] | None = None,
        owner: str | None = None,
    ) -> set[DocumentId]:
        """Failed, cancelled and not indexable documents go on from their checkpoint, attempts at zero; with another
        workflow, parameter set or `values` (by step and name) a new run starts, which makes again only what they
        change. Where none are named, the run's own are. `password`: what unlocks them. `dropped`: instead, completed
        ones whose artifacts are gone are made again from their raw bytes, with the settings that they were made with.
        `notes`: what to know is added there."""
        chosen = await self._selected(names, owner)
        if dropped:
            if workflow or params or values:
                raise UsageError("what was dropped is made again as it was: leave --workflow, --params and --set out")
            return await self._remake(chosen)
        replayer = self._replayer(chosen.owner, workflow, params, values, password)
        done = await replayer.retry(chosen.documents)
        if notes is not None:
            notes += replayer.answer.notes
        return done

    async def _remake(self, chosen: runs.Selected) -> set[DocumentId]:
        done: set[DocumentId] = set()
        for i in range(0, len(chosen.documents), REMAKE_BATCH):
            part = tuple((d, RunId(self.runtime.ulid())) for d in chosen.documents[i : i + REMAKE_BATCH])
            queued = await self.ledger.write(restarts.REMAKE, restarts.Remake(chosen.owner, part))
            done |= queued
        return done

    async def list_dead_letters(self, *, limit: int = 100, owner: str | None = None) -> dict[str, Any]:
        who = self._owner(owner)
        reasons = await self.ledger.read(lambda c: dead_letters.by_reason(who, c))
        letters = await self.ledger.read(partial(dead_letters.newest, who), arguments.count("limit", limit))
        return {
            "total": sum(count for _, count, _ in reasons),
            "by_reason": {reason: count for reason, count, _ in reasons},
            "oldest": min((since for _, _, since in reasons), default=None),
            "letters": letters,
        }

    async def dead_letter(self, letter: int, *, owner: str | None = None) -> DeadLetter:
        look = partial(dead_letters.get, self._owner(owner))
        found = await self.ledger.read(look, arguments.number("letter", letter))
        if found is None:
            raise NotFound(f"no open dead letter {letter}: `penstock dlq list` shows them")
        return found

    async def replay(
        self,
        letters: Sequence[int] | None = None,
        *,
        reason: str | None = None,
        workflow: str | None = None,
        params: str | None = None,
        values: Mapping[str, Mapping[str, Any]] | None = None,
        password: str | None = None,
        dry_run: bool = False,
        owner: str | None = None,
    ) -> "Replay":
        """Replay dead letters by number, by reason, or (with neither) all; with changes as `retry` takes them. Those of
        events go to their handlers once more. `dry_run`: only say what would be done."""
        replayer = self._replayer(self._owner(owner), workflow, params, values, password)
        numbers = arguments.numbers("letters", letters)
        return await replayer.replay(numbers, arguments.maybe("reason", reason), dry_run=dry_run)

    async def discard(
        self,
        letters: Sequence[int] | None = None,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        owner: str | None = None,
    ) -> "Discard":
        """Close dead letters by number, by reason, or (with neither) all, without another try; their documents stay
        FAILED."""
        from penstock.verbs.replays import discard

        numbers = arguments.numbers("letters", letters)
        reason = arguments.maybe("reason", reason)
        return await discard(self._owner(owner), self.ledger, numbers, reason, dry_run=dry_run)

    # groups

    async def list_groups(self, *, batch: str | None = None, limit: int = 100, owner: str | None = None) -> list[Group]:
        """What was started together, newest first."""
        look = partial(batches.newest, self._owner(owner))
        return await self.ledger.read(look, arguments.maybe("batch", batch), arguments.count("limit", limit))

    async def group(self, name: str, *, owner: str | None = None) -> groups.GroupView:
        """One group with its counts, durations, pace and what is left of it."""
        return await groups.view(self._owner(owner), self.ledger, arguments.text("name", name))

    async def retry_group(self, name: str, *, cancelled: bool = False, owner: str | None = None) -> int:
        """Its failed runs (and the `cancelled` ones) go on from their checkpoints; the group opens and ends again."""
        who = self._owner(owner)
        found = (await groups.view(who, self.ledger, arguments.text("name", name))).group
        ended = ("FAILED", "CANCELLED") if cancelled else ("FAILED",)
        return await groups.retry(who, self.ledger, found.id, ended, partial(self.retry, owner=owner))

    async def cancel_group(self, name: str, *, owner: str | None = None) -> int:
        """Stop what has not ended of it; how many runs that were."""
        who = self._owner(owner)
        found = (await groups.view(who, self.ledger, arguments.text("name", name))).group
        return await groups.cancel(who, self.ledger, found.id)

    async def list_batches(self, *, owner: str | None = None) -> list[Batch]:
        """Documents that were submitted under one name, newest first."""
        return await self.ledger.read(partial(batches.batches, self._owner(owner)))

    async def start_batch(
        self,
        batch: str,
        *,
        workflow: str | None = None,
        params: str | None = None,
        collection: str | None = None,
        priority: int = 0,
        again: bool = False,
        owner: str | None = None,
    ) -> groups.BatchStart:
        """Start a workflow for the documents of a batch, as one group; workers do the rest. What is searchable stays so
        until its new run has ended. What is COMPLETED with the same workflow and values is left out, unless `again`."""
        who, where = self._place(owner, collection)
        arguments.text("batch", batch)
        arguments.number("priority", priority, -arguments.PRIORITY, arguments.PRIORITY)
        asked = self._orders.asked(where, workflow, params)
        order = self._orders.start(who, where, asked, batch=batch, priority=priority)
        return await groups.start(who, self.ledger, order, again)

    # upkeep

    async def check(
        self,
        *,
        repair: bool = False,
        sample: float = 1.0,
        progress: Callable[[str, int], None] | None = None,
        owner: str | None = None,
    ) -> "CheckReport":
        """Compare ledger, blobs and index both ways, of one owner or of all; `repair` mends what can be mended.
        `sample`: the share of stored files, drawn at random, whose content is compared; all are looked for. `progress`
        is told what is being looked at, and how much of it was."""
        arguments.share("sample", sample)
        who = None if owner is None else self._owner(owner)
        return await self._caretaker.check(who, repair=repair, sample=sample, progress=progress)

    async def prune(self, *, older_than_s: float | None = None, dry_run: bool = False) -> dict[str, int]:
        """Take away what nothing refers to any more, old history, and artifacts that `keep_artifacts` does not keep;
        counts of all that. `older_than_s` is an age for all but the last; if not given, a day for what nothing refers
        to, `retention.history_days` for history. Bytes of submits that are open just now stay, whatever their age.
        `dry_run`: only say what would go."""
        return await self._caretaker.prune(arguments.seconds("older_than_s", older_than_s), dry_run=dry_run)

    async def vacuum(
        self,
        collection: str | None = None,
        *,
        wait_s: float | None = 60.0,
        force: bool = False,
        by: str | None = None,
        owner: str | None = None,
    ) -> "VacuumReport":
        """Purge, compact and seal the indexes of one collection or of all. Waits at most `wait_s` seconds for the lock
        of each (None: for ever); `busy` lists those that somebody kept. `force` takes the lock away first, as
        `release_lock` does."""
        wait_s, by = arguments.seconds("wait_s", wait_s), arguments.maybe("by", by)
        return await self._caretaker.vacuum(self._owner(owner), collection, wait_s, force=force, by=by)

    async def backup(self, folder: str | Path, *, report: "Tell | None" = None) -> "BackupReport":
        """Copy one moment of the ledger, the blobs that it names and the index into a folder, while others work. What
        an earlier backup left there is not copied again. `restore` makes a home of it."""
        return await self._caretaker.backup(arguments.folder("folder", folder), report)

    @asynccontextmanager
    async def hold_index(
        self, collection: str | None = None, *, max_wait: float | None = None, owner: str | None = None
    ) -> "AsyncIterator[Held]":
        """`async with app.hold_index() as held:` – the block is the only writer to the index of a collection. Waits
        at most `max_wait` seconds for the lock (None: for ever; 0: not at all), then raises `LockHeld`. If it was
        taken away meanwhile, `held.raise_if_lost()` says so, and the end of the block raises `LeaseLost`."""
        longest = arguments.seconds("max_wait", max_wait)
        async with self._caretaker.hold_index(*self._place(owner, collection), longest) as held:
            yield held

    async def release_lock(
        self, key: str, *, force: bool = False, by: str | None = None, owner: str | None = None
    ) -> Forced:
        """Take a lock away from whoever holds it. Its holder can write no more, its steps wait again, and it is
        written down that `by` (if not given, the user of this machine) did it."""
        key, by = arguments.text("key", key), arguments.maybe("by", by)
        return await self._caretaker.release_lock(self._owner(owner), key, force=force, by=by)

    # workflows

    def workflow(
        self, name: str | None = None, *, params: str | None = None, collection: str | None = None
    ) -> Workflow:
        """A workflow as a run of a collection would keep it, with all its values."""
        where = check_name("collection", self.config.collection if collection is None else collection)
        return self._orders.workflow(where, self._orders.asked(where, name, params))

    # inner

    def _owner(self, owner: str | None) -> Owner:
        # Only where none is given: an empty name is a mistake of the caller, and no other owner's documents are shown.
        return Owner(check_name("owner", self.config.owner if owner is None else owner))

    def _place(self, owner: str | None, collection: str | None) -> tuple[Owner, str]:
        return self._owner(owner), check_name(
            "collection", self.config.collection if collection is None else collection
        )

    async def _in_pieces(self, verb: "Verb[runs.Selected, set[DocumentId]]", chosen: runs.Selected) -> set[DocumentId]:
        """One transaction for all of them could last longer than a lease: everybody else waits for it."""
        done: set[DocumentId] = set()
        for i in range(0, len(chosen.documents), PIECE):
            part = runs.Selected(chosen.owner, chosen.documents[i : i + PIECE])
            changed = await self.ledger.write(verb, part)
            done |= changed
        return done

    async def _selected(self, names: Sequence[str], owner: str | None, *, deleted: bool = False) -> runs.Selected:
        who, chosen = self._owner(owner), arguments.texts("names", names)
        found = await self.ledger.read(lambda c: views.resolve_all(who, c, chosen, deleted=deleted))
        return runs.Selected(who, tuple(dict.fromkeys(found)))

    def _replayer(
        self,
        owner: Owner,
        workflow: str | None,
        params: str | None,
        values: Mapping[str, Mapping[str, Any]] | None,
        password: str | None = None,
    ) -> "Replayer":
        from penstock.verbs.replays import Changes, Replayer

        for what, text in (("workflow", workflow), ("params", params), ("password", password)):
            arguments.maybe(what, text)
        changes = Changes(workflow, params, arguments.values(values), password)
        return Replayer(owner, self.ledger, self.runtime, partial(self._orders.again, owner), changes)

    def _items(
        self,
        roots: Sequence[Path],
        include: Sequence[str],
        exclude: Sequence[str],
        job: Job,
        found: set[str],
        data: bytes | BinaryIO | None,
        name: str | None,
        key: str | None,
        metadata: dict[str, Any],
        work: bool,
    ) -> Iterator[Item]:
        import io

        if data is not None:
            if not (isinstance(data, bytes) or hasattr(data, "read")):
                raise UsageError("data: expected bytes, or a stream of bytes")
            if not name:
                raise UsageError("standard input needs a name: --name notes.txt")
            stream = io.BytesIO(data) if isinstance(data, bytes) else data
            yield Item(name, name, stream=stream, key=key, metadata=metadata)
        problems: list[str] = []
        given = 0 if data is None else 1
        for file in find(roots, include, exclude, problems, skip=self.config.home_path):
            given += 1
            if key is not None and given > 1:
                raise UsageError(f"the idempotency key {key!r} can name one document, and there are several")
            if self._stopping:
                break
            if arguments.is_long(file.source):
                problems.append(f"{file.source}: the path is longer than {arguments.TEXT_LIMIT:,} bytes")
                continue
            found.add(file.source)
            if work and file.name.lower().endswith(PARSED):
                self._parsers.start()
            yield Item(file.source, file.name, path=file.path, within=file.within, key=key, metadata=metadata)
        job.summary.problems += problems
        job.summary.refused += len(problems)

    async def _prune_sources(
        self, owner: Owner, collection: str, roots: Iterable[Path], found: set[str], summary: Summary
    ) -> int:
        """Delete documents whose file is gone from these folders. A folder that could not be read proves nothing."""
        if summary.problems:
            summary.problems.append("--prune was left out, because not everything could be read")
            return 0
        gone: list[DocumentId] = []
        for root in roots:
            if root.is_dir():
                prefix = printable(root.absolute()).rstrip("/") + "/"
                known = await self.ledger.read(partial(documents.under, owner), collection, prefix)
                gone += [d for d, source in known if source not in found and not Path(source).exists()]
        if not gone:
            return 0
        return len(await self._in_pieces(deletions.DELETE, runs.Selected(owner, tuple(dict.fromkeys(gone)))))

    def _start_worker(self, budget_s: float | None, began: float, pools: Mapping[str, int] | None = None) -> "Worker":
        from penstock.events.courier import Courier
        from penstock.stages.registry import STAGES
        from penstock.upkeep.purge import purge
        from penstock.worker.budget import Budget
        from penstock.worker.execute import Bench
        from penstock.worker.pool import Worker
        from penstock.worker.retry import RetryPolicy

        name = WorkerId(self.runtime.ulid())
        bench = Bench(
            ledger=self.ledger,
            blobs=self.blobs,
            ports=self.ports,
            runtime=self.runtime,
            stages=STAGES,
            worker=name,
            lease_s=self.config.worker.lease_s,
            policy=RetryPolicy(),
            budget=Budget(self.runtime, budget_s, self._paces, began),
            slots=self.config.worker.slots,
            broadcast=self._broadcast,
            pools=pools,
            metrics=self._metrics,
        )

        def failed(key: str, error: BaseException) -> None:
            bench.sayings.fails(f"{key}, purge", error, "What was replaced there is taken out later")

        async def purge_due() -> bool:
            found = bool(await self.ledger.read(generations.due_purges, 1))
            if found:
                await purge(self.ledger, self.ports.index, name, failed=failed)
            return found

        courier = Courier(self.ledger, self.runtime, name, self, self.config.webhooks, self._metrics)
        slots = IN_HAND * self.config.worker.slots
        worker = Worker(bench, self._liveness(), slots=slots, chores=[purge_due], courier=courier)
        self._workers.add(worker)
        if self._stopping:
            self.stop()
        return worker

    def _outage(self, tell: Callable[[str], None]) -> "Outage":
        from penstock.worker.outage import Outage

        folders = self._local_folders()
        if self.ledger.database.dialect == "sqlite":
            folders.append(self.ledger.database.path.parent)
        return Outage(self.runtime, folders, self.ledger.is_there, tell, lambda: self._stopping)

    def _local_folders(self) -> list[Path]:
        return [folder for folder in (self.config.blobs_path, self.config.index_path) if folder is not None]

    def _liveness(self) -> Liveness:
        return liveness.of(self.ledger.database)

    def _places(self) -> "Places":
        from penstock.upkeep.restore import Places

        chosen = self.config
        if chosen.blobs_path is None or chosen.index_path is None:
            raise UsageError("a backup can be restored only where blobs and index are kept in folders")
        return Places(chosen.home_path, self.ledger.database, self.blobs, chosen.blobs_path, chosen.index_path)

    async def _open(self, *, migrate: bool = False) -> None:
        refuse_half_restored(self.config.home_path)
        await self.runtime.run_blocking("io", self._make_home)
        await self.ledger.open(migrate=migrate)
        await self._notice_older_ledger()
        self._paces = await self.ledger.read(work.paces)

    async def _refuse_restore(self, force: bool) -> None:
        from penstock.ledger.upkeep import copies
        from penstock.upkeep.restore import is_empty

        places = self._places()
        empty = is_empty(places)
        if self.ledger.database.dialect == "postgres":
            await self.ledger.open(migrate=True)
            empty = empty and await self.ledger.read(copies.is_empty)
        await self._refuse_in_use()
        if not (empty or force):
            raise UsageError(
                f"{places.home} is not empty: name another home, or replace what is there with --force; documents that "
                "the backup does not know are lost then"
            )

    async def _refuse_in_use(self) -> None:
        """Before a restore, and again before it replaces anything: copying may take long."""
        from penstock.ledger.upkeep import copies

        database = self.ledger.database
        if database.dialect == "postgres":
            alive = await self.count_workers()
        else:
            alive = await self.runtime.run_blocking("io", self._liveness().count)
        if alive:
            raise UsageError(f"somebody works in {self.config.home_path} (`penstock workers`): stop them, then restore")
        if database.dialect == "sqlite" and database.path.exists():
            with suppress(LedgerDamaged):
                await self.runtime.run_blocking("io", copies.single_file, database.path)

    async def _notice_older_ledger(self) -> None:
        index = self.config.index_path
        noticed = await self.ledger.notice(highest.read(index) if index is not None else 0)
        if noticed is not None:
            # Whoever embeds us may not look at standard error; `check` says it until it is settled.
            logging.getLogger("penstock").warning("%s", histories.sentence(noticed))

    def _make_home(self) -> None:
        make_home(self.config.home_path)
        tighten((self.config.home_path, *self._local_folders()))

    async def _close(self) -> None:
        self._broadcast.close()
        if "_parsers" in vars(self):
            await self._parsers.close()
        await self.ledger.close()
        self.runtime.close()


def pool_sizes(text: str) -> dict[str, int]:
    """`extract=2,*=4` as sizes by kind of step."""
    from penstock.stages.registry import KINDS
    from penstock.worker.pools import parse_pools
    from penstock.workflows.read import OPEN_KINDS

    return parse_pools(text, (*KINDS, *OPEN_KINDS))


@asynccontextmanager
async def open_app(
    config: Config | None = None,
    *,
    metrics: Metrics | None = None,
    patience_s: float | None = PATIENCE_S,
    **settings: Any,
) -> AsyncIterator[App]:
    """`async with open_app(home="…") as app:` – settings by name, or a whole Config. `metrics` is told what is counted
    and measured. `patience_s`: how long a call waits for a PostgreSQL server that is away; None: for ever. That it
    waits is said to the logger `penstock.ledger`."""
    chosen = config or load_config(settings)
    app = App(chosen, Runtime(Failpoints(chosen.failpoints)), metrics, patience_s)
    try:
        await app._open()
        yield app
    finally:
        await app._close()


class RestoreReport(msgspec.Struct, frozen=True):
    """What was put back, and what `check --repair` said of it."""

    restored: "Restored"
    check: "CheckReport"
    elapsed_s: float


async def restore(
    folder: str | Path,
    config: Config | None = None,
    *,
    force: bool = False,
    report: "Tell | None" = None,
    **settings: Any,
) -> RestoreReport:
    """Make a home of a backup. A home with anything in it is refused, unless `force`: then its ledger and its index are
    replaced. Refused in any case while somebody works there."""
    from penstock.upkeep.restore import Restore

    source = arguments.folder("folder", folder)
    chosen = config or load_config(settings)
    app = App(chosen, Runtime(Failpoints(chosen.failpoints)))
    began = app.runtime.clock()
    try:
        await app._refuse_restore(force)
        restored = await Restore(source, app._places(), report).run(app._refuse_in_use)
        await app._open()
        check = await app.check(repair=True)
        return RestoreReport(restored, check, round(app.runtime.clock() - began, 3))
    finally:
        await app._close()


async def migrate(config: Config) -> int:
    """Bring the ledger to this version's schema, also one that others share; the version it has now."""
    app = App(config, Runtime())
    try:
        await app._open(migrate=True)
        return LATEST
    finally:
        await app._close()
