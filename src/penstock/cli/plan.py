"""What `ingest --dry-run` and `ingest --estimate` print."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli.call import Call
from penstock.cli.output import Answer, bytes_size, count, duration, labelled, table, visible
from penstock.cli.usage import dollars

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.verbs.estimate import Estimate
    from penstock.verbs.ingest_plan import IngestPlan, TypePlan


TAKEN = ("collection", "include", "exclude", "again", "manifest")
"""The options of `ingest` that matter."""


async def plan(call: Call, files: list[str], standard_input: bool, options: dict[str, Any]) -> Answer:
    """Look at the files. If there is no ledger yet, none is made here."""
    from penstock.app import open_app
    from penstock.errors import UsageError

    if standard_input:
        raise UsageError("--dry-run is for files and folders, not for standard input")
    with _settings(call) as config:
        async with open_app(config) as app:
            found = await call.scoped(app).plan_ingest(files, **{name: options[name] for name in TAKEN})
    return planned(found)


@contextmanager
def _settings(call: Call) -> "Iterator[Config]":
    """The settings, with a temporary home if there is no ledger yet."""
    import tempfile

    import msgspec

    config = call.settings()
    with ExitStack() as stack:
        if config.database is None and not (config.home_path / "ledger.db").exists():
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-"))
            folders = {
                "workflows": str(config.folder(config.workflows, "workflows")),
                "parameter_sets": str(config.folder(config.parameter_sets, "params")),
            }
            config = msgspec.structs.replace(config, home=home, **folders)
        yield config


async def estimated(call: Call, files: list[str], standard_input: bool, options: dict[str, Any]) -> Answer:
    """Estimate what an ingest needs and costs."""
    from penstock.app import open_app
    from penstock.cli.progress import ProgressDisplay
    from penstock.errors import UsageError

    if standard_input:
        raise UsageError("--estimate is for files and folders, not for standard input")
    taken = {name: options[name] for name in (*TAKEN, "workflow", "params")}
    with _settings(call) as config:
        async with open_app(config) as app:
            progress = ProgressDisplay()
            try:
                found = await call.scoped(app).estimate(files, report=None if call.quiet else progress, **taken)
            finally:
                progress.close()
    return _estimate(found)


def _estimate(found: "Estimate") -> Answer:
    import msgspec

    sure = found.measured == found.documents
    about = "" if sure else "about "
    cached = f", of which {found.cached_chunks:,} chunks were bought before" if found.cached_chunks else ""
    if found.cost is None:
        price = f"unknown: set the price of {visible(found.embedder)} under `prices`"
    else:
        price = "nothing" if not found.cost else f"about {dollars(found.cost)}"
    fields = {
        "documents": f"{found.documents:,} new or changed, {found.plan.unchanged:,} unchanged",
        "measured": None if sure else f"{found.measured:,}; the others are expected to be like them",
        "pages": f"{about}{found.pages:,}",
        "chunks": f"{about}{found.chunks:,}{cached}",
        "tokens": f"about {found.tokens:,}" + (f", {found.cached_tokens:,} of them bought before" if cached else ""),
        "embedder": visible(found.embedder),
        "cost": price,
        "time": "unknown until something was embedded" if found.seconds is None else f"about {duration(found.seconds)}",
    }
    hints = [f"cannot be read: {visible(problem)}" for problem in found.plan.problems]
    code = 1 if found.plan.problems else 0
    return Answer(msgspec.to_builtins(found), "\n".join(labelled(fields)), code, hints=hints)


def planned(plan: "IngestPlan") -> Answer:
    import msgspec

    from penstock.verbs.ingest_plan import label

    todo = plan.new + plan.changed
    parts = [f"{plan.new:,} new", f"{plan.changed:,} changed", f"{plan.unchanged:,} unchanged"]
    lines = [f"{count(todo, 'file')} of {bytes_size(plan.bytes)} would be ingested: {', '.join(parts)}"]
    rows = [
        [label(kind), f"{one.new:,}", f"{one.changed:,}", f"{one.unchanged:,}", bytes_size(one.bytes), _remark(one)]
        for kind, one in plan.types.items()
    ]
    if rows:
        lines += ["", *table([["TYPE", "NEW", "CHANGED", "UNCHANGED", "SIZE", ""], *rows])]
    hints = [f"cannot be read: {visible(problem)}" for problem in plan.problems]
    if plan.forgotten:
        hints.append(
            f"{count(plan.forgotten, 'file')} deleted with --forget would stay away: --again brings them back."
        )
    return Answer(msgspec.to_builtins(plan), "\n".join(lines), 1 if plan.problems else 0, hints=hints)


def _remark(one: "TypePlan") -> str:
    return "" if one.supported else "not supported"
