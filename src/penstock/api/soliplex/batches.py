"""`batch/…` of Soliplex's clients."""

from functools import partial
from typing import Any

from fastapi import APIRouter

from penstock.api.callers import Access
from penstock.api.custom_code import refuse_methods
from penstock.api.problems import not_found
from penstock.api.soliplex.parameters import Word
from penstock.api.soliplex.views import batch_rows, named, numbered, run_rows, step_rows, steps_of
from penstock.api.soliplex.words import Values, call
from penstock.ledger.engine import clients
from penstock.ledger.reads import batches, run_lists
from penstock.verbs.arguments import PRIORITY

router = APIRouter(prefix="/batch", tags=["soliplex"])
PAGE = 500
MOST_RUNS = 10_000
"""Maximum number of runs of a batch that are listed."""


@call(router, "GET", "/", "read")
async def list_batches(access: Access, given: Values) -> Any:
    """List the batches."""
    return await batch_rows(access)


@call(router, "POST", "/", "ingest", Word("source", example="files"), Word("name", example="Spring"), status=201)
async def create_batch(access: Access, given: Values) -> Any:
    """Create a batch, which is empty at first."""
    name = f"{given['name'][:100]} {access.service.runtime.ulid()}"
    new = clients.NewBatch(access.owner, name, given["source"][:1_000], given["name"][:1_000])
    await access.scope.ledger.write(clients.CREATE_BATCH, new)
    return {"batch_id": (await numbered(access, "batch", [name]))[name]}


@call(
    router, "POST", "/start-workflows", "write",
    Word("batch_id", "number", 1),
    Word("workflow_definition_id", "definition", "batch", needed=False, also="workflow_definiton_id"),
    Word("param_id", "definition", "default", needed=False),
    Word("priority", "number", 0, needed=False, least=-PRIORITY, most=PRIORITY),
    Word("only_unparsed", "flag", False, needed=False),
    status=201,
)  # fmt: skip
async def start_workflows(access: Access, given: Values) -> Any:
    """Start a workflow for the documents of a batch, as one group."""
    refuse_methods(access, given["workflow_definition_id"])
    name = await named(access, "batch", given["batch_id"])
    used = await access.scope.ledger.read(partial(batches.batches, access.owner))
    started, groups = 0, []
    for collection in sorted({one.collection for one in used if one.name == name}):
        done = await access.scope.start_batch(
            name,
            workflow=given["workflow_definition_id"],
            params=given["param_id"],
            collection=collection,
            priority=given["priority"] or 0,
            again=not given["only_unparsed"],
        )
        started += done.started
        groups += [done.group] if done.group is not None else []
    places = await numbered(access, "group", groups)
    group = places[groups[0]] if groups else None
    return {"message": "Workflows started", "workflows": started, "run_group": group, "run_group_id": group}


@call(router, "GET", "/status", "read", Word("batch_id", "number", 1))
async def batch_status(access: Access, given: Values) -> Any:
    """Show a batch with the runs of its documents."""
    rows = await batch_rows(access)
    batch = next((row for row in rows if row["id"] == given["batch_id"]), None)
    if batch is None:
        raise not_found("batch", str(given["batch_id"]))
    runs = await runs_of(access, batch["batch"])
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.status] = counts.get(run.status, 0) + 1
    done = counts.get("COMPLETED", 0)
    return {
        "batch": batch,
        "document_count": len(runs),
        "workflow_count": counts,
        "workflows": await run_rows(access, runs[:PAGE]),
        "parsed": done,
        "remaining": len(runs) - done,
    }


@call(router, "GET", "/{batch_id}/steps", "read")
async def batch_steps(access: Access, given: Values) -> Any:
    """List the steps of a batch."""
    runs = (await runs_of(access, await named(access, "batch", given["batch_id"])))[:PAGE]
    own = await numbered(access, "run", (run.id for run in runs))
    return await step_rows(access, await steps_of(access, runs), own)


async def runs_of(access: Access, batch: str, status: str = "") -> list[run_lists.ListedRun]:
    """The newest run of each document of a batch."""
    found: list[run_lists.ListedRun] = []
    after = ""
    while len(found) < MOST_RUNS:
        look = partial(run_lists.in_batch, access.owner)
        page = await access.scope.ledger.read(look, batch, after, PAGE, status)
        if not page:
            break
        after = page[-1]
        found += await access.scope.ledger.read(partial(run_lists.of_documents, access.owner), page)
    return found
