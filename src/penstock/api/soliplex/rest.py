"""`stats/…`, `sync-state/…` and `lancedb/…` of Soliplex's clients."""

import json
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter

from penstock.api.callers import Access
from penstock.api.fields import COLLECTION
from penstock.api.problems import Problem, not_found
from penstock.api.soliplex.parameters import Word
from penstock.api.soliplex.views import named, run_rows
from penstock.api.soliplex.words import Values, call, times
from penstock.ledger.engine import clients
from penstock.ledger.reads import run_lists

router = APIRouter(tags=["soliplex"])
GROUP = Word("run_group_id", "number", 1)
MOST = 10_000
DATABASE = Word("db", example="default", pattern=COLLECTION)
BRANCH = "main"
STATE_BYTES = 1 << 16


@call(router, "GET", "/stats/durations", "read", GROUP)
async def durations(access: Access, given: Values) -> Any:
    """List how long the runs of a group took, in seconds."""
    group = await named(access, "group", given["run_group_id"])
    runs = await access.scope.ledger.read(partial(run_lists.of_group, access.owner), group, "", MOST)
    rows = await run_rows(access, runs)
    return [
        {
            **{name: row[name] for name in ("id", "doc_id", "status", "start_date", "completed_date")},
            "duration": round(run.finished_at - run.started_at, 3) if run.finished_at and run.started_at else None,
        }
        for row, run in zip(rows, runs, strict=True)
    ]


@call(router, "GET", "/stats/step-stats", "read", GROUP)
async def step_stats(access: Access, given: Values) -> Any:
    """Count the steps of a group by name and status, with their durations."""
    group = await named(access, "group", given["run_group_id"])
    found = await access.scope.ledger.read(partial(run_lists.step_stats, access.owner), group)
    return [msgspec.to_builtins(one) for one in found]


@call(router, "GET", "/sync-state/{source}", "read")
async def show_sync_state(access: Access, given: Values) -> Any:
    """Show how far a client has read a source."""
    source = given["source"]
    found = await access.scope.ledger.read(partial(clients.sync_state, access.owner), source)
    if found is None:
        return {**_state(source, {}), "last_sync_date": None}
    return times({**_state(source, json.loads(found.body)), "last_sync_date": found.updated_at})


@call(
    router, "PUT", "/sync-state/{source}", "ingest", Word("commit_sha", example="abc123"),
    Word("branch", example="main", needed=False), Word("metadata", "json", "{}", needed=False),
)  # fmt: skip
async def set_sync_state(access: Access, given: Values) -> Any:
    """Store how far a client has read a source."""
    source = given["source"]
    before = await access.scope.ledger.read(partial(clients.sync_state, access.owner), source)
    former = json.loads(before.body) if before is not None else {}
    metadata = {**former.get("metadata", {}), **(given["metadata"] or {})}
    state = {"commit_sha": given["commit_sha"], "branch": given["branch"] or BRANCH, "metadata": metadata}
    body = json.dumps(state)
    if len(body) > STATE_BYTES or len(source) > 500:
        raise Problem("invalid", f"a sync state has at most {STATE_BYTES:,} bytes, and its source 500 characters")
    await access.scope.ledger.write(clients.SET_SYNC_STATE, clients.NewState(access.owner, source, body))
    return await show_sync_state(access, given)


@call(router, "DELETE", "/sync-state/{source}", "ingest")
async def reset_sync_state(access: Access, given: Values) -> Any:
    """Forget how far a client has read a source."""
    done = await access.scope.ledger.write(
        clients.SET_SYNC_STATE, clients.NewState(access.owner, given["source"], None)
    )
    if not done:
        raise not_found("sync state", given["source"])
    return {"message": f"Sync state reset for {given['source']}"}


def _state(source: str, stored: dict[str, Any]) -> dict[str, Any]:
    return {
        "source_id": source,
        "last_commit_sha": stored.get("commit_sha"),
        "branch": stored.get("branch", BRANCH),
        "sync_metadata": stored.get("metadata", {}),
    }


@call(router, "GET", "/lancedb/list", "ops")
async def list_databases(access: Access, given: Values) -> Any:
    """List the collections. A collection is a database to these clients."""
    found = await access.scope.list_collections()
    databases = [{"name": one.name, "path": one.name, "size_bytes": one.bytes} for one in found]
    return {"status": "ok", "database_count": len(databases), "databases": databases}


@call(router, "GET", "/lancedb/info", "ops", DATABASE)
async def show_database(access: Access, given: Values) -> Any:
    """Show a collection."""
    one = await access.scope.collection(given["db"])
    return {
        "status": "ok",
        "path": one.name,
        "embeddings": {"model": one.embedder, "vector_dim": one.dimensions},
        "documents": {"count": one.documents, "size_bytes": one.bytes},
        "chunks": {"count": one.chunks},
    }


@call(
    router, "GET", "/lancedb/documents", "ops", DATABASE, Word("limit", "number", 100, needed=False, least=0, most=500),
    Word("offset", "number", 0, needed=False, least=0, most=MOST),
)  # fmt: skip
async def list_database_documents(access: Access, given: Values) -> Any:
    """List the documents of a collection."""
    limit, offset = given["limit"] if given["limit"] is not None else 100, given["offset"] or 0
    name = (await access.scope.collection(given["db"])).name
    found = await access.scope.list_documents(collection=name, limit=limit + offset)
    rows = [
        times(
            {"id": one.id, "uri": one.source, "title": one.name, "created_date": one.created_at, "chunks": one.chunks}
        )
        for one in found[offset:]
    ]
    return {"status": "ok", "path": name, "document_count": len(rows), "documents": rows}


@call(router, "GET", "/lancedb/vacuum", "ops", DATABASE)
async def vacuum(access: Access, given: Values) -> Any:
    """Compact the index of a collection."""
    name = (await access.scope.collection(given["db"])).name
    done = await access.scope.vacuum(name, wait_s=30.0)
    if done.busy:
        raise Problem("conflict", f"the index of {name!r} is in use: try again", headers={"Retry-After": "5"})
    return {"status": "ok"}
