"""`key`: API keys of the service; and `audit`: who changed what."""

import click

from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, as_data, cut, encode, table, visible, when
from penstock.model.scopes import KeyScope

LONGEST = 60


@click.group(cls=InOrder, no_args_is_help=False)
def key() -> None:
    """API keys of the service: create, list, revoke."""


@key.command()
@click.option("--scope", "scopes", metavar="SCOPE", multiple=True, type=click.Choice([str(one) for one in KeyScope]),
              help="What the key may do; several are possible  [default: search, read]")  # fmt: skip
@click.option(
    "--collection", "collections", metavar="NAME", multiple=True, help="Only this collection; several are possible."
)
@click.option("--expires", metavar="TIME", help="The key expires after this time, as in 12h or 90d  [default: never]")
@click.option("--name", metavar="TEXT", default="", help="A note for `key list`.")
@body
async def create(
    call: Call, scopes: tuple[str, ...], collections: tuple[str, ...], expires: str | None, name: str
) -> Answer:
    """Create an API key of an owner (--owner).

    It is printed once. The ledger stores only its hash.
    """
    from penstock.cli.work import parse_duration

    async with call.scope(new=True) as scope:
        made = await scope.create_key(
            scopes=scopes or ("search", "read"),
            name=name,
            collections=collections or None,
            expires_s=parse_duration(expires, "--expires"),
        )
        owner = scope.owner
    fields = {
        "key": made.secret,
        "id": made.key.id,
        "owner": owner,
        "scopes": " ".join(made.key.scopes),
        "collections": " ".join(made.key.collections) if made.key.collections is not None else "all",
        "expires": when(made.key.expires_at) or "never",
    }
    text = "\n".join(f"{field:<12}{visible(value)}" for field, value in fields.items())
    data = {**as_data(made.key), "owner": owner, "key": made.secret}
    return Answer(data, text, hints=["Store it now: it cannot be shown again."])


@key.command("list")
@body
async def list_keys(call: Call) -> Answer:
    """List the API keys of an owner."""
    found, after = [], ""
    async with call.scope() as scope:
        while page := await scope.list_keys(after=after, limit=500):
            found += page
            after = page[-1].id
    rows = [
        (
            one.id,
            "revoked" if one.revoked_at is not None else when(one.expires_at) or "never",
            " ".join(one.scopes),
            "all" if one.collections is None else " ".join(one.collections),
            when(one.used_at) or "never",
            cut(one.name, LONGEST),
        )
        for one in found
    ]
    head = ("ID", "EXPIRES", "SCOPES", "COLLECTIONS", "LAST USED", "NAME")
    return Answer({"keys": as_data(found)}, "\n".join(table([head, *rows]) if rows else ["no keys"]))


@key.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@body
async def revoke(call: Call, ids: tuple[str, ...]) -> Answer:
    """Revoke API keys, with their tokens and browser sessions."""
    async with call.scope() as scope:
        done = [await scope.revoke_key(one) for one in ids]
    return Answer({"revoked": as_data(done)}, "\n".join(f"revoked {one.id}" for one in done))


@click.command()
@click.option("--limit", metavar="N", type=click.IntRange(1, 10_000), default=50, show_default=True,
              help="Maximum number of results.")  # fmt: skip
@click.option("--action", metavar="NAME", default="", help="Only this action, as in key.create.")
@body
async def audit(call: Call, limit: int, action: str) -> Answer:
    """List who changed what and when, the newest first."""
    async with call.scope() as scope:
        found = await scope.list_audit(limit=limit, action=action)
    rows = [
        (
            when(one.created_at),
            cut(one.actor, LONGEST),
            one.action,
            cut(one.subject, LONGEST),
            cut(_said(one.given), LONGEST),
        )
        for one in found
    ]
    lines = table([("TIME", "WHO", "ACTION", "WHAT", "GIVEN"), *rows]) if rows else ["no changes"]
    return Answer({"entries": as_data(found)}, "\n".join(lines))


def _said(given: dict[str, object]) -> str:
    return ", ".join(f"{name}={encode(value).decode()}" for name, value in given.items() if value is not None)
