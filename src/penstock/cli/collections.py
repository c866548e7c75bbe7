"""`collection`: list, show and drop collections."""

import sys
from typing import TYPE_CHECKING

import click

from penstock.cli import completion
from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, as_data, bytes_size, count, labelled, table, visible, when

if TYPE_CHECKING:
    from penstock.verbs.collections import CollectionView

NAME = click.argument("name", metavar="NAME", shell_complete=completion.collections)


@click.group(cls=InOrder, no_args_is_help=False)
def collection() -> None:
    """Collections: list, show, drop."""


@collection.command("list")
@body
async def list_collections(call: Call) -> Answer:
    """List collections with their documents, chunks and size."""
    async with call.scope() as scope:
        found = await scope.list_collections()
    rows = [
        [visible(c.name), f"{c.documents:,}", f"{c.chunks:,}", bytes_size(c.bytes), c.index_version, _statuses(c)]
        for c in found
    ]
    head = ["COLLECTION", "DOCUMENTS", "CHUNKS", "SIZE", "INDEX", "STATUS"]
    lines = table([head, *rows]) if rows else ["no collections; add documents with: penstock ingest PATH"]
    return Answer({"collections": as_data(found)}, "\n".join(lines))


@collection.command()
@NAME
@body
async def show(call: Call, name: str) -> Answer:
    """Show one collection: counts by status, chunks, size, embedder and index version."""
    async with call.scope() as scope:
        found = await scope.collection(name)
    fields = {
        "collection": found.name,
        "documents": f"{found.documents:,}",
        **{f"  {status}": f"{number:,}" for status, number in found.statuses.items()},
        "pages": f"{found.pages:,}",
        "chunks": f"{found.chunks:,}",
        "size": bytes_size(found.bytes),
        "embedder": found.embedder or "none yet",
        "dimensions": found.dimensions,
        "index": f"version {found.index_version}" + (f" in {visible(found.index)}" if found.index else ""),
        "created": when(found.created_at),
        "drop": "interrupted: the next worker completes it" if found.dropping else None,
    }
    return Answer(as_data(found), "\n".join(labelled(fields, 16)))


@collection.command()
@NAME
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@body
async def drop(call: Call, name: str, yes: bool) -> Answer:
    """Delete a collection with all its documents.

    No search that starts afterwards finds them. If it is interrupted, the next worker, `penstock prune` or the same
    command completes it. The space is freed later: of the index after a minute, of files after a day.
    """
    from penstock.errors import NotFound, UsageError

    async with call.scope() as scope:
        if not yes:
            try:
                found = await scope.collection(name)
            except NotFound:
                found = None
            if found is not None and found.documents:
                if call.json or not sys.stdin.isatty():
                    raise UsageError(
                        f"this would delete {count(found.documents, 'document')} of {name!r}: confirm it with --yes"
                    )
                if not call.confirms(f"Delete the collection {name} with {count(found.documents, 'document')}?"):
                    return Answer({}, "nothing was deleted", 1)
        done = await scope.drop_collection(name)
    if not done.existed:
        text = f"there is no collection {visible(name)}: nothing to drop"
    else:
        text = f"{visible(name)} was dropped: {count(done.documents, 'document')} deleted"
    hints = []
    if done.documents:
        hints.append("Workers and `penstock prune` free the space: of the index after a minute, of files after a day.")
    return Answer(as_data(done), text, hints=hints)


def _statuses(found: "CollectionView") -> str:
    if found.dropping:
        return "drop interrupted: the next worker completes it"
    return ", ".join(f"{number:,} {status}" for status, number in found.statuses.items()) or "empty"
