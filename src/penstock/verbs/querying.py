"""The vectors of queries: with the embedder of the index version, within the limits of its provider, and booked."""

from collections.abc import Mapping

from penstock.embedders.base import Embedder, Remote
from penstock.errors import Away, RateLimited, Unauthorized, UsageError
from penstock.intake import RunSpec
from penstock.ledger.engine import index_versions, reindexes, targets, usage
from penstock.ledger.engine.index_versions import IndexVersion
from penstock.model.items import Vector
from penstock.model.usage import Booking, amount
from penstock.stages.buying import estimated_tokens, limited
from penstock.verbs.scope import Scope

_TEXT = "search with --mode text, which needs no embedder"


def choose(scope: Scope, versions: Mapping[str, IndexVersion]) -> Embedder:
    """Return the embedder that made the vectors of these versions. Raises UsageError if there are several."""
    chosen = {name: _of(scope, name, version) for name, version in versions.items() if version.embedder is not None}
    if not chosen:
        return _of(scope, *next(iter(versions.items())))
    models = {embedder.model.fingerprint: name for name, embedder in chosen.items()}
    if len(models) > 1:
        some = " and ".join(f"{name!r} ({model})" for model, name in list(models.items())[:2])
        raise UsageError(f"the collections {some} have different embedders: search one at a time, or {_TEXT}")
    for name, embedder in chosen.items():
        model, made_with = embedder.model, versions[name].embedder
        if made_with not in (model.fingerprint, *model.former_names):
            raise UsageError(
                f"collection {name!r} was embedded with {made_with}, not {model.fingerprint}: set that embedder, or "
                f"{_TEXT}"
            )
    return next(iter(chosen.values()))


def _of(scope: Scope, collection: str, version: IndexVersion) -> Embedder:
    """The embedder that is stored with the version, or else that of the settings."""
    if version.setting is not None and scope.ports.embedders:
        return scope.ports.embedders[version.setting]
    return scope.ports.embedder_for(scope.config.embed_parameters(collection))


async def fitted(scope: Scope, spec: RunSpec) -> RunSpec:
    """Return the RunSpec for an ingest. Raises UsageError if the collection has vectors of another model than the
    settings name, before anything is accepted: vectors of two models cannot be compared. While a re-index is under
    way, the embedder of the current index version is used. The re-index then repeats the document."""
    steps = [step for step in spec.workflow.steps if step.kind == "index"]
    version = await scope.ledger.read(lambda c: index_versions.current(scope.owner, c, spec.collection))
    if not steps or version is None or version.embedder is None:
        return spec
    model = scope.ports.embedder_for(steps[-1].parameters).model
    if version.embedder not in (model.fingerprint, *model.former_names):
        chosen = str(steps[-1].parameters.get("embedder") or scope.config.embedder)
        reindex = await scope.ledger.read(lambda c: reindexes.get(scope.owner, c, spec.collection))
        if reindex is not None and reindex.state != "DONE" and version.setting not in (None, chosen):
            return scope.resources.run_specs.pinned(spec, str(version.setting))
        if version.setting == chosen:
            raise UsageError(
                f"the embedder {chosen!r} has changed: collection {spec.collection!r} was embedded with "
                f"{version.embedder}, and it is {model.fingerprint} now. Go back to that one, or run "
                f"`penstock reindex --collection {spec.collection}`, which embeds the collection again"
            )
        now = f"the embedder of collection {spec.collection!r} is {version.setting or version.embedder}"
        raise UsageError(
            f"{now}, and the settings name {model.name or model.fingerprint}. Set `embedder: "
            f"{version.setting or version.embedder}` for it (under `collections`), or run `penstock reindex "
            f"--collection {spec.collection}`, which embeds the collection again"
        )
    return spec


async def query_vector(scope: Scope, embedder: Embedder, text: str) -> Vector:
    """Embed a query. A provider is called within its limits, and not at all while it is away."""
    model = embedder.model
    if not isinstance(embedder, Remote):
        return await embedder.embed_query(text)
    if scope.ledger.database.read_only:
        return await embedder.embed_query(text)
    await _refuse_away(scope, embedder.target)
    tokens = estimated_tokens(text)
    answer = await limited(
        scope.resources.query_calls,
        embedder,
        lambda: embedder.embed_counted([text], query=True),
        tokens=tokens,
        paid=False,
    )
    if model.paid:
        used = amount(1, len(text), tokens if answer.tokens is None else answer.tokens, model.price)
        await scope.ledger.write(usage.BOOK, (Booking(scope.owner, model.fingerprint, "query", used),))
    vector: Vector = answer.vectors[0]
    return vector


async def _refuse_away(scope: Scope, target: str) -> None:
    for hold in await scope.ledger.read(targets.all_held):
        if hold.name == target and hold.held_s > 0:
            said = f"{hold.error.rstrip('.')}. Try again in {hold.held_s:,.0f} s, or {_TEXT}"
            if hold.state is targets.State.UNAUTHORIZED:
                raise Unauthorized(said, setting="embedder", target=target)
            kind = RateLimited if hold.state is targets.State.LIMITED else Away
            raise kind(said, target=target, retry_after=hold.held_s)
