"""`webhook`: URLs of an owner that are told when documents and groups end."""

import click

from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, as_data, cut, table, visible, when

LONGEST = 60
EVENTS = ("item_end", "item_failed", "group_end")

ID = click.argument("webhook_id", metavar="ID")


@click.group(cls=InOrder, no_args_is_help=False)
def webhook() -> None:
    """Webhooks of an owner: list, create, change, delete, test; deliveries."""


@webhook.command("list")
@body
async def list_webhooks(call: Call) -> Answer:
    """List the webhooks of an owner."""
    found, after = [], ""
    async with call.scope() as scope:
        while page := await scope.list_webhooks(after=after, limit=500):
            found += page
            after = page[-1].id
    rows = [
        (
            one.id,
            _state(one.state, one.failing_since),
            " ".join(event.lower() for event in one.events),
            "all" if one.collections is None else " ".join(one.collections),
            cut(one.url, LONGEST),
        )
        for one in found
    ]
    lines = table([("ID", "STATE", "EVENTS", "COLLECTIONS", "URL"), *rows]) if rows else ["no webhooks"]
    hints = [f"{one.id} is disabled: {one.reason}" for one in found if one.reason is not None]
    return Answer({"webhooks": as_data(found)}, "\n".join(lines), hints=hints)


@webhook.command()
@click.argument("url", metavar="URL")
@click.option("--event", "events", metavar="EVENT", multiple=True, type=click.Choice(EVENTS),
              help="What it is told; several are possible  [default: item_end, item_failed]")  # fmt: skip
@click.option(
    "--collection", "collections", metavar="NAME", multiple=True, help="Only this collection; several are possible."
)
@click.option("--name", metavar="TEXT", default="", help="A note for `webhook list`.")
@body
async def create(call: Call, url: str, events: tuple[str, ...], collections: tuple[str, ...], name: str) -> Answer:
    """Create a webhook of an owner (--owner).

    Its secret, which signs the messages, is printed once.
    """
    async with call.scope(new=True) as scope:
        made = await scope.create_webhook(
            url, events=events or ("item_end", "item_failed"), collections=collections or None, name=name
        )
    fields = {"id": made.webhook.id, "secret": made.secret, "url": url}
    text = "\n".join(f"{field:<8}{visible(value)}" for field, value in fields.items())
    data = {**as_data(made.webhook), "secret": made.secret}
    return Answer(data, text, hints=["Store the secret now: it cannot be shown again."])


@webhook.command()
@ID
@click.option("--url", metavar="URL", help="Another address.")
@click.option("--event", "events", metavar="EVENT", multiple=True, type=click.Choice(EVENTS),
              help="These events instead; several are possible.")  # fmt: skip
@click.option("--enable", is_flag=True, help="Send messages again.")
@click.option("--disable", is_flag=True, help="Send nothing more. What waits fails, and can be sent again later.")
@click.option("--new-secret", is_flag=True, help="Replace the secret, and print the new one.")
@body
async def change(
    call: Call,
    webhook_id: str,
    url: str | None,
    events: tuple[str, ...],
    enable: bool,
    disable: bool,
    new_secret: bool,
) -> Answer:
    """Change a webhook. What is not given stays."""
    if enable and disable:
        raise click.UsageError("use either --enable or --disable")
    active = True if enable else False if disable else None
    async with call.scope() as scope:
        made = await scope.change_webhook(
            webhook_id, url=url, events=events or None, active=active, new_secret=new_secret
        )
    lines = [f"{made.webhook.id}  {made.webhook.state.lower()}"]
    if made.secret:
        lines.append(f"secret  {made.secret}")
    return Answer({**as_data(made.webhook), "secret": made.secret or None}, "\n".join(lines))


@webhook.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@body
async def delete(call: Call, ids: tuple[str, ...]) -> Answer:
    """Delete webhooks, with what waits for them."""
    async with call.scope() as scope:
        for one in ids:
            await scope.delete_webhook(one)
    return Answer({"deleted": list(ids)}, "\n".join(f"deleted {one}" for one in ids))


@webhook.command()
@ID
@body
async def test(call: Call, webhook_id: str) -> Answer:
    """Send a test message now. The exit code is 1 if it was not delivered."""
    async with call.scope() as scope:
        sent = await scope.test_webhook(webhook_id)
    answered = "" if sent.answer_status is None else f" (status {sent.answer_status})"
    said = f"delivered{answered}" if sent.error is None else f"not delivered: {visible(sent.error)}"
    if sent.answer and sent.error is not None:
        said += f"\n{visible(sent.answer)}"
    return Answer(as_data(sent), said, 0 if sent.error is None else 1)


@webhook.command()
@ID
@click.option("--limit", metavar="N", type=click.IntRange(1, 500), default=50, show_default=True,
              help="Maximum number of results.")  # fmt: skip
@click.option("--before", metavar="N", type=click.IntRange(1), help="Only deliveries with a smaller number.")
@click.option("--status", metavar="STATUS", default="", type=click.Choice(["", "PENDING", "DELIVERED", "FAILED"]),
              help="Only these: PENDING, DELIVERED or FAILED.")  # fmt: skip
@body
async def deliveries(call: Call, webhook_id: str, limit: int, before: int | None, status: str) -> Answer:
    """List what was sent to a webhook, the newest first."""
    from penstock.ledger.engine.webhooks import NEWEST

    async with call.scope() as scope:
        found = await scope.list_webhook_deliveries(webhook_id, before=before or NEWEST, limit=limit, status=status)
    rows = [
        (
            str(one.id),
            one.event.lower(),
            one.status.lower(),
            str(one.attempts),
            "" if one.answer_status is None else str(one.answer_status),
            when(one.created_at),
            one.document_id or one.group_id or "",
            cut(one.error or "", LONGEST),
        )
        for one in found
    ]
    head = ("N", "EVENT", "STATUS", "TRIES", "ANSWER", "TIME", "OF", "ERROR")
    return Answer({"deliveries": as_data(found)}, "\n".join(table([head, *rows]) if rows else ["no deliveries"]))


@webhook.command()
@ID
@click.argument("numbers", metavar="N...", nargs=-1, required=True, type=click.IntRange(1))
@body
async def redeliver(call: Call, webhook_id: str, numbers: tuple[int, ...]) -> Answer:
    """Send deliveries again, as the same events. A worker does it."""
    async with call.scope() as scope:
        found = [await scope.redeliver_webhook(webhook_id, number) for number in numbers]
    return Answer({"queued": as_data(found)}, "\n".join(f"queued {one.id}" for one in found))


def _state(state: str, failing_since: float | None) -> str:
    return "failing" if state == "ACTIVE" and failing_since is not None else state.lower()
