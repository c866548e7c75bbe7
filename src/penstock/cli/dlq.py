"""`dlq`: runs that ended badly, why, and what to do with them."""

import click

from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, count, labelled, table, visible, when, with_times

NUMBER = click.IntRange(1, 2**63 - 1)


@click.group(cls=InOrder, no_args_is_help=False)
def dlq() -> None:
    """Dead letters: list, show, replay, discard."""


@dlq.command("list")
@click.option("--limit", metavar="N", type=click.IntRange(1), default=100, help="At most so many.", show_default=True)
@body
async def list_letters(call: Call, limit: int) -> Answer:
    """How many there are for each reason, and the newest of them."""
    import msgspec

    async with call.app() as app:
        found = await app.list_dead_letters(limit=limit, owner=call.owner)
    letters = found["letters"]
    data = with_times(found) | {"letters": [with_times(msgspec.to_builtins(letter)) for letter in letters]}
    if not letters:
        return Answer(data, "no dead letters")
    reasons = table([["REASON", "COUNT"], *([reason, f"{n:,}"] for reason, n in found["by_reason"].items())])
    rows = [[n.id, n.reason, n.step, n.name or (n.event and n.event.id)] for n in letters]
    lines = [*reasons, "", *table([["N", "REASON", "STEP", "NAME"], *rows]), ""]
    return Answer(data, "\n".join([*lines, "penstock dlq show N · replay N | --reason R | --all · discard N"]))


@dlq.command()
@click.argument("number", metavar="N", type=NUMBER)
@body
async def show(call: Call, number: int) -> Answer:
    """One dead letter: what failed, where, and how often."""
    import msgspec

    async with call.app() as app:
        letter = await app.dead_letter(number, owner=call.owner)
    fields = {
        "dead letter": letter.id,
        "document": letter.document_id,
        "name": letter.name,
        "source": letter.source,
        "step": letter.step if letter.event is None else None,
        "event": f"{letter.event.kind} {letter.event.id}" if letter.event is not None else None,
        "handler": letter.handler,
        "reason": letter.reason,
        "page": letter.page,
        "attempts": letter.attempts,
        "since": when(letter.created_at),
        "error": letter.error,
    }
    lines = labelled(fields)
    if letter.traceback:
        lines += ["", *(visible(line) for line in letter.traceback.rstrip().splitlines())]
    return Answer(with_times(msgspec.to_builtins(letter)), "\n".join(lines))


@dlq.command()
@click.argument("numbers", metavar="[N...]", nargs=-1, type=NUMBER)
@click.option("--reason", metavar="REASON", help="All of one reason.")
@click.option("--all", "every", is_flag=True, help="All there are.")
@body
async def replay(call: Call, numbers: tuple[int, ...], reason: str | None, every: bool) -> Answer:
    """Queue documents of dead letters again; they go on from where they failed.

    Events go to their handlers once more.
    """
    from penstock.errors import UsageError

    if bool(numbers) + (reason is not None) + every != 1:
        raise UsageError("say which: penstock dlq replay N… | --reason REASON | --all")
    async with call.app() as app:
        done = sorted(await app.replay(numbers, reason=reason, owner=call.owner))
    events = sum("-" in one for one in done)
    parts = [count(n, what) for n, what in ((len(done) - events, "document"), (events, "event")) if n]
    lines = [f"{' and '.join(parts) or 'nothing'} queued again", *(f"  {one}" for one in done)]
    return Answer({"replayed": done}, "\n".join(lines), hints=["`penstock run` works them off."] if done else [])


@dlq.command()
@click.argument("numbers", metavar="N...", nargs=-1, required=True, type=NUMBER)
@body
async def discard(call: Call, numbers: tuple[int, ...]) -> Answer:
    """Close dead letters without another try; their documents stay FAILED."""
    async with call.app() as app:
        for number in numbers:
            await app.dead_letter(number, owner=call.owner)
        done = sorted(await app.discard(numbers, owner=call.owner))
    return Answer({"discarded": done}, f"{count(len(done), 'dead letter')} discarded")
