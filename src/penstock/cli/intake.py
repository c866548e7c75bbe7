"""`intake`: stop and go on accepting documents."""

import click

from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, as_data, visible, when

EVERYONE = click.option("--all", "everyone", is_flag=True, help="Of all owners.")


@click.group(cls=InOrder, no_args_is_help=False)
def intake() -> None:
    """Pause and resume the intake of an owner (--owner) or of all."""


@intake.command()
@EVERYONE
@click.option("--reason", metavar="TEXT", default="", help="Why; shown to whoever is refused.")
@body
async def pause(call: Call, everyone: bool, reason: str) -> Answer:
    """Accept no new documents.

    Uploads are answered with 503 and Retry-After; `ingest` ends with an error. What was accepted is processed.
    """
    async with call.scope(new=True) as scope:
        state = await scope.pause_intake(reason=reason, everyone=everyone)
    return Answer(as_data(state), sentence(state))


@intake.command()
@EVERYONE
@body
async def resume(call: Call, everyone: bool) -> Answer:
    """Accept new documents again."""
    async with call.scope() as scope:
        state = await scope.resume_intake(everyone=everyone)
    return Answer(as_data(state), sentence(state))


@intake.command()
@body
async def status(call: Call) -> Answer:
    """Show whether new documents are accepted."""
    async with call.scope() as scope:
        state = await scope.intake()
    return Answer(as_data(state), sentence(state))


def sentence(state: object) -> str:
    from penstock.verbs.intake_pauses import IntakeState

    assert isinstance(state, IntakeState)
    if not state.paused:
        return "The intake is open."
    whose = "The intake of all owners" if state.everyone else "The intake"
    why = f": {visible(state.reason)}" if state.reason else ""
    return f"{whose} is paused since {when(state.since)}{why}"
