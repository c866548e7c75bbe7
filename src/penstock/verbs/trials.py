"""Trials: an index of the documents of a collection with other settings, in a folder of its own. The raw bytes and all
artifacts that the settings do not affect are those of the collection."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.artifacts.fingerprints import fingerprint
from penstock.config import ChunkConfig, CollectionConfig, Config
from penstock.errors import UsageError
from penstock.intake import RunSpec, submission
from penstock.ledger.engine import adoptions, deletions, documents, runs, submits
from penstock.ledger.engine.submissions import NewDocument
from penstock.ledger.reads import searchable
from penstock.ledger.reads.searchable import Searchable
from penstock.model import settings as run_settings
from penstock.model.nouns import DocumentId, RunId, WorkflowRef
from penstock.stages.base import Ports
from penstock.verbs import jobs
from penstock.verbs.changing import change
from penstock.verbs.jobs import Job, Report, Summary
from penstock.verbs.run_specs import RunSpecs
from penstock.verbs.scope import Scope
from penstock.verbs.working import start_worker
from penstock.worker.opening import OWN

if TYPE_CHECKING:
    from penstock.model.nouns import Workflow

PAGE = 200
CHUNK = tuple(f"chunk.{name}" for name in ChunkConfig.__struct_fields__)


@dataclass(frozen=True)
class Trial:
    """The index that a combination of settings needs."""

    key: str
    """The name of its folder. It is the same for the same owner, collection and settings."""
    config: Config
    spec: RunSpec
    ports: Ports


def make_trial(scope: Scope, collection: str, settings: Mapping[str, Any]) -> Trial:
    """Return the trial for these settings. Raises UsageError or ConfigError if they make no sense."""
    config = _config(scope.config, collection, settings)
    ports = scope.ports if config.embedder == scope.config.embedder else scope.resources.make_trial_ports(config)
    specs = RunSpecs(config, scope.runtime, scope.catalog, lambda: ports)
    asked = specs.asked(collection, None, None)
    values = _values(specs.workflow(collection, asked), settings)
    spec = specs.start(scope.owner, collection, WorkflowRef(asked.workflow, asked.params, values), retry=True)
    # A trial causes no events: it has no group, and its workflow has no handlers.
    quiet = msgspec.structs.replace(spec.workflow, lifecycle_events={})
    spec = replace(spec, workflow=quiet, group=None)
    key = fingerprint(scope.owner, collection, spec.settings, ports.embedder.model.fingerprint)[:20]
    return Trial(key, config, spec, ports)


def _config(config: Config, collection: str, settings: Mapping[str, Any]) -> Config:
    """The settings of the app, with those of the trial as if they stood in the settings file."""
    own = config.collections.get(collection) or CollectionConfig()
    chunk = {name.removeprefix("chunk."): value for name, value in settings.items() if name in CHUNK}
    if chunk:
        base = msgspec.structs.asdict(own.chunk or config.chunk)
        try:
            made = msgspec.convert({**base, **chunk}, ChunkConfig)
        except msgspec.ValidationError as error:
            raise UsageError(f"the settings to try are wrong: {error}") from None
        own = msgspec.structs.replace(own, chunk=made)
    changed = msgspec.structs.replace(
        config,
        collections={**config.collections, collection: own},
        embedder=str(settings.get("embedder", config.embedder)),
        workflows=str(config.folder(config.workflows, "workflows")),
        parameter_sets=str(config.folder(config.parameter_sets, "params")),
        webhooks={},
    )
    changed.chunk_parameters(collection)
    return changed


def _values(workflow: "Workflow", settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The values that the configuration cannot set: those of other steps, and those that the workflow sets itself."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        step, _, parameter = name.rpartition(".")
        if not step:
            continue
        steps = [one for one in workflow.steps if step in (one.name, one.kind)]
        if any(one.kind == "chunk" and one.method is None for one in steps) and parameter not in (
            ChunkConfig.__struct_fields__
        ):
            known = ", ".join(ChunkConfig.__struct_fields__)
            raise UsageError(f"{name!r}: a chunk step has no value {parameter!r}; use one of {known}")
        if name not in CHUNK or any(one.parameters.get(parameter) != value for one in steps):
            found.setdefault(step, {})[parameter] = value
    return found


async def searchable_documents(scope: Scope, collection: str) -> AsyncIterator[list[Searchable]]:
    """Yield the searchable documents of a collection in pages."""
    after = ""
    while page := await scope.ledger.read(partial(searchable.searchable, scope.owner), collection, after, PAGE):
        yield page
        after = page[-1].id


def is_made_with(document: Searchable, trial: Trial) -> bool:
    """Whether the collection has this document exactly as the trial would make it."""
    return document.settings is not None and run_settings.same(
        document.settings, trial.spec.settings, document.media_type
    )


async def build(scope: Scope, inner: Scope, trial: Trial, report: Report | None) -> Summary:
    """Bring the trial up to date with the collection: adopt the artifacts, submit the documents, and process them. An
    interrupted build continues where it was."""
    began, kept = inner.runtime.clock(), set[DocumentId]()
    async for page in searchable_documents(scope, trial.spec.collection):
        if scope.resources.stopping:
            break
        await _adopt(scope, inner, page)
        submitted = tuple(
            NewDocument(
                d.id, RunId(inner.runtime.ulid()), d.source, d.name, d.sha256, d.size, d.raw_key, json.loads(d.metadata)
            )
            for d in page
        )
        answers = await inner.ledger.write(submits.SUBMIT, submission(trial.spec, submitted))
        kept |= {answer.document_id for answer in answers}
    else:
        await _forget_others(inner, trial.spec.collection, kept)
    job = Job(inner.owner, inner.ledger, inner.runtime)
    return await jobs.run(job, start_worker(inner.resources, None, began, children=False), report)


async def _adopt(scope: Scope, inner: Scope, page: list[Searchable]) -> None:
    look = partial(searchable.made, scope.owner)
    artifacts, segments = await scope.ledger.read(look, [document.generation for document in page])
    # The artifacts of documents with children are marked as not shared; a trial submits no children.
    names = {artifact.id: artifact.fingerprint.partition(OWN)[0] for artifact in artifacts}
    adoption = adoptions.Adoption(
        inner.owner,
        tuple((names[a.id], a.kind, a.cursor, a.items, a.segments, a.meta) for a in artifacts),
        tuple((names[s.artifact], s.ordinal, s.key, s.sha256, s.size, s.items, s.first, s.cursor) for s in segments),
    )
    await inner.ledger.write(adoptions.ADOPT, adoption)


async def _forget_others(inner: Scope, collection: str, kept: set[DocumentId]) -> None:
    """Delete the documents that an earlier build had and the collection has no longer."""
    before, gone = "", []
    newest = partial(documents.newest, inner.owner)
    while page := await inner.ledger.read(newest, status="", collection=collection, before=before, count=PAGE):
        gone += [one.document.id for one in page if one.document.id not in kept]
        before = page[-1].document.id
    await change(inner, deletions.DELETE, runs.Selected(inner.owner, tuple(gone)))
