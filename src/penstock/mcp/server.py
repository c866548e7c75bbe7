"""The MCP server: the same tools and resources over stdio and HTTP."""

from collections.abc import Callable, Coroutine
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp_types import ToolAnnotations

from penstock import __version__
from penstock.errors import NotFound
from penstock.mcp.access import Access
from penstock.mcp.tools import Tools

Tool = Callable[..., Coroutine[Any, Any, Any]]
INSTRUCTIONS = (
    "Documents that were ingested with Penstock. Use `search` to find passages, and `fetch` to read more of a "
    "document. Cite the title and the page of what you use."
)


def make_server(access: Callable[[], Access], *, ingest: bool) -> MCPServer[None]:
    """Make a server. `access` is called for each request, and returns what its client may do. `ingest`: offer the tools
    that submit and retry documents."""
    tools = Tools(access)
    server: MCPServer[None] = MCPServer("penstock", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    reading: list[Tool] = [tools.search, tools.fetch, tools.list_documents, tools.document_status]
    for tool in reading:
        server.add_tool(tool, annotations=reads)
    if ingest:
        writes = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)
        writing: list[Tool] = [tools.ingest_text, tools.ingest_url, tools.retry]
        for tool in writing:
            server.add_tool(tool, annotations=writes)

    @server.resource(
        "penstock://documents/{document}/pages/{page}", name="page", description="The text of a page of a document."
    )
    async def page(document: str, page: str) -> str:
        if not page.isascii() or not page.isdecimal():
            raise ResourceNotFoundError(f"page {page!r}: expected a number")
        try:
            return await tools.page(document, int(page[:9]))
        except ToolError as error:
            missing = isinstance(error.__cause__, NotFound)
            raise (ResourceNotFoundError if missing else ResourceError)(str(error)) from error

    return server
