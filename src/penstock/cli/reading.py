"""`show`: extracted content."""

import tempfile
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any

import click

from penstock.cli import completion
from penstock.cli.call import Call, body
from penstock.cli.documents import overview
from penstock.cli.output import Answer, as_data, encode, readable

if TYPE_CHECKING:
    from penstock.model.items import Block, Chunk, Page
    from penstock.verbs.owner import OwnerScope

SPOOL = 8 << 20
"""Output is buffered in memory up to this size, then in a file, and written only when all of it could be read."""


@click.command()
@click.argument("document", metavar="ID", shell_complete=completion.documents)
@click.option("--pages", is_flag=True, help="The text of each page; exact with --json.")
@click.option("--chunks", is_flag=True, help="The chunks that search finds.")
@click.option("--blocks", is_flag=True, help="Headings, paragraphs and tables of each page.")
@body
async def show(call: Call, document: str, pages: bool, chunks: bool, blocks: bool) -> Answer:
    """Show what was extracted from a document.

    Without an option, it shows an overview, like `status`.
    """
    from penstock.errors import UsageError

    if pages + chunks + blocks > 1:
        raise UsageError("choose one of --pages, --chunks and --blocks")
    async with call.scope() as scope:
        found = await scope.status(document)
        if not (pages or chunks or blocks):
            return Answer(as_data(found), "\n".join(overview(found)))
        what = "pages" if pages else "chunks" if chunks else "blocks"
        spool = await _spooled(scope, call, found.id, what)
    empty = not call.json and spool.tell() == 0
    return Answer({}, spool=spool, hints=[f"no {what}: {found.id} is {found.status}"] if empty else [])


async def _spooled(scope: "OwnerScope", call: Call, document: str, what: str) -> IO[bytes]:
    with ExitStack() as stack:
        spool = stack.enter_context(tempfile.SpooledTemporaryFile(SPOOL))
        if call.json:
            spool.write(b'{"id":' + encode(document) + b',"' + what.encode() + b'":[')
        separator = b""
        async for item in scope.show(document, "chunks" if what == "chunks" else "pages"):
            for data, text in _shown(item, what):
                if call.json:
                    spool.write(separator + encode(data))
                    separator = b","
                else:
                    spool.write(readable(text).encode())
        if call.json:
            spool.write(b"]}\n")
        stack.pop_all()
    return spool


def _shown(item: Any, what: str) -> "list[tuple[dict[str, Any], str]]":
    """An item as JSON and as text."""
    if what == "pages":
        return [_page(item)]
    if what == "chunks":
        return [_chunk(item)]
    return [_block(item, block) for block in item.blocks]


def _page(page: "Page") -> tuple[dict[str, Any], str]:
    data: dict[str, Any] = {
        "number": page.number,
        "label": page.label,
        "text": page.text,
        "blocks": [_block(page, block)[0] for block in page.blocks],
    }
    if page.skipped is not None:
        data["skipped"] = {"reason": page.skipped.reason, "error": page.skipped.error}
        return data, f"--- page {page.number}, skipped: {page.skipped.reason} ---\n"
    if page.ocr is not None:
        data["ocr"] = page.ocr
        return data, f"--- page {page.number}, OCR with confidence {page.ocr:.0f} % ---\n{page.text}\n"
    return data, f"--- page {page.number} ---\n{page.text}\n"


def _chunk(chunk: "Chunk") -> tuple[dict[str, Any], str]:
    data = {
        "ordinal": chunk.ordinal,
        "page": chunk.page,
        "page_end": chunk.page_end,
        "start": chunk.start,
        "end": chunk.end,
        "headings": list(chunk.headings),
        "text": chunk.text,
    }
    pages = f"page {chunk.page}" if chunk.page == chunk.page_end else f"pages {chunk.page}–{chunk.page_end}"
    return data, f"--- chunk {chunk.ordinal}, {pages}, {chunk.start}–{chunk.end} ---\n{chunk.text}\n"


def _block(page: "Page", block: "Block") -> tuple[dict[str, Any], str]:
    text = page.text[block.start : block.end]
    data = {
        "page": page.number,
        "kind": block.kind,
        "start": block.start,
        "end": block.end,
        "level": block.level,
        "title": block.title,
        "text": text,
    }
    level = f" {block.level}" if block.level else ""
    return data, f"--- page {page.number}, {block.kind}{level}, {block.start}–{block.end} ---\n{text}\n"
