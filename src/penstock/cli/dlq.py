"""`dlq`: list, show, replay and discard dead letters."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from penstock.cli import completion
from penstock.cli.call import Call, InOrder, body
from penstock.cli.changes import by_step, changes
from penstock.cli.output import Answer, as_data, count, encode, labelled, table, visible, when, with_times
from penstock.cli.passwords import chosen, passwords

F = TypeVar("F", bound=Callable[..., Any])
NUMBER = click.IntRange(1, 2**63 - 1)


@click.group(cls=InOrder, no_args_is_help=False)
def dlq() -> None:
    """Dead letters: list, show, replay, discard."""


@dlq.command("list")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=100, help="Maximum number of results.", show_default=True
)
@body
async def list_letters(call: Call, limit: int) -> Answer:
    """List the number of dead letters for each reason, and the newest ones."""
    async with call.scope() as scope:
        found = await scope.list_dead_letters(limit=limit)
    letters, data = found.letters, as_data(found)
    if not letters:
        return Answer(data, "no dead letters")
    reasons = table([["REASON", "COUNT"], *([reason, f"{n:,}"] for reason, n in found.by_reason.items())])
    rows = [[n.id, n.reason, n.step, n.name or (n.event and n.event.id)] for n in letters]
    lines = [*reasons, "", *table([["N", "REASON", "STEP", "NAME"], *rows]), ""]
    lines.append("penstock dlq show N · replay N | --reason R | --all · discard N | --reason R | --all")
    return Answer(data, "\n".join(lines))


@dlq.command()
@click.argument("number", metavar="N", type=NUMBER, shell_complete=completion.letters)
@body
async def show(call: Call, number: int) -> Answer:
    """Show one dead letter: what failed, where, and how often."""
    import msgspec

    async with call.scope() as scope:
        letter = await scope.dead_letter(number)
    fields = {
        "dead letter": letter.id,
        "document": letter.document_id,
        "name": letter.name,
        "source": letter.source,
        "collection": letter.collection,
        "workflow": (letter.workflow + (f" with {letter.params}" if letter.params else "")) or None,
        "parameters": _given(letter.parameters) or None,
        "step": letter.step if letter.event is None and letter.message is None else None,
        "stream": letter.message.stream if letter.message is not None else None,
        "place": letter.message.place if letter.message is not None else None,
        "event": f"{letter.event.kind} {letter.event.id}" if letter.event is not None else None,
        "handler": letter.handler,
        "reason": letter.reason,
        "page": letter.page,
        "attempts": letter.attempts,
        "since": when(letter.created_at),
        "error": letter.error,
    }
    lines = labelled(fields)
    if letter.message is not None:
        lines += ["", *(visible(line) for line in letter.message.body.splitlines())]
    if letter.traceback:
        lines += ["", *(visible(line) for line in letter.traceback.rstrip().splitlines())]
    return Answer(with_times(msgspec.to_builtins(letter)), "\n".join(lines))


def _given(parameters: Mapping[str, Any]) -> str:
    """The values in the form of --set."""
    return ", ".join(
        f"{step}.{name}={encode(value).decode()}" for step, given in parameters.items() for name, value in given.items()
    )


def which(command: F) -> F:
    """Add the options that select dead letters: by number, by reason, or all."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Only show what would be done."),
        click.option("--all", "every", is_flag=True, help="All dead letters."),
        click.option("--reason", metavar="REASON", help="All with this reason."),
        click.argument("numbers", metavar="[N...]", nargs=-1, type=NUMBER, shell_complete=completion.letters),
    ):
        command = option(command)
    return command


@dlq.command()
@which
@passwords()
@changes
@body
async def replay(
    call: Call,
    numbers: tuple[int, ...],
    reason: str | None,
    every: bool,
    dry_run: bool,
    password: str | None,
    password_file: str | None,
    workflow: str | None,
    params: str | None,
    values: tuple[str, ...],
) -> Answer:
    """Queue the documents of dead letters again; they continue where they failed.

    Another workflow or other values start a new run, which repeats only the affected steps. Events are delivered to
    their handlers again.
    """
    import msgspec

    letters = _chosen("replay", numbers, reason, every)
    word = chosen(password, password_file)
    async with call.scope() as scope:
        done = await scope.replay(
            letters,
            reason=reason,
            workflow=workflow,
            params=params,
            values=by_step(values),
            password=word,
            dry_run=dry_run,
        )
    parts = [count(done.count, "document")] if done.count or not (done.events or done.messages) else []
    parts += [count(done.events, "event")] if done.events else []
    parts += [count(done.messages, "message")] if done.messages else []
    lines = [f"{' and '.join(parts)} {'would be ' if dry_run else ''}queued again", *_reasons(done.by_reason)]
    ways = {"continued where it failed": done.resumed, "in a new run": done.started}
    lines += [f"  {n:,} {way}" for way, n in ways.items() if n]
    lines += [f"  {document}" for document in done.replayed]
    if len(done.replayed) < done.count and not dry_run:
        lines.append("  …")
    waits = done.count + done.events + done.messages and not dry_run and call.server_url is None
    hints = ["Run `penstock run` to process them."] if waits else []
    return Answer(msgspec.to_builtins(done), "\n".join(lines), hints=[*done.notes, *hints])


@dlq.command()
@which
@body
async def discard(call: Call, numbers: tuple[int, ...], reason: str | None, every: bool, dry_run: bool) -> Answer:
    """Close dead letters without another attempt; their documents stay FAILED."""
    import msgspec

    letters = _chosen("discard", numbers, reason, every)
    async with call.scope() as scope:
        done = await scope.discard(letters, reason=reason, dry_run=dry_run)
    lines = [f"{count(done.count, 'dead letter')} {'would be ' if dry_run else ''}discarded", *_reasons(done.by_reason)]
    return Answer(msgspec.to_builtins(done), "\n".join(lines))


def _chosen(verb: str, numbers: tuple[int, ...], reason: str | None, every: bool) -> tuple[int, ...] | None:
    from penstock.errors import UsageError

    if bool(numbers) + (reason is not None) + every != 1:
        raise UsageError(f"name the dead letters: penstock dlq {verb} N… | --reason REASON | --all")
    return numbers or None


def _reasons(by_reason: dict[str, int]) -> list[str]:
    return table([[reason, f"{n:,}"] for reason, n in by_reason.items()], "  ")
