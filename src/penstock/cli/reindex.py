"""`reindex`: make a collection again with other settings while searches go on."""

from typing import TYPE_CHECKING, Any

import click

from penstock.cli import completion
from penstock.cli.call import Call, body
from penstock.cli.changes import by_step
from penstock.cli.output import Answer, as_data, count, visible, when
from penstock.cli.progress import ProgressDisplay
from penstock.cli.work import BUDGET, MAX_COST, parse_duration

if TYPE_CHECKING:
    from penstock.verbs.owner import OwnerScope
    from penstock.verbs.reindex import ReindexEstimate, ReindexView


@click.command()
@click.option("--collection", metavar="NAME", shell_complete=completion.collections, help="The collection to re-index.")
@click.option("--embedder", metavar="MODEL", help="Embed with this model instead of that of the settings.")
@click.option("--set", "values", metavar="STEP.NAME=VALUE", multiple=True, help="Use this value, as in chunk.size=500.")
@click.option("--index", metavar="URL", help="Move it to another index, as in pgvector or lancedb:///FOLDER.")
@click.option("--again", is_flag=True, help="Also if all documents are made with these settings already.")
@click.option("--estimate", is_flag=True, help="Only show what would be done, and about what it would cost.")
@click.option("--status", is_flag=True, help="Only show how far it is.")
@click.option("--pause", is_flag=True, help="Start no more runs. The same command without options continues.")
@click.option("--cancel", is_flag=True, help="Give it up. The current index stays as it is.")
@click.option("--undo", is_flag=True, help="Go back to the former index, as long as it is kept.")
@click.option("--no-wait", is_flag=True, help="Leave the work to `penstock worker`.")
@BUDGET
@MAX_COST
@body
async def reindex(
    call: Call,
    collection: str | None,
    embedder: str | None,
    values: tuple[str, ...],
    index: str | None,
    again: bool,
    no_wait: bool,
    budget: str | None,
    max_cost: float | None,
    **actions: bool,
) -> Answer:
    """Make a collection again with other settings, without downtime.

    Only the steps that the settings affect are executed, and only these texts are embedded again. Searches use the
    current index until every document is in the next one at its newest content; then they switch at once. If it is
    interrupted, a worker or the same command continues.
    """
    from penstock.errors import UsageError

    chosen = [name for name, is_set in actions.items() if is_set]
    given = bool(embedder or values or index or again)
    if len(chosen) > 1 or (given and chosen not in ([], ["estimate"])):
        raise UsageError(
            "use only one of --estimate, --status, --pause, --cancel and --undo, and new settings only "
            "without them or with --estimate"
        )
    changes: dict[str, Any] = {"embedder": embedder, "values": by_step(values), "index": index}
    if chosen == ["estimate"]:
        async with call.scope() as scope:
            return _estimated(await scope.estimate_reindex(collection, **changes))
    seconds = parse_duration(budget)
    async with call.working_app() as app:
        scope, progress = call.scoped(app), ProgressDisplay()
        report = None if call.quiet else progress
        try:
            if chosen:
                view = await _act(scope, chosen[0], collection, not no_wait, report)
            else:
                options: dict[str, Any] = {"again": again, "wait": not no_wait, "budget_s": seconds}
                view = await scope.reindex(collection, **changes, **options, max_cost=max_cost, report=report)
        finally:
            progress.close()
    return _answer(view, asked=not chosen)


async def _act(scope: "OwnerScope", action: str, collection: str | None, wait: bool, report: Any) -> "ReindexView":
    if action == "undo":
        return await scope.undo_reindex(collection, wait=wait, report=report)
    methods = {
        "status": scope.reindex_status,
        "pause": scope.pause_reindex,
        "cancel": scope.cancel_reindex,
    }
    return await methods[action](collection)


def _answer(view: "ReindexView", *, asked: bool) -> Answer:
    hints, code = [], 0
    if view.state == "none":
        text = f"{view.collection}: no re-index is under way; the index is version {view.version}"
    elif view.state == "unchanged":
        text = f"{view.collection}: all documents are made with these settings already; --again makes them once more"
    elif view.state == "done":
        text = f"{view.collection}: {count(view.documents, 'document')} in index version {view.version}"
        if view.undo_until is not None:
            hints.append(f"Version {view.former} is kept until {when(view.undo_until)}: `penstock reindex --undo`.")
        if asked and view.given:
            hints.append(f"Put the values into the settings, so that new documents are made alike: {_settings(view)}")
    else:
        text = (
            f"{view.collection}: {view.state}, {view.staged:,} of {count(view.documents, 'document')} in index version "
            f"{view.version}; searches use version {view.former}"
        )
        if view.failed:
            hints.append(
                f"{count(view.failed, 'document')} failed. Retry them (`penstock retry`) or delete them, then repeat "
                "the command; or give up with --cancel."
            )
        if view.interrupted or view.state == "paused":
            hints.append(
                "The same command without settings continues, and so does `penstock worker`."
                if view.state != "paused"
                else "The same command without settings continues."
            )
        code = 1 if asked and view.failed else 0
    return Answer(as_data(view), text, code, hints=hints)


def _settings(view: "ReindexView") -> str:
    return ", ".join(f"{name}: {value}" for name, value in view.given.items())


def _estimated(found: "ReindexEstimate") -> Answer:
    price = ", price not known" if found.cost is None else f", about ${found.cost:,.4f} at most" if found.cost else ""
    lines = [f"{found.collection}: {count(found.documents, 'document')}, {found.changed:,} made with other settings"]
    lines.append(f"  executed again: {', '.join(found.steps)}")
    if found.from_raw:
        lines.append(f"  from raw bytes: {count(found.from_raw, 'document')}")
    if found.index is not None:
        lines.append(f"  moved to: {visible(found.index)}")
    if found.tokens:
        lines.append(f"  embedded: about {found.tokens:,} tokens{price}")
    return Answer(as_data(found), "\n".join(lines))
