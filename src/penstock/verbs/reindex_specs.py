"""What a re-index is made with: the workflow and its values, the embedder and the index; and whether documents are made
with these already."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from penstock.embedders.base import Embedder
from penstock.errors import NotFound, UsageError
from penstock.indexes.several import OF_LEDGER, stored_name, url_of, without_password
from penstock.intake import RunSpec, submission
from penstock.ledger.engine import index_versions
from penstock.ledger.engine.index_versions import IndexVersion
from penstock.ledger.engine.reindexes import Recipe
from penstock.ledger.reads import searchable
from penstock.model import settings as run_settings
from penstock.model.nouns import StepDefinition, Workflow, WorkflowRef
from penstock.redaction import masked
from penstock.verbs.scope import Scope
from penstock.workflows.load import decode, with_embedder, with_parameters

PAGE = 1_000


def affected(
    workflow: Workflow, former: Workflow | None, models: tuple[str, ...], embedder: str | None
) -> tuple[str, ...]:
    """The kinds of steps from the first one that differs. The index is always written."""
    before = {} if former is None else {step.name: step for step in former.steps}
    same = 0
    for step in workflow.steps:
        other = before.get(step.name)
        is_new = step.kind == "index" or (step.kind == "embed" and embedder not in models)
        if is_new or other is None or other.method != step.method or _plain(other) != _plain(step):
            break
        same += 1
    return tuple(dict.fromkeys(step.kind for step in workflow.steps[same:]))


def _plain(step: StepDefinition) -> dict[str, Any]:
    return {name: value for name, value in step.parameters.items() if name != "embedder"}


def spec_of(scope: Scope, collection: str, embedder: str | None, values: Mapping[str, Mapping[str, Any]]) -> RunSpec:
    """Make the RunSpec of the runs. They cause no events: the documents do not change."""
    specs = scope.resources.run_specs
    asked = specs.asked(collection, None, None)
    chosen = {step: dict(some) for step, some in values.items()}
    usual = scope.config.embed_parameters(collection).get("embedder", scope.config.embedder)
    if embedder is not None and embedder != usual:
        chosen.setdefault("embed", {})["embedder"] = embedder
    spec = specs.start(scope.owner, collection, WorkflowRef(asked.workflow, asked.params, chosen))
    if not any(step.kind == "index" for step in spec.workflow.steps):
        raise UsageError(f"workflow {spec.workflow.id!r} has no index step: there is nothing to re-index")
    quiet = msgspec.structs.replace(spec.workflow, lifecycle_events={})
    return replace(spec, workflow=quiet, group=None)


def embedder_of(scope: Scope, spec: RunSpec) -> Embedder:
    steps = [step for step in spec.workflow.steps if step.kind == "index"]
    return scope.ports.embedder_for(steps[-1].parameters)


def given_names(embedder: str | None, values: Mapping[str, Mapping[str, Any]], index: str | None) -> dict[str, Any]:
    named = {f"{step}.{name}": value for step, some in values.items() for name, value in some.items()}
    given = {"embedder": embedder, "index": index}
    return {name: value for name, value in given.items() if value is not None} | named


async def store_named(scope: Scope, index: str | None) -> str:
    """How the ledger names the index for the next version. Raises an error if it cannot be used."""
    config = scope.config
    if index is None:
        return scope.ports.index_name
    store = stored_name(config, index)
    url = url_of(config, store)
    if store != OF_LEDGER and without_password(index) != index and without_password(url) == url:
        raise UsageError(
            f"the index {masked(index)} has a password, which the ledger does not store: put the URL below `indexes` "
            "in the settings of all workers, and use its name"
        )
    await scope.ports.index.at(store).tables()
    return store


def is_elsewhere(scope: Scope, version: IndexVersion, store: str) -> bool:
    return (version.store or scope.ports.index_name) != store


def recipe_of(spec: RunSpec, given: dict[str, Any]) -> Recipe:
    s = submission(spec, ())
    return Recipe(s.snapshot, s.body, s.settings, s.first, given)


def with_former_embedder(scope: Scope, recipe: Recipe, collection: str, setting: str | None) -> Recipe:
    """The recipe of a former version, with its embedder even if the settings name another one by now."""
    workflow = decode(recipe.body)
    usual = scope.config.embed_parameters(collection).get("embedder", scope.config.embedder)
    own = [step.parameters.get("embedder") for step in workflow.steps if step.kind == "embed"]
    if setting is None or any(own) or setting == usual:
        return recipe
    pinned = with_embedder(with_parameters(workflow, {"embed": {"embedder": setting}}, "the former embedder"))
    spec = RunSpec(scope.owner, collection, pinned, scope.resources.run_specs.settings(pinned))
    return recipe_of(spec, recipe.given)


def is_made_with(document: searchable.Searchable, spec: RunSpec) -> bool:
    made = document.settings
    return made is not None and run_settings.same(made, spec.settings, document.media_type)


async def is_changed(scope: Scope, spec: RunSpec, store: str) -> bool:
    """Whether a document was made with other settings, or with another model of the same name, or is in another
    index."""
    version = await scope.ledger.read(lambda c: index_versions.current(scope.owner, c, spec.collection))
    if version is None:
        raise NotFound(f"no collection {spec.collection!r}: `penstock collection list` shows all collections")
    model = embedder_of(scope, spec).model
    if is_elsewhere(scope, version, store):
        return True
    if version.embedder not in (None, model.fingerprint, *model.former_names):
        return True
    after = ""
    look = partial(searchable.searchable, scope.owner)
    while page := await scope.ledger.read(look, spec.collection, after, PAGE):
        if not all(is_made_with(one, spec) for one in page):
            return True
        after = page[-1].id
    return False
