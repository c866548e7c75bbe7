"""Shell completion of ids, statuses and collections. It reads the ledger directly, because opening an app takes longer.
Any error means that nothing is completed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from penstock.ledger.database.connection import Connection
    from penstock.model.nouns import Owner

NEWEST = 200
"""The number of documents that are looked at."""

T = TypeVar("T")


def documents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest documents by id, with their names as help, or by name."""
    from penstock.ledger.engine import documents as ledger

    def look(owner: "Owner", connection: "Connection") -> list[CompletionItem]:
        found = [(one.document.id, one.document.name) for one in ledger.newest(owner, connection, **_EVERY)]
        if incomplete and not any(id.startswith(incomplete.upper()) for id, _ in found):
            found += [(one.id, one.source) for one in ledger.candidates(owner, connection, incomplete, [])]
        items = [CompletionItem(id, help=name) for id, name in found if id.startswith(incomplete.upper())]
        names = [CompletionItem(name) for _, name in found if incomplete and name.startswith(incomplete)]
        return items + names

    return _read(ctx, look) or []


_EVERY: dict[str, Any] = {"status": "", "collection": "", "before": "", "count": NEWEST}


def collections(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from penstock.ledger.engine import collections as ledger

    names = _read(ctx, ledger.names) or []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def statuses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from penstock.model.states import DocumentStatus

    return [CompletionItem(one) for one in DocumentStatus if one.startswith(incomplete.upper())]


def step_statuses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from penstock.model.states import StepStatus

    return [CompletionItem(one) for one in StepStatus if one.startswith(incomplete.upper())]


def _read(ctx: click.Context, look: "Callable[[Owner, Connection], T]") -> T | None:
    """Read the ledger that the options before the incomplete word name."""
    from pathlib import Path

    from penstock.config import load_config
    from penstock.ledger.database.database import Database
    from penstock.model.nouns import Owner
    from penstock.runtime import Runtime

    try:
        file = _option(ctx, "config")
        config = load_config(
            {"home": _option(ctx, "home"), "owner": _option(ctx, "owner")}, file=Path(file) if file else None
        )
        database = Database(config.database_url, Runtime())
        if database.dialect == "sqlite":
            if not database.path.exists():
                return None
            database.look()
        connection = database.connect()
        try:
            return look(Owner(config.owner), connection)
        finally:
            connection.close()
            database.close()
    except Exception:
        return None


def _option(ctx: click.Context, name: str) -> str | None:
    """An option of the command, or of the commands above it."""
    place: click.Context | None = ctx
    while place is not None:
        if place.params.get(name):
            return str(place.params[name])
        place = place.parent
    return None
