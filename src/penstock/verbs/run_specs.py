"""Make the RunSpec of a call: the workflow with all its values, and the fingerprint of everything except the bytes that
affects the output."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from penstock.artifacts.fingerprints import fingerprint
from penstock.config import Config
from penstock.errors import ConfigError, NoDefinition, Unauthorized
from penstock.extractors import ocr
from penstock.extractors.base import Extractor, Scanning
from penstock.intake import RunSpec
from penstock.ledger.engine.documents import Origin
from penstock.ledger.engine.groups import GroupStart
from penstock.model import settings as run_settings
from penstock.model.nouns import Json, Owner, Workflow, WorkflowRef
from penstock.runtime import Runtime
from penstock.stages.base import Ports
from penstock.stages.registry import STAGES
from penstock.verbs import arguments
from penstock.verbs.changes import Changes
from penstock.workflows.catalog import Catalog
from penstock.workflows.load import (
    encode,
    merged,
    remember,
    with_chunk_sizes,
    with_defaults,
    with_embedder,
    with_parameters,
    with_webhooks,
)

KEPT_S = 1.0
"""How long a workflow with its values is used again."""
MOST_KEPT = 1_000


class _Kept(msgspec.Struct, frozen=True):
    state: tuple[object, ...]
    """The files of the catalog when it was made."""
    since: float
    workflow: Workflow
    settings: str


class RunSpecs:
    def __init__(self, config: Config, runtime: Runtime, catalog: Catalog, ports: Callable[[], Ports]) -> None:
        self._config = config
        self._runtime = runtime
        self._catalog = catalog
        self._ports = ports
        self._kept: dict[tuple[str, str, str | None], _Kept] = {}

    def asked(self, collection: str, workflow: str | None, params: str | None) -> WorkflowRef:
        """Return the names of workflow and parameter set: the given ones, or else those of the collection, or else the
        defaults."""
        arguments.maybe("workflow", workflow)
        arguments.maybe("params", params)
        own = self._config.collections.get(collection)
        return WorkflowRef(
            workflow or (own.workflow if own else None) or self._config.workflow,
            params or (own.params if own else None) or self._config.params,
        )

    def workflow(self, collection: str, asked: WorkflowRef) -> Workflow:
        """Return the workflow as a run of the collection would store it."""
        found = self._catalog.workflow(asked.workflow)
        values = {
            "chunk": self._config.given_chunk_parameters(collection),
            "extract": self._config.extract_parameters(collection),
            "embed": self._config.embed_parameters(collection),
        }
        found = with_webhooks(with_defaults(found, values), self._config.webhooks)
        return self._checked(self._with_values(found, asked.params, asked.values))

    def _checked(self, workflow: Workflow) -> Workflow:
        for step in workflow.steps:
            if step.kind == "extract" and step.method is None:
                what = f"workflow {workflow.id!r}, step {step.name!r}"
                ocr.refuse_wrong_parameters(step.parameters, self._config.ocr.tessdata, what)
        return with_embedder(with_chunk_sizes(workflow))

    def start(
        self,
        owner: Owner,
        collection: str,
        asked: WorkflowRef,
        *,
        priority: int = 0,
        batch: str | None = None,
        retry: bool = False,
        password: str | None = None,
        hold: bool = False,
    ) -> RunSpec:
        """Make the RunSpec of a new group of runs, or of runs that wait."""
        chosen, settings = self._prepared(collection, asked)
        family = None if hold else GroupStart(self._runtime.ulid(), chosen.id, asked.params)
        return RunSpec(owner, collection, chosen, settings, priority, batch, retry, password, family, held=hold)

    def _prepared(self, collection: str, asked: WorkflowRef) -> tuple[Workflow, str]:
        """Return the workflow with its values, and the fingerprint of the settings. A service makes them for every
        upload, so they are made again only after a second, or when a file of the catalog has changed."""
        state = None if asked.values else self._catalog.state(asked.workflow, asked.params)
        if state is None:
            chosen = remember(self.workflow(collection, asked), asked)
            return chosen, self.settings(chosen)
        key, now = (collection, asked.workflow, asked.params), self._runtime.clock()
        kept = self._kept.get(key)
        if kept is None or kept.state != state or now - kept.since >= KEPT_S:
            chosen = remember(self.workflow(collection, asked), asked)
            kept = _Kept(state, now, chosen, self.settings(chosen))
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = kept
        return kept.workflow, kept.settings

    def pinned(self, spec: RunSpec, embedder: str) -> RunSpec:
        """Return the RunSpec with another embedder."""
        chosen = with_parameters(spec.workflow, {"embed": {"embedder": embedder}}, "the embedder of the index")
        chosen = with_embedder(chosen)
        return replace(spec, workflow=chosen, settings=self.settings(chosen))

    def again(self, owner: Owner, origin: Origin, snapshot: Workflow, changes: Changes) -> tuple[RunSpec, str | None]:
        """Make the RunSpec for a retry: the workflow and values of the run, as they are defined now, unless others are
        given. If their definition no longer exists, the workflow snapshot of the run is used, and the returned note
        says so."""
        own, note = snapshot.asked or WorkflowRef(snapshot.id), None
        if changes.workflow is not None:
            asked = self.asked(origin.collection, changes.workflow, changes.params)
            asked = WorkflowRef(asked.workflow, asked.params, merged(changes.values))
        elif changes.params is not None:
            asked = WorkflowRef(own.workflow, changes.params, merged(changes.values))
        else:
            asked = WorkflowRef(own.workflow, own.params, merged(own.values, changes.values))
        try:
            chosen = remember(self.workflow(origin.collection, asked), asked)
        except NoDefinition as error:
            if changes.workflow is not None:
                raise
            # The old definition is missing. This raises if the parameter set that was given now is missing too.
            found = self._checked(self._with_values(snapshot, changes.params, changes.values))
            chosen = remember(found, asked)
            note = (
                f"documents of {snapshot.id!r} go on with the workflow and the values that they started with: {error}"
            )
        settings = self.settings(chosen)
        return RunSpec(owner, origin.collection, chosen, settings, origin.priority, password=changes.password), note

    def _with_values(self, workflow: Workflow, params: str | None, values: Mapping[str, Mapping[str, Any]]) -> Workflow:
        if params is not None:
            found = self._catalog.parameter_set(params)
            workflow = with_parameters(workflow, found.config, f"parameter set {found.id!r}")
        return with_parameters(workflow, values, "the values given") if values else workflow

    def settings(self, chosen: Workflow) -> str:
        """Return the fingerprint of everything except the bytes that affects the output."""
        ports = self._ports()
        _refuse_missing_keys(ports, chosen)
        loaded = {name: _extractor(ports, name) for name in ports.extractors}
        versions = [
            (step.kind, STAGES[step.kind].version(ports, step.parameters, None))
            for step in chosen.steps
            if step.kind in STAGES and step.method is None
        ]
        extractors = [
            {name: _version(ports, name, one, step.parameters) for name, one in loaded.items()}
            for step in chosen.steps
            if step.kind == "extract" and step.method is None
        ]
        formats = {name: fingerprint([found[name] for found in extractors]) for name in loaded}
        scanning = _scan_versions(chosen, {name: one for name, one in loaded.items() if one is not None})
        # Lifecycle events and the names that were asked for do not change the outcome. OCR counts apart.
        plain = msgspec.structs.replace(_without_ocr(chosen), lifecycle_events={}, asked=None)
        body = encode(plain)[0]
        whole = fingerprint(body, versions, extractors[0] if len(extractors) == 1 else extractors, scanning)
        # Without a media type, the version of extract is that of plain text.
        base = fingerprint(body, [(kind, version) for kind, version in versions if kind != "extract"])
        return run_settings.join(whole, base, formats | scanning)


def _scan_versions(chosen: Workflow, loaded: Mapping[str, Extractor]) -> dict[str, str]:
    """What reads the scanned pages of documents, by a name that belongs to their media type."""
    steps = [step for step in chosen.steps if step.kind == "extract" and step.method is None]
    scanning = {name: one for name, one in loaded.items() if isinstance(one, Scanning)}
    return {
        name + run_settings.SCANNED: fingerprint([one.scan_version(name, step.parameters) for step in steps])
        for name, one in scanning.items()
    }


def _without_ocr(workflow: Workflow) -> Workflow:
    steps = tuple(
        msgspec.structs.replace(
            step, parameters={key: value for key, value in step.parameters.items() if key not in ocr.PARAMETERS}
        )
        if step.kind == "extract" and step.method is None
        else step
        for step in workflow.steps
    )
    return msgspec.structs.replace(workflow, steps=steps)


def _refuse_missing_keys(ports: Ports, workflow: Workflow) -> None:
    """Raise ConfigError if the provider of an extract step cannot be called, before anything is accepted."""
    for step in workflow.steps:
        if step.kind == "extract" and step.method is None:
            try:
                ports.cloud_extractor(step.parameters)
            except Unauthorized as error:
                raise ConfigError(f"{error}: set it") from error


def _extractor(ports: Ports, media_type: str) -> Extractor | None:
    """Return the extractor; None for one of an installed package that cannot be loaded, which must not keep documents
    of other types from being submitted."""
    try:
        return ports.extractors[media_type]
    except ConfigError:
        return None


def _version(ports: Ports, media_type: str, local: Extractor | None, parameters: Json) -> Any:
    cloud = ports.cloud_extractor(parameters)
    chosen = cloud if cloud is not None and cloud.reads(media_type) else local
    return None if chosen is None else chosen.version(media_type, parameters)
