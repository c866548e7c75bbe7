"""Shell completion of files, ids, names, statuses and collections. It reads the ledger directly, because opening an app
takes longer. Any error means that nothing is completed."""

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from penstock.ledger.database.connection import Connection
    from penstock.model.nouns import Owner

NEWEST = 200
"""The number of documents, or dead letters, that are looked at."""

T = TypeVar("T")


def documents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest documents by id, with their names as help, or by name."""
    from penstock.ledger.engine import documents as ledger

    def look(owner: "Owner", connection: "Connection") -> list[CompletionItem]:
        newest = [one.document for one in ledger.newest(owner, connection, **_EVERY)]
        ids = {one.id: one.name for one in newest}
        if incomplete and not any(id.startswith(incomplete.upper()) for id in ids):
            ids |= {one.id: one.source for one in ledger.candidates(owner, connection, incomplete, [])}
        items = [CompletionItem(id, help=name) for id, name in ids.items() if id.startswith(incomplete.upper())]
        names = {name: None for one in newest if (name := _named(one.name, one.source, incomplete))}
        return items + [CompletionItem(_as_word(name)) for name in names]

    return _read(ctx, look) or []


_EVERY: dict[str, Any] = {"status": "", "collection": "", "before": "", "count": NEWEST}


def _named(name: str, source: str, incomplete: str) -> str | None:
    """The name, or the end of the path, that begins with what was typed."""
    if not incomplete:
        return None
    if name.startswith(incomplete):
        return name
    at = f"/{source}".rfind(f"/{incomplete}") if "/" in incomplete else -1
    return source[at:] if at >= 0 else None


def _as_word(name: str) -> str:
    """Bash inserts a name as it is, and click's script takes one backslash away; zsh and fish quote names."""
    if os.environ.get("_PENSTOCK_COMPLETE") != "bash_complete":
        return name
    return re.sub(r"[^\w@%+=:,./!-]", r"\\\\\g<0>", name)


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Leaves it to the shell to complete a file."""
    return [CompletionItem(incomplete, type="file")]


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def documents_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Bash completes a file only if no document matches."""
    return files(ctx, param, incomplete) + documents(ctx, param, incomplete)


def letters(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest dead letters by number, with their names and reasons as help."""
    from penstock.ledger.engine import dead_letters as ledger

    found = _read(ctx, lambda owner, connection: ledger.newest(owner, connection, NEWEST)) or []
    return [
        CompletionItem(str(one.id), help=f"{one.name or ''} {one.reason}".strip())
        for one in found
        if str(one.id).startswith(incomplete)
    ]


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
