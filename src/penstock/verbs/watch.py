"""`watch`: ingest folders, and keep on. It is a loop of ordinary passes over the folders. A file notification
or a timer starts a pass, so that nothing depends on file notifications. A worker processes the documents meanwhile."""

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import Away, LedgerDamaged, Refused, SourceError, StorageError, UsageError
from penstock.intake import RunSpec
from penstock.intake_items import Receipt
from penstock.ledger.engine import work as queue
from penstock.model.nouns import DocumentId
from penstock.model.states import ENDS, DocumentStatus
from penstock.sources.base import Change, Found
from penstock.sources.folder import CHANGING, printable
from penstock.sources.folder_events import FolderEvents
from penstock.verbs import arguments
from penstock.verbs.ingest import PRUNE_LEFT_OUT, Given, InCollection, ingest_given, run_spec
from penstock.verbs.jobs import WORK, Job, Summary
from penstock.verbs.scope import Scope, chosen_collection
from penstock.verbs.summary import REMARKS, explain
from penstock.verbs.uploads import sweep_uploads
from penstock.verbs.working import work

RESCAN_S = 60.0
"""A pass starts at the latest after this time, in case that file notifications were lost."""
REST_S = 2.0
"""A file is submitted when it has not changed for this time: its writer may not be done."""
GATHER_S = 1.0
"""The shortest time between two passes."""
SHARE = 3.0
"""A pass over many files takes long. The time between two passes is at least this many times as long."""
TICK_S = 0.25
LOOK_S = 1.0
TROUBLE_S = 5.0
"""The time until the next pass if one could not be finished."""
PROBLEMS = 1_000
"""The number of problems that the summary lists."""

Say = Callable[[str], None]


async def watch(
    scope: Scope,
    paths: str | Path | Sequence[str | Path],
    *,
    metadata: dict[str, Any] | None = None,
    manifest: str | Path | None = None,
    collection: str | None = None,
    workflow: str | None = None,
    params: str | None = None,
    priority: int = 0,
    batch: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    prune: bool = False,
    retry: bool = False,
    again: bool = False,
    password: str | None = None,
    wait: bool = True,
    report: Say | None = None,
    on_problem: Say | None = None,
) -> Summary:
    """Ingest files and folders like `ingest`, and keep on until the app is stopped: submit what is new or has changed,
    and delete what is gone if `prune` is set. A worker processes the queue meanwhile, unless `wait` is False. Return
    the sum of all that was done. `report` is called with a line about what was done, `on_problem` with a line for each
    file that could not be read and each document that did not become searchable."""
    scope.ledger.database.refuse_read_only()
    roots = [_local(path) for path in arguments.paths(paths)]
    if not roots and manifest is None:
        raise UsageError("there is nothing to watch: use a folder")
    rest = _Rest(scope.runtime.clock)

    def prepare() -> tuple[Given, RunSpec]:
        known = InCollection(scope, chosen_collection(scope, collection), prune)
        there = arguments.paths([root for root in roots if os.path.lexists(root)])
        info = arguments.metadata(metadata)
        given = Given(scope, there, include, exclude, None, None, None, None, info, known, manifest, is_due=rest.is_due)
        return given, run_spec(scope, collection, workflow, params, priority, batch, retry, password)

    prepare()
    ignore: Say = lambda text: None  # noqa: E731
    watching = _Watching(scope, roots, rest, prepare, again, wait, report or ignore, on_problem or ignore)
    return await watching.run()


def _local(path: Path | str) -> Path:
    if isinstance(path, str):
        raise UsageError(f"{path}: only files and folders of this machine can be watched; ingest a URL again instead")
    return path


class _Rest:
    """Decides which of the files that a pass finds are submitted: those that are not known in their present form, and
    have not changed for REST_S. It compares what it was told at different times, and not the times of files, because
    their clock may be another one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._taken: dict[str, bytes] = {}
        """The form in which a file was submitted, by its URI."""
        self._seen: dict[str, tuple[bytes, float]] = {}
        """The form in which a file was found and the time since when, for those that were not submitted yet."""
        self.begin()

    def begin(self) -> None:
        self._now_taken: dict[str, bytes] = {}
        self._now_seen: dict[str, tuple[bytes, float]] = {}
        self.unsettled = 0
        """Files that changed a moment ago."""

    def is_due(self, found: Found, metadata: Mapping[str, Any]) -> bool:
        uri, form, now = found.uri, _form(found, metadata), self._clock()
        if self._taken.get(uri) == form:
            self._now_taken[uri] = form
            return False
        before, since = self._seen.get(uri, (form, now))
        since = since if before == form else now
        self._now_seen[uri] = form, since
        resting = now - since >= REST_S
        self.unsettled += not resting
        return resting

    def submitted(self, receipt: Receipt) -> None:
        """The file is taken. If it changed while it was read, it has to rest again."""
        form, _ = self._now_seen.pop(receipt.source, (None, 0.0))
        if form is None:
            return
        if receipt.id is not None:
            self._now_taken[receipt.source] = form
        elif (receipt.problem or "").endswith(CHANGING):
            self._now_seen[receipt.source] = form, self._clock()
            self.unsettled += 1
        else:
            # The next pass tries again.
            self._now_seen[receipt.source] = form, self._clock() - REST_S

    def end(self) -> None:
        """The pass is complete: what it did not find is forgotten."""
        self._taken, self._seen = self._now_taken, self._now_seen

    def cut(self) -> None:
        """The pass is not complete."""
        self._taken |= self._now_taken
        self._seen |= self._now_seen


def _form(found: Found, metadata: Mapping[str, Any]) -> bytes:
    if found.change is Change.GONE:
        return b"gone"
    about = json.dumps([found.revision, dict(metadata)], sort_keys=True, default=str)
    return hashlib.blake2b(about.encode("utf-8", "replace"), digest_size=16).digest()


class _Watching:
    def __init__(
        self,
        scope: Scope,
        roots: Sequence[Path],
        rest: _Rest,
        prepare: Callable[[], tuple[Given, RunSpec]],
        again: bool,
        wait: bool,
        report: Say,
        on_problem: Say,
    ) -> None:
        self._scope, self._resources = scope, scope.resources
        self._clock, self._runtime = scope.runtime.clock, scope.runtime
        self._roots, self._rest, self._prepare = roots, rest, prepare
        self._again, self._wait, self._report, self._on_problem = again, wait, report, on_problem
        self._events = FolderEvents(scope.runtime, scope.config.home_path)
        self._ends = _Ends(scope, on_problem, report)
        self._working: asyncio.Task[Summary] | None = None
        self._told: set[str] = set()
        """Problems that were reported and have not ended."""
        self._places: list[object] = []
        self._total = Summary()

    async def run(self) -> Summary:
        began, total = self._clock(), self._total
        if self._wait:
            self._working = asyncio.create_task(
                work(self._resources, None, self._on_problem, lambda: sweep_uploads(self._scope))
            )
        try:
            while not self._is_over:
                await self._follow_roots()
                await self._pause(await self._pass())
        except BaseException:
            if self._working is not None:
                self._working.cancel()
                await asyncio.gather(self._working, return_exceptions=True)
            raise
        finally:
            await self._events.close()
        if self._working is not None:
            total.made = (await self._working).made
            await self._ends.look()
            self._ends.add_to(total)
        if total.pending:
            total.left = await self._scope.ledger.read(queue.open_runs)
        total.elapsed_s = round(self._clock() - began, 3)
        return total

    @property
    def _is_over(self) -> bool:
        return self._resources.stopping or (self._working is not None and self._working.done())

    async def _pass(self) -> float:
        """Look at all files once. Return the time until the next pass, unless there is a file notification."""
        began, rest = self._clock(), self._rest
        self._events.changed.clear()
        rest.begin()
        try:
            given, spec = self._prepare()
            summary = await ingest_given(self._scope, given, spec, again=self._again, on_receipt=self._submitted)
        except (LedgerDamaged, Refused):
            raise
        except (Away, SourceError, StorageError, UsageError) as error:
            # Storage is away, or a folder went while it was read: later.
            rest.cut()
            self._tell([str(error)])
            return TROUBLE_S
        rest.end()
        self._add(summary)
        least = max(GATHER_S, SHARE * (self._clock() - began))
        await self._sleep(least)
        return 0.0 if rest.unsettled else RESCAN_S

    async def _pause(self, seconds: float) -> None:
        """Wait for the next pass: for its time, a file notification, or another folder or file at a watched path."""
        until = self._clock() + seconds
        while self._clock() < until and not self._is_over and not self._events.changed.is_set():
            await self._runtime.wait(self._events.changed, TICK_S)
            await self._ends.look_at_times()
            if await self._runtime.run_blocking("io", _places, self._roots) != self._places:
                return

    async def _sleep(self, seconds: float) -> None:
        until = self._clock() + seconds
        while self._clock() < until and not self._is_over:
            await self._runtime.wait(self._resources.stopped, min(TICK_S, seconds))
            await self._ends.look_at_times()

    async def _follow_roots(self) -> None:
        """Get file notifications for folders that are new or were replaced: those for the old ones have ended."""
        places = await self._runtime.run_blocking("io", _places, self._roots)
        if places != self._places:
            self._places = places
            await self._events.follow([root for root in self._roots if root.is_dir()])

    def _submitted(self, receipt: Receipt) -> None:
        self._rest.submitted(receipt)
        if self._wait and receipt.id is not None and receipt.outcome in WORK:
            self._ends.add(receipt.id, receipt.size)

    def _add(self, summary: Summary) -> None:
        total = self._total
        for name in ("submitted", "skipped", "deleted", "brought_back", "failed_before", "stale_settings"):
            setattr(total, name, getattr(total, name) + getattr(summary, name))
        if not self._wait:
            total.pending += summary.pending
            total.completed += summary.completed
        total.forgotten, total.disk_full, total.gone = summary.forgotten, summary.disk_full, summary.gone
        total.group = summary.group or total.group
        done = {"submitted": summary.submitted, "deleted": summary.deleted}
        if any(done.values()):
            self._report(", ".join(f"{n:,} {word}" for word, n in done.items() if n))
        problems = [problem for problem in summary.problems if not problem.endswith(CHANGING)]
        problems = [] if problems == [PRUNE_LEFT_OUT] else problems
        new = [problem for problem in problems if problem not in self._told]
        total.refused += sum(problem != PRUNE_LEFT_OUT for problem in new)
        total.problems += new[: max(0, PROBLEMS - len(total.problems))]
        self._tell(problems)

    def _tell(self, problems: list[str]) -> None:
        """Report problems that are new."""
        away = [root for root in self._roots if not os.path.lexists(root)]
        problems = problems + [f"{printable(root)}: it is not there now; its documents are kept" for root in away]
        if self._events.problem is not None and not away:
            problems.append(
                f"no file notifications ({self._events.problem}): files are looked at every {RESCAN_S:.0f} s"
            )
        for problem in problems:
            if problem not in self._told:
                self._on_problem(problem)
        self._told = set(problems)


def _places(roots: Sequence[Path]) -> list[object]:
    """What tells whether a watched folder was replaced, or a watched file changed."""
    found: list[object] = []
    for root in roots:
        try:
            s = root.stat()
        except OSError:
            found.append(None)
            continue
        place = (s.st_dev, s.st_ino)
        found.append(place if root.is_dir() else (*place, s.st_size, s.st_mtime_ns, s.st_ctime_ns))
    return found


class _Ends:
    """Follows the submitted documents until they end, and reports those that did not become searchable."""

    def __init__(self, scope: Scope, on_problem: Say, report: Say) -> None:
        self._scope, self._on_problem, self._report = scope, on_problem, report
        self._clock = scope.runtime.clock
        self._job = Job(scope.owner, scope.ledger, scope.runtime)
        self._counts: Counter[DocumentStatus] = Counter()
        self._explained = Summary()
        self._due = 0.0

    def add(self, document: DocumentId, size: int) -> None:
        self._job.add(document, size)

    async def look_at_times(self) -> None:
        if self._job.named and self._clock() >= self._due:
            began = self._clock()
            await self.look()
            self._due = began + max(LOOK_S, 20 * (self._clock() - began))

    async def look(self) -> None:
        await self._job.refresh()
        named = self._job.named
        ended = {document: status for document, status in named.items() if status in ENDS}
        for document in ended:
            del named[document]
        if not ended:
            return
        counts = Counter(ended.values())
        self._counts += counts
        self._report(", ".join(f"{n:,} {status.lower().replace('_', ' ')}" for status, n in counts.items()))
        part = Summary()
        await explain(self._scope.owner, self._scope.ledger, dict(ended), part)
        for remark in part.remarks:
            self._on_problem(f"{remark.name}: {remark.reason} – {remark.error}")
        total = self._explained
        known = total.reasons
        total.remarks += [remark for remark in part.remarks if known.get(remark.reason, 0) < REMARKS]
        total.reasons = dict((Counter(known) + Counter(part.reasons)).most_common())

    def add_to(self, total: Summary) -> None:
        for status, n in self._counts.items():
            setattr(total, status.lower(), n)
        total.pending = len(self._job.named)
        total.children = self._job.summary.children
        total.reasons, total.remarks = self._explained.reasons, self._explained.remarks
