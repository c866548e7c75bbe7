"""`mcp`: search and documents as tools of an agent."""

from contextlib import suppress
from typing import Any

import click

from penstock.cli.call import Call, body
from penstock.cli.output import Answer
from penstock.errors import ConfigError


@click.command()
@click.option("--ingest", is_flag=True, help="Also offer tools that submit and retry documents, and process the queue.")
@body
async def mcp(call: Call, ingest: bool) -> Answer:
    """Serve the Model Context Protocol on standard input and output.

    An agent starts this command. It gets the tools search, fetch, list_documents and document_status for the documents
    of the owner; with --ingest also ingest_text, ingest_url and retry.
    """
    import asyncio

    try:
        from penstock.mcp.server import make_server
        from penstock.mcp.stdio import serve
    except ImportError as error:
        raise ConfigError("MCP is not installed: pip install 'penstock-rag[mcp]'") from error
    from penstock.mcp.access import Access

    call.signals.is_service = True
    async with call.working_app(for_ever=ingest) as app:
        access = Access(call.scoped(app), can_ingest=ingest)
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(serve(make_server(lambda: access, ingest=ingest)))]
        if ingest:
            tasks.append(asyncio.create_task(app.work()))
        tasks.append(asyncio.create_task(app.resources.stopped.wait()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            app.stop()
            tasks[0].cancel()
            with suppress(asyncio.CancelledError):
                await tasks[0]
            await asyncio.gather(*tasks[1:])
    return Answer({})
