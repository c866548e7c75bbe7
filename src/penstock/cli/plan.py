"""What `ingest --dry-run` prints."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from penstock.cli.call import Call
from penstock.cli.output import Answer, bytes_size, count, table, visible

if TYPE_CHECKING:
    from penstock.verbs.ingest_plan import IngestPlan, TypePlan


TAKEN = ("collection", "include", "exclude", "again", "manifest")
"""The options of `ingest` that matter."""


async def plan(call: Call, files: list[str], standard_input: bool, options: dict[str, Any]) -> Answer:
    """Look at the files. If there is no ledger yet, none is made here."""
    import tempfile

    import msgspec

    from penstock.app import open_app
    from penstock.errors import UsageError

    if standard_input:
        raise UsageError("--dry-run is for files and folders, not for standard input")
    config = call.settings()
    with ExitStack() as stack:
        if config.database is None and not (config.home_path / "ledger.db").exists():
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-"))
            config = msgspec.structs.replace(config, home=home)
        async with open_app(config) as app:
            found = await call.scoped(app).plan_ingest(files, **{name: options[name] for name in TAKEN})
    return planned(found)


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
