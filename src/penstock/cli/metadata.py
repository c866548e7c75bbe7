"""`meta`: show and change the metadata of a document, and the form in which a command line gives it."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from penstock.cli import completion
from penstock.cli.call import Call, body
from penstock.cli.output import Answer, labelled

F = TypeVar("F", bound=Callable[..., Any])


@click.command()
@click.argument("document", metavar="ID", shell_complete=completion.documents)
@click.argument("changes", metavar="KEY=VALUE...", nargs=-1)
@body
async def meta(call: Call, document: str, changes: tuple[str, ...]) -> Answer:
    """Show the metadata of a document, or change what was submitted.

    KEY=VALUE sets a key: a number, true, false or null as in JSON, or else text. KEY:=JSON sets any JSON. KEY= removes
    the key. Nothing is extracted or embedded again.
    """
    given, remove = assignments(changes)
    async with call.scope() as scope:
        changed = bool(changes) and await scope.set_metadata(document, given, remove=remove)
        found = await scope.status(document)
    shown = {key: json.dumps(value, ensure_ascii=False) for key, value in found.metadata.items()}
    data = {"id": found.id, "changed": changed, "metadata": found.metadata}
    return Answer(data, "\n".join(labelled(shown)) or "no metadata")


def metadata_options(command: F) -> F:
    """The options of `ingest` that give metadata."""
    file = click.option(
        "--manifest",
        metavar="FILE",
        shell_complete=completion.files,
        help="CSV file: column path names files, the others are their metadata.",
    )
    each = click.option(
        "--meta", metavar="KEY=VALUE", multiple=True, help="Metadata of the documents; KEY:=JSON for JSON."
    )
    return each(file(command))


def assignments(texts: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The keys to set, and those to remove."""
    from penstock.errors import UsageError
    from penstock.search.filters import typed

    given: dict[str, Any] = {}
    remove: list[str] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip(" :"):
            raise UsageError(f"{text!r}: write KEY=VALUE, as in author=ann, or KEY:=JSON")
        if key.endswith(":"):
            try:
                given[key[:-1]] = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{text!r}: the value is not JSON: {error}") from None
        elif value:
            given[key] = typed(value)
        else:
            remove.append(key)
    return given, remove
