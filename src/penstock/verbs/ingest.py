"""`ingest` and `submit`: make documents of files, folders and streams."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec.structs import replace

from penstock.errors import UsageError
from penstock.extractors.formats import PARSED
from penstock.intake import Intake, RunSpec
from penstock.intake_items import Receipt, SubmitItem, refusal
from penstock.ledger.engine import deletions, documents, forgotten, revisions, runs
from penstock.model.nouns import DocumentId, WorkflowRef
from penstock.sources.base import NOTHING, Change, Closable, Found, Revised, Source
from penstock.sources.folder import FolderSource
from penstock.sources.stoppable import stoppable
from penstock.sources.stream import StreamSource
from penstock.upkeep.drop import finish_drops_of
from penstock.verbs import arguments, jobs
from penstock.verbs.admissions import gate_of
from penstock.verbs.changing import change
from penstock.verbs.ingest_plan import IngestPlan, make_plan
from penstock.verbs.jobs import Job, OnReceipt, Report, Summary
from penstock.verbs.manifests import Manifest
from penstock.verbs.querying import fitted
from penstock.verbs.scope import Scope, chosen_collection
from penstock.verbs.usage import check_max_cost
from penstock.verbs.working import start_worker
from penstock.workflows.load import merged

if TYPE_CHECKING:
    from penstock.worker.pool import Worker

PRUNE_LEFT_OUT = "--prune was left out, because not everything could be read"


async def ingest(
    scope: Scope,
    paths: str | Path | Sequence[str | Path] = (),
    *,
    data: bytes | bytearray | memoryview | BinaryIO | None = None,
    name: str | None = None,
    source: str | None = None,
    key: str | None = None,
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
    hold: bool = False,
    wait: bool = True,
    budget_s: float | None = None,
    max_cost: float | None = None,
    report: Report | None = None,
    on_receipt: OnReceipt | None = None,
) -> Summary:
    """Submit files, folders, URLs of sources (one, or a list of them) or `data`. Then process them until they have
    ended, unless `wait` is False. `manifest` is a CSV file that names files and their metadata. `data` needs a `name`;
    its source URI is `source`, or else the name. `budget_s` and `max_cost` (US dollars for embeddings) stop it earlier;
    the next call continues. With `again`, files that were deleted with `forget` come back. With `hold`, the documents
    are accepted and wait until they are started (`start_batch`, `start_document`).
    `report` is called with the progress, and `on_receipt` with the receipt of each document."""
    scope.ledger.database.refuse_read_only()
    began = scope.runtime.clock()
    arguments.seconds("budget_s", budget_s)
    check_max_cost(scope.resources, max_cost)
    known = InCollection(scope, chosen_collection(scope, collection), prune)
    given_paths, info = arguments.paths(paths), arguments.metadata(metadata)
    given = Given(scope, given_paths, include, exclude, data, name, source, key, info, known, manifest)
    spec = run_spec(scope, collection, workflow, params, priority, batch, retry, password, hold)
    start = (lambda: start_worker(scope.resources, budget_s, began, max_cost=max_cost)) if wait and not hold else None
    return await ingest_given(scope, given, spec, again=again, start=start, report=report, on_receipt=on_receipt)


async def ingest_given(
    scope: Scope,
    given: "Given",
    spec: RunSpec,
    *,
    again: bool,
    start: "Callable[[], Worker] | None" = None,
    report: Report | None = None,
    on_receipt: OnReceipt | None = None,
) -> Summary:
    """Submit the input of a call, process it if `start` makes a worker, and delete what is gone if that was asked
    for."""
    await finish_drops_of(scope.ledger, scope.owner, spec.collection)
    spec = await fitted(scope, spec)
    await given.recall(spec.collection, again=again)
    job = Job(scope.owner, scope.ledger, scope.runtime)
    intake = Intake(scope.ledger, scope.blobs, scope.runtime, gate=gate_of(scope))
    items = _reported(given, job, start is not None, on_receipt)
    async with given:
        summary = await jobs.ingest(job, intake, spec, items, start, report, on_receipt)
        if given.known.prune and not scope.resources.stopping:
            summary.deleted = await _prune(scope, given, summary)
    summary.gone = 0 if summary.deleted else len(given.gone)
    return summary


async def _reported(
    given: "Given", job: Job, work: bool, on_receipt: OnReceipt | None
) -> AsyncGenerator[SubmitItem, None]:
    """Yield the items, then count what could not be read in the summary of the job."""
    async with aclosing(given.items(work=work)) as found:
        async for item in found:
            yield item
    job.summary.problems += given.problems
    job.summary.refused += len(given.problems)
    job.summary.forgotten = given.kept_away
    if on_receipt is not None:
        for problem in given.problems:
            on_receipt(refusal(problem))


async def submit(
    scope: Scope,
    paths: str | Path | Sequence[str | Path] = (),
    *,
    data: bytes | bytearray | memoryview | BinaryIO | None = None,
    name: str | None = None,
    source: str | None = None,
    key: str | None = None,
    metadata: dict[str, Any] | None = None,
    manifest: str | Path | None = None,
    collection: str | None = None,
    workflow: str | None = None,
    params: str | None = None,
    priority: int = 0,
    batch: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    retry: bool = False,
    again: bool = False,
    password: str | None = None,
    hold: bool = False,
) -> AsyncIterator[Receipt]:
    """Submit files, folders or `data` like `ingest`, and leave the processing to workers: `async for receipt in
    app.submit(…)`. It yields one receipt for each document when the document is durable, in batches of up to 256. If
    the caller ends the iteration early, later files are not submitted."""
    scope.ledger.database.refuse_read_only()
    known = InCollection(scope, chosen_collection(scope, collection))
    given_paths, info = arguments.paths(paths), arguments.metadata(metadata)
    given = Given(scope, given_paths, include, exclude, data, name, source, key, info, known, manifest)
    spec = run_spec(scope, collection, workflow, params, priority, batch, retry, password, hold)
    await finish_drops_of(scope.ledger, scope.owner, spec.collection)
    spec = await fitted(scope, spec)
    await given.recall(spec.collection, again=again)
    intake = Intake(scope.ledger, scope.blobs, scope.runtime, gate=gate_of(scope))
    began = False
    try:
        async with aclosing(intake.submit(spec, given.items(work=False))) as batches:
            async for receipts in batches:
                began = True
                for receipt in receipts:
                    yield receipt
    except GeneratorExit:
        if began:
            await intake.seal(spec)
        raise
    finally:
        await given.__aexit__()
    for problem in given.problems:
        yield refusal(problem)


async def plan_ingest(
    scope: Scope,
    paths: str | Path | Sequence[str | Path],
    *,
    manifest: str | Path | None = None,
    collection: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    again: bool = False,
) -> IngestPlan:
    """Return what `ingest` would do with these files and folders: how many are new, changed or unchanged, by type, with
    their sizes. Known files are read and compared; of new ones, only the beginning is read. Nothing is written."""
    where = chosen_collection(scope, collection)
    known = InCollection(scope, where)
    given = Given.of_files(scope, paths, known, include, exclude, manifest)
    await given.recall(where, again=False)
    if again:
        given.forgotten = frozenset()
    async with given:
        plan = await make_plan(scope, where, given.items(work=False))
    return replace(plan, forgotten=given.kept_away, problems=[*plan.problems, *given.problems])


def run_spec(
    scope: Scope,
    collection: str | None,
    workflow: str | None,
    params: str | None,
    priority: int,
    batch: str | None,
    retry: bool,
    password: str | None,
    hold: bool = False,
    values: Mapping[str, Mapping[str, Any]] | None = None,
) -> RunSpec:
    arguments.number("priority", priority, -arguments.PRIORITY, arguments.PRIORITY)
    arguments.maybe("batch", batch)
    arguments.maybe("password", password)
    where, specs = chosen_collection(scope, collection), scope.resources.run_specs
    asked = specs.asked(where, workflow, params)
    if values:
        asked = WorkflowRef(asked.workflow, asked.params, merged(arguments.values(values)))
    return specs.start(
        scope.owner, where, asked, priority=priority, batch=batch, retry=retry, password=password, hold=hold
    )


@dataclass
class Given:
    """The input of a call: files and folders, or one document given as bytes."""

    scope: Scope
    paths: Sequence[Path | str]
    """Files and folders as paths, and URLs of other sources as strings."""
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    data: bytes | bytearray | memoryview | BinaryIO | None
    name: str | None
    source: str | None
    key: str | None
    metadata: dict[str, Any]
    known: "InCollection"
    """The documents that new, changed and gone ones are computed from."""
    manifest: str | Path | None = None
    is_due: Callable[[Found, Mapping[str, Any]], bool] | None = None
    """Decides by the metadata and the revision which of the found documents (also gone ones) are yielded."""
    problems: list[str] = field(default_factory=list)
    """Files that could not be read. The list is complete when all items were yielded."""
    gone: dict[str, Source] = field(default_factory=dict)
    """Known source URIs whose document no longer exists. They are complete when all items were yielded."""

    forgotten: frozenset[str] = frozenset()
    """Sources that were deleted with `forget`."""
    kept_away: int = 0
    """Files that were skipped because they are forgotten."""

    @classmethod
    def of_files(
        cls,
        scope: Scope,
        paths: str | Path | Sequence[str | Path],
        known: "InCollection",
        include: str | Sequence[str],
        exclude: str | Sequence[str],
        manifest: str | Path | None,
    ) -> "Given":
        return cls(scope, arguments.paths(paths), include, exclude, None, None, None, None, {}, known, manifest)

    async def recall(self, collection: str, *, again: bool) -> None:
        """Read which sources are forgotten. `again`: those that are found come back."""
        self.collection, self.again = collection, again
        self.forgotten = await self.scope.ledger.read(partial(forgotten.sources, self.scope.owner), collection)

    async def _stays_away(self, uri: str) -> bool:
        if uri in self.forgotten and self.again:
            await self.scope.ledger.write(forgotten.REMEMBER, (self.scope.owner, self.collection, uri))
            return False
        self.kept_away += uri in self.forgotten
        return uri in self.forgotten

    def __post_init__(self) -> None:
        self.include, self.exclude = arguments.globs(self.include), arguments.globs(self.exclude)
        arguments.maybe("name", self.name)
        arguments.maybe("key", self.key)
        if arguments.maybe("source", self.source) is not None and self.data is None:
            raise UsageError("source names what comes as `data`: files are known by their paths")
        if self.data is not None:
            self._data = arguments.data(self.data)
            if not self.name:
                raise UsageError('data needs a name, as in name="notes.txt"')
        self._manifest = None if self.manifest is None else Manifest(arguments.folder("manifest", self.manifest))
        if self._manifest is not None:
            self.paths = [*self.paths, *self._manifest.paths]
            self.problems += self._manifest.problems
        self._sources = [*self._folders(), *self._others()]

    async def items(self, *, work: bool) -> AsyncGenerator[SubmitItem, None]:
        """Yield the items. `work`: this call also processes the documents, so parser processes are started early."""
        resources, given = self.scope.resources, 0
        if self.data is not None:
            given += 1
            stream = self._streamed(self._data)
            if not await self._stays_away(stream.found.uri):
                yield SubmitItem(stream, stream.found, self.key, self.metadata)
        for source in self._sources:
            remote = isinstance(source, Revised)
            # The hashes of local files decide what has changed.
            known = self.known if remote or self.known.prune else NOTHING
            async with aclosing(source.discover(known)) as discovered:
                async for found in discovered:
                    if self._manifest is not None and found.uri == self._manifest.uri:
                        continue
                    if self.is_due is not None and not self.is_due(found, self._metadata(found)):
                        continue
                    if found.change is Change.GONE:
                        self.gone[found.uri] = source
                        continue
                    if await self._stays_away(found.uri):
                        continue
                    given += 1
                    if self.key is not None and given > 1:
                        raise UsageError(
                            f"the idempotency key {self.key!r} can be used for one document only, but there are several"
                        )
                    if resources.stopping:
                        break
                    if arguments.is_long(found.uri):
                        self.problems.append(f"{found.uri}: the path is longer than {arguments.TEXT_LIMIT:,} bytes")
                        continue
                    if work and found.name.lower().endswith(PARSED):
                        resources.parsers.start()
                    yield SubmitItem(source, found, self.key, self._metadata(found), remote)
            self.problems += source.problems

    def _metadata(self, found: Found) -> dict[str, Any]:
        listed = {} if self._manifest is None else self._manifest.metadata.get(found.uri, {})
        return {**found.metadata, **listed, **self.metadata}

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None:
        """Close the connections of the sources."""
        for source in self._sources:
            if isinstance(source, Closable):
                await source.close()

    def _urls(self) -> list[str]:
        return [path for path in self.paths if isinstance(path, str)]

    def _folders(self) -> list[Source]:
        roots = [path for path in self.paths if isinstance(path, Path)]
        if not roots:
            return []
        skip = self.scope.config.home_path
        return [
            FolderSource(
                roots,
                self.scope.runtime,
                include=arguments.globs(self.include),
                exclude=arguments.globs(self.exclude),
                skip=skip,
            )
        ]

    def _others(self) -> list[Source]:
        resources = self.scope.resources
        made = resources.make_sources(self._urls(), tuple(self.include), tuple(self.exclude))
        return [stoppable(source, resources.stopped) for source in made]

    def _streamed(self, data: bytes | BinaryIO) -> StreamSource:
        assert self.name is not None
        return StreamSource(self.source or self.name, self.name, data, self.scope.runtime)


class InCollection:
    """The documents of a collection that the ledger knows."""

    def __init__(self, scope: Scope, collection: str, prune: bool = False) -> None:
        self._scope = scope
        self._collection = collection
        self.prune = prune
        self.documents: dict[str, DocumentId] = {}
        """Known documents by source URI, for the requested ones."""

    async def revisions(self, uris: Sequence[str]) -> Mapping[str, str]:
        found = await self._scope.ledger.read(partial(revisions.of, self._scope.owner), self._collection, uris)
        self.documents.update((uri, one.document) for uri, one in found.items())
        return {uri: one.revision for uri, one in found.items()}

    async def under(self, prefix: str) -> AsyncIterator[str]:
        """Yield nothing unless documents that are gone are to be deleted: the answer may be long."""
        if not self.prune:
            return
        found = await self._scope.ledger.read(partial(documents.under, self._scope.owner), self._collection, prefix)
        for document, source in found:
            self.documents[source] = document
            yield source


async def _prune(scope: Scope, given: Given, summary: Summary) -> int:
    """Delete documents that no longer exist in these sources. If something could not be read, delete nothing."""
    if summary.problems:
        summary.problems.append(PRUNE_LEFT_OUT)
        return 0
    # A file may exist again by now.
    gone = [
        given.known.documents[uri]
        for uri, source in given.gone.items()
        if not (isinstance(source, FolderSource) and Path(uri).exists())
    ]
    return len(await change(scope, deletions.DELETE, runs.Selected(scope.owner, tuple(dict.fromkeys(gone)))))
