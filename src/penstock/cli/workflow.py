"""`workflow`: list, show and check workflow definitions."""

from pathlib import Path

import click

from penstock.cli import completion
from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, table, visible


@click.group(cls=InOrder, no_args_is_help=False)
def workflow() -> None:
    """Workflow definitions: list, show, check."""


@workflow.command("list")
@body
async def list_workflows(call: Call) -> Answer:
    """List workflows."""
    async with call.app(new=True) as app:
        entries = app.catalog.workflows()
    data = [{"id": w.id, "name": w.name, "steps": [step.name for step in w.steps], "file": file} for w, file in entries]
    rows = [[w.id, " → ".join(step.name for step in w.steps), file] for w, file in entries]
    return Answer({"workflows": data}, "\n".join(table([["ID", "STEPS", "FILE"], *rows])))


@workflow.command()
@click.argument("name", metavar="ID|FILE", shell_complete=completion.files)
@click.option("--params", metavar="ID", help="Use the values of this parameter set.")
@body
async def show(call: Call, name: str, params: str | None) -> Answer:
    """Show a workflow as a run would store it, with all values."""
    import msgspec
    import yaml

    async with call.app(new=True) as app:
        found = msgspec.structs.asdict(app.workflow(name, params=params))
    data = {field: msgspec.to_builtins(value) for field, value in found.items() if field != "asked"}
    return Answer(data, yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip())


@workflow.command()
@click.argument("files", metavar="FILE...", nargs=-1, shell_complete=completion.files, required=True)
@body
async def check(call: Call, files: tuple[str, ...]) -> Answer:
    """Report errors in definitions and parameter sets, with file and line."""
    from penstock.workflows.catalog import open_catalog

    catalog = open_catalog(call.settings())
    problems = [problem for file in files for problem in catalog.check(Path(file))[1]]
    data = {"ok": not problems, "problems": [problem._asdict() for problem in problems]}
    text = "\n".join(visible(problem) for problem in problems) or "ok"
    return Answer(data, text, code=1 if problems else 0)
