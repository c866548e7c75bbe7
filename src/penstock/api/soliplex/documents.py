"""`document/…` of Soliplex's clients."""

from functools import partial
from typing import Any

from fastapi import APIRouter

from penstock.api.callers import Access
from penstock.api.problems import Problem, not_found
from penstock.api.soliplex.batches import PAGE
from penstock.api.soliplex.parameters import Word
from penstock.api.soliplex.views import HASH, named, numbered, prefix, source_uri
from penstock.api.soliplex.words import Values, call
from penstock.errors import BlobMissing
from penstock.intake_items import Receipt
from penstock.ledger.reads import run_lists
from penstock.model.callers import KeyScope
from penstock.verbs.arguments import PRIORITY

router = APIRouter(prefix="/document", tags=["soliplex"])
WEB = ("http://", "https://")
AFTER_ALL = "\U0010ffff"
MOST = 10_000


@call(
    router, "GET", "/", "read", Word("source", example="files", needed=False),
    Word("batch_id", "number", 1, needed=False),
)  # fmt: skip
async def list_documents(access: Access, given: Values) -> Any:
    """List the documents of a source or of a batch."""
    if given["source"] is not None:
        return await _of_source(access, given["source"])
    if given["batch_id"] is None:
        raise Problem("invalid", "name a source or a batch_id")
    batch = await named(access, "batch", given["batch_id"])
    rows: list[dict[str, Any]] = []
    after = ""
    while len(rows) < MOST:
        page = await access.scope.ledger.read(partial(run_lists.in_batch, access.owner), batch, after, PAGE)
        if not page:
            break
        after = page[-1]
        runs = await access.scope.ledger.read(partial(run_lists.of_documents, access.owner), page)
        found = [(run.document_id, run.source, run.sha256) for run in runs]
        rows += await _rows(access, found, given["batch_id"])
    return rows


async def _of_source(access: Access, source: str) -> list[dict[str, Any]]:
    found = [row async for row in _stored(access, source)]
    return await _rows(access, found)


async def _stored(access: Access, source: str) -> Any:
    low, after, seen = prefix(source), "", 0
    while seen < MOST * 10:
        look = partial(run_lists.in_source, access.owner)
        page = await access.scope.ledger.read(look, low, low + AFTER_ALL, after, PAGE)
        if not page:
            return
        after, seen = page[-1][1], seen + len(page)
        for row in page:
            yield row


async def _rows(access: Access, found: Any, batch: int | None = None) -> list[dict[str, Any]]:
    own = await numbered(access, "document", (row[0] for row in found))
    rows = []
    for document, stored, sha256 in found:
        source, uri = _split(stored)
        row = {"id": own[document], "doc_hash": f"{HASH}{sha256}", "uri": uri, "source": source}
        rows.append({**row, "batch_id": batch, "document_id": document})
    return rows


def _split(stored: str) -> tuple[str, str]:
    """The source and the URI that a client knows, of a stored source URI."""
    from urllib.parse import unquote

    parts = stored.split(":", 2)
    return (unquote(parts[1]), parts[2]) if stored.startswith("soliplex:") and len(parts) == 3 else ("", stored)


@call(
    router, "POST", "/ingest-document", "ingest",
    Word("file", "file", needed=False),
    Word("input_uri", example="https://example.com/a.html", needed=False),
    Word("source_uri", example="/docs/a.txt"),
    Word("source", example="files"),
    Word("batch_id", "number", 1),
    Word("mime_type", example="text/plain", needed=False),
    Word("doc_meta", "json", "{}", needed=False),
    Word("priority", "number", 0, needed=False, least=-PRIORITY, most=PRIORITY),
    status=201,
)  # fmt: skip
async def ingest_document(access: Access, given: Values) -> Any:
    """Accept a document, from a file or a web address."""
    batch = await named(access, "batch", given["batch_id"])
    common: dict[str, Any] = {"batch": batch, "priority": given["priority"] or 0, "metadata": given["doc_meta"] or {}}
    source = source_uri(given["source"], given["source_uri"])
    if given["file"] is not None:
        name = given["source_uri"].rstrip("/").rpartition("/")[2] or given["file"].name or "file"
        await access.service.runtime.run_blocking("io", given["file"].file.seek, 0)
        data = given["file"].file
        receipts = await _submitted(access, data=data, name=name, source=source, **common)
    elif given["input_uri"] is not None:
        if not given["input_uri"].startswith(WEB):
            raise Problem("invalid", "input_uri: use an address that begins with http:// or https://")
        metadata = {**common.pop("metadata"), "source": given["source"], "source_uri": given["source_uri"]}
        if metadata:
            common["metadata"] = metadata
        receipts = await _submitted(access, paths=[given["input_uri"]], **common)
    else:
        raise Problem("invalid", "send a file, or an input_uri")
    if not receipts:
        raise Problem("invalid", "nothing was found there")
    receipt = receipts[0]
    if receipt.id is None:
        raise Problem("invalid", f"the document was refused: {receipt.problem}")
    [(_, _, sha256)] = await access.scope.ledger.read(partial(run_lists.by_source, access.owner), [receipt.source])
    return {
        "batch_id": given["batch_id"],
        "document_uri": given["source_uri"],
        "document_hash": f"{HASH}{sha256}",
        "source": given["source"],
        "uri_id": (await numbered(access, "document", [receipt.id]))[receipt.id],
    }


async def _submitted(access: Access, **given: Any) -> list[Receipt]:
    receipts: list[Receipt] = []
    await access.scope.ingest(hold=True, on_receipt=receipts.append, **given)
    return receipts


@call(router, "DELETE", "/by-uri", "write", Word("uri", example="/docs/a.txt"), Word("source", example="files"))
async def delete_by_uri(access: Access, given: Values) -> Any:
    """Delete a document by its URI and source."""
    wanted = source_uri(given["source"], given["uri"])
    found = await access.scope.ledger.read(partial(run_lists.by_source, access.owner), [wanted])
    if not found:
        raise not_found("document", given["uri"])
    done = await access.scope.delete([row[0] for row in found])
    return {
        "message": "Document deleted",
        "uri": given["uri"],
        "source": given["source"],
        "statistics": {"deleted_documents": len(done)},
    }


@call(router, "POST", "/cleanup-orphans", "ops")
async def cleanup_orphans(access: Access, given: Values) -> Any:
    """Remove what nothing refers to any more."""
    done = await access.service.app.prune()
    return {"message": "Orphaned data removed", "statistics": {"blobs": done.blobs}}


@call(
    router,
    "GET",
    "/validate_storage",
    "ops",
    Word("batch_id", "number", 1),
    Word("clean_up", "flag", False, needed=False),
)
async def validate_storage(access: Access, given: Values) -> Any:
    """Check that the bytes of all documents of a batch are there. With clean_up, delete those whose bytes are not."""
    batch = await named(access, "batch", given["batch_id"])
    missing: list[tuple[str, str]] = []
    total, after = 0, ""
    while page := await access.scope.ledger.read(partial(run_lists.raw_in_batch, access.owner), batch, after, PAGE):
        after, total = page[-1][0], total + len(page)
        for document, key, sha256 in page:
            if not await _is_there(access, key):
                missing.append((document, sha256))
    answer: dict[str, Any] = {
        "batch_id": given["batch_id"],
        "total": total,
        "valid": total - len(missing),
        "missing": len(missing),
        "missing_hashes": [f"{HASH}{sha256}" for _, sha256 in missing],
    }
    if given["clean_up"] and missing:
        done = await access.scope.delete([document for document, _ in missing])
        answer["cleanup_stats"] = {"deleted_documents": len(done)}
    return answer


async def _is_there(access: Access, key: str) -> bool:
    try:
        return await access.scope.blobs.stat(key) is not None
    except BlobMissing:
        return False


status_router = APIRouter(tags=["soliplex"])


@call(
    status_router, "POST", "/source-status", "read", Word("source", example="files"),
    Word("hashes", "json", '{"/docs/a.txt": "sha256-00"}'), Word("delete_stale", "flag", False, needed=False),
)  # fmt: skip
async def source_status(access: Access, given: Values) -> Any:
    """Compare the hashes of a source with what is stored: each URI is new, match or mismatch. With delete_stale, delete
    stored documents that the source does not name."""
    hashes = {uri: str(value).removeprefix(HASH).lower() for uri, value in given["hashes"].items()}
    stored: dict[str, tuple[str, str]] = {}
    async for document, source, sha256 in _stored(access, given["source"]):
        stored[_split(source)[1]] = (document, sha256)
    answer: dict[str, Any] = {}
    for uri, value in hashes.items():
        known = stored.get(uri)
        status = "new" if known is None else "match" if known[1] == value else "mismatch"
        answer[uri] = {"status": status, **({"hash": f"{HASH}{known[1]}"} if known is not None else {})}
    if given["delete_stale"]:
        if not access.caller.has(KeyScope.WRITE):
            raise Problem("forbidden", "delete_stale needs the scope 'write'", scope="write")
        stale = {uri: row[0] for uri, row in stored.items() if uri not in hashes}
        if stale:
            await access.scope.delete(list(stale.values()))
        answer |= {uri: {"status": "deleted"} for uri in stale}
    return answer
