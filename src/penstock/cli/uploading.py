"""`ingest` with `--server`: upload, and follow what the server does with it."""

import asyncio
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from penstock.cli.progress import ProgressDisplay
from penstock.cli.server import client_of
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.cli.call import Call
    from penstock.client import AsyncClient
    from penstock.verbs.ingest_plan import IngestPlan
    from penstock.verbs.summary import Summary

PATIENCE_S = 600.0
"""How long an ingest waits for a server that has answered once, and then does not answer any more."""
PIECE = 1 << 20


def refuse(alone: Mapping[str, Any]) -> None:
    """Raise UsageError for the first option that is given: only an ingest into a home has these."""
    for option, value in alone.items():
        if value:
            raise UsageError(
                f"{option} needs the home: leave it out, or use it where the server runs, without --server"
            )


async def plan(call: "Call", files: list[str], standard_input: bool, options: dict[str, Any]) -> "IngestPlan":
    if standard_input:
        raise UsageError("--dry-run is for files and folders, not for standard input")
    taken = {name: options[name] for name in ("collection", "include", "exclude", "manifest")}
    async with client_of(call, PATIENCE_S) as client:
        return await client.plan_ingest(files, **taken)


async def ingest(call: "Call", files: list[str], data: IO[bytes] | None, options: dict[str, Any]) -> "Summary":
    async with client_of(call, PATIENCE_S) as client:
        return await _ingest(call, client, files, data, options)


async def _ingest(
    call: "Call", client: "AsyncClient", files: list[str], data: IO[bytes] | None, options: dict[str, Any]
) -> "Summary":
    import tempfile

    loop, cancel = asyncio.get_running_loop(), call.signals.stop
    call.signals.stop = lambda: loop.call_soon_threadsafe(client.stop)
    if call.signals.received is not None:
        client.stop()
    progress = ProgressDisplay()
    try:
        with tempfile.TemporaryFile() as spool:
            if data is not None:
                # An upload may have to be repeated, and a pipe can be read only once.
                while piece := data.read(PIECE):
                    spool.write(piece)
                spool.flush()
            return await client.ingest(
                files, data=spool if data is not None else None, report=None if call.quiet else progress, **options
            )
    finally:
        progress.close()
        call.signals.stop = cancel
