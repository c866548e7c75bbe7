"""`workflow/…` of Soliplex's clients."""

from functools import partial
from typing import Any

import msgspec
import yaml
from fastapi import APIRouter, Response

from penstock.api.callers import Access
from penstock.api.custom_code import refuse_methods
from penstock.api.problems import Problem, not_found
from penstock.api.soliplex.batches import runs_of
from penstock.api.soliplex.parameters import Word
from penstock.api.soliplex.views import (
    document_of,
    group_rows,
    named,
    numbered,
    run_rows,
    step_rows,
    steps_of,
)
from penstock.api.soliplex.words import Values, call, times
from penstock.errors import NoDefinition
from penstock.ledger.engine import documents
from penstock.ledger.reads import run_lists
from penstock.ledger.reads.run_lists import ListedRun
from penstock.model.states import DocumentStatus, StepStatus
from penstock.verbs.arguments import PRIORITY
from penstock.yaml_file import SUFFIXES

router = APIRouter(prefix="/workflow", tags=["soliplex"])
MOST = 500
FURTHEST = 10_000
_D = DocumentStatus
OF_STATUS: dict[str, tuple[DocumentStatus, ...]] = {
    "PENDING": (_D.PENDING,),
    "RUNNING": (_D.PENDING, _D.EXTRACTING, _D.CHUNKING, _D.EMBEDDING, _D.INDEXING),
    "COMPLETED": (_D.COMPLETED, _D.NOT_INDEXABLE, _D.UNSUPPORTED),
    "FAILED": (_D.FAILED,),
    "CANCELLED": (_D.CANCELLED,),
}
"""The statuses that the document of a run can have, by the status of the run."""
PAGES = (
    Word("page", "number", 1, needed=False, least=1, most=FURTHEST),
    Word("rows_per_page", "number", 10, needed=False, least=1, most=MOST),
)
BATCH = Word("batch_id", "number", 1, needed=False)
STATUS = Word("status", example="FAILED", choices=tuple(OF_STATUS))
STEPS = Word("include_steps", "flag", False, needed=False)
INFO = Word("include_doc_info", "flag", False, needed=False)


@call(router, "GET", "/", "read", BATCH, STEPS, INFO, *PAGES)
async def list_runs(access: Access, given: Values) -> Any:
    """List the newest run of each document, the newest first."""
    return await _listed(access, given, "")


@call(router, "GET", "/by-status", "read", STATUS, BATCH, INFO, *PAGES)
async def runs_by_status(access: Access, given: Values) -> Any:
    """List the runs with a status."""
    return await _listed(access, given, _status(given["status"], tuple(OF_STATUS)))


@call(router, "GET", "/runs", "read", Word("batch_id", "number", 1))
async def runs_of_batch(access: Access, given: Values) -> Any:
    """List the runs of a batch."""
    return await _listed(access, given, "")


@call(router, "GET", "/runs/{run_id}", "read")
async def show_run(access: Access, given: Values) -> Any:
    """Show a run with its steps."""
    [row] = await run_rows(access, [await _run(access, given)], steps=True)
    return row


@call(router, "GET", "/runs/{run_id}/lifecycle", "read")
async def lifecycle(access: Access, given: Values) -> Any:
    """List what happened to a run, in order."""
    run = await _run(access, given)
    found: list[dict[str, Any]] = []

    def add(event: str, at: float | None, step: str | None = None, status: str | None = None) -> None:
        if at is not None:
            found.append({"event": event, "step": step, "status": status, "start_date": at})

    add("ITEM_START", run.started_at)
    for step in await steps_of(access, [run]):
        add("STEP_START", step.started_at, step.name)
        failed = step.status in (StepStatus.FAILED, StepStatus.ERROR)
        add("STEP_FAILED" if failed else "STEP_END", step.finished_at, step.name, step.status)
    add("ITEM_FAILED" if run.status == "FAILED" else "ITEM_END", run.finished_at, None, run.status)
    return [times(row) for row in sorted(found, key=lambda row: float(row["start_date"]))]


@call(
    router, "POST", "/", "write",
    Word("doc_id", example="sha256-abc123"),
    Word("workflow_definition_id", "definition", "batch", needed=False, also="workflow_definiton_id"),
    Word("param_id", "definition", "default", needed=False),
    Word("priority", "number", 0, needed=False, least=-PRIORITY, most=PRIORITY),
    status=201,
)  # fmt: skip
async def start_run(access: Access, given: Values) -> Any:
    """Start a workflow for one document."""
    refuse_methods(access, given["workflow_definition_id"])
    document = await document_of(access, given["doc_id"])
    await access.scope.start_document(
        document,
        workflow=given["workflow_definition_id"],
        params=given["param_id"],
        priority=given["priority"] or 0,
    )
    runs = await access.scope.ledger.read(partial(run_lists.of_documents, access.owner), [document])
    [row] = await run_rows(access, runs)
    return row


@call(router, "POST", "/retry", "write", Word("run_group_id", "number", 1), status=201)
async def retry(access: Access, given: Values) -> Any:
    """Queue the failed runs of a group again. They continue where they failed."""
    group = await named(access, "group", given["run_group_id"])
    return {"message": "Failed runs were queued again", "retried": await access.scope.retry_group(group)}


@call(router, "GET", "/steps", "read", Word("status", example="FAILED", choices=tuple(StepStatus)))
async def list_steps(access: Access, given: Values) -> Any:
    """List the newest steps with a status."""
    status = _status(given["status"], tuple(StepStatus))
    steps = await access.scope.ledger.read(partial(run_lists.of_status, access.owner), status, MOST)
    return await step_rows(access, steps, await numbered(access, "run", (step.run_id for step in steps)))


@call(router, "GET", "/run-groups", "read", BATCH)
async def list_groups(access: Access, given: Values) -> Any:
    """List the groups of runs that were started together, the newest first."""
    batch = await named(access, "batch", given["batch_id"]) if given["batch_id"] is not None else None
    return await group_rows(access, await access.scope.list_groups(batch=batch, limit=MOST))


@call(router, "GET", "/run-groups/{run_group_id}", "read")
async def show_group(access: Access, given: Values) -> Any:
    """Show a group."""
    view = await access.scope.group(await named(access, "group", given["run_group_id"]))
    [row] = await group_rows(access, [view.group])
    return row


@call(router, "GET", "/run-groups/{run_group_id}/stats", "read")
async def group_stats(access: Access, given: Values) -> Any:
    """Count the runs of a group."""
    view = await access.scope.group(await named(access, "group", given["run_group_id"]))
    group = view.group
    done = group.completed + group.not_indexable + group.unsupported
    counts = {
        "COMPLETED": done, "RUNNING": group.running, "PENDING": group.pending, "FAILED": group.failed,
        "CANCELLED": group.cancelled,
    }  # fmt: skip
    return {
        "total_runs": group.total,
        "completed": done,
        "running": group.running,
        "pending": group.pending,
        "failed": group.failed,
        "average_duration": round(view.durations.average, 3) if view.durations is not None else None,
        "group_status": group.status,
        "status_counts": counts,
    }


@call(router, "DELETE", "/run-groups/{run_group_id}", "write")
async def delete_group(access: Access, given: Values) -> Any:
    """Cancel the open runs of a group. Its history stays until it is pruned."""
    group = await named(access, "group", given["run_group_id"])
    cancelled = await access.scope.cancel_group(group)
    return {"message": "The open runs of the group were cancelled", "statistics": {"cancelled_runs": cancelled}}


@call(router, "GET", "/definitions", "read")
async def list_definitions(access: Access, given: Values) -> Any:
    """List the workflows."""
    return [{"id": one.workflow.id, "name": one.workflow.name} for one in access.scope.catalog.workflows()]


@call(router, "GET", "/definitions/{workflow_id}", "read")
async def show_definition(access: Access, given: Values) -> Any:
    """Return a workflow as YAML."""
    return _as_yaml(_defined(given["workflow_id"], access.scope.catalog.workflow))


@call(router, "GET", "/param-sets", "read")
async def list_param_sets(access: Access, given: Values) -> Any:
    """List the parameter sets."""
    return [
        {"id": one.id, "name": one.name or one.id, "source": "app"} for one in access.scope.catalog.parameter_sets()
    ]


@call(router, "GET", "/param-sets/{set_id}", "read")
async def show_param_set(access: Access, given: Values) -> Any:
    """Return a parameter set as YAML."""
    return _as_yaml(_defined(given["set_id"], access.scope.catalog.parameter_set))


def _defined(name: str, find: Any) -> Any:
    # A path would read a file of the server.
    if name.endswith(SUFFIXES):
        raise not_found("definition", name)
    try:
        return find(name)
    except NoDefinition:
        raise not_found("definition", name) from None


def _as_yaml(found: Any) -> Response:
    text = yaml.safe_dump(msgspec.to_builtins(found), sort_keys=False, allow_unicode=True)
    return Response(text, media_type="text/yaml")


async def _run(access: Access, given: Values) -> ListedRun:
    run = await named(access, "run", given["run_id"])
    found = await access.scope.ledger.read(partial(run_lists.get, access.owner), run)
    if found is None:
        raise not_found("run", given["run_id"])
    return found


def _status(given: str, known: tuple[str, ...]) -> str:
    if given.upper() not in known:
        raise Problem("invalid", f"status: use one of {', '.join(known)}")
    return given.upper()


async def _listed(access: Access, given: Values, status: str) -> Any:
    page, rows = given.get("page"), given.get("rows_per_page")
    size = rows or (10 if page is not None else MOST)
    wanted = (page or 1) * size
    if wanted > FURTHEST:
        raise Problem("invalid", f"only the newest {FURTHEST:,} runs can be listed")
    runs = await _found(access, given.get("batch_id"), status, FURTHEST if page is not None else wanted)
    shown = await run_rows(access, runs[wanted - size : wanted], steps=bool(given.get("include_steps")))
    if page is None and rows is None:
        return shown
    pages = -(-len(runs) // size)
    return {"items": shown, "total": len(runs), "page": page or 1, "rows_per_page": size, "total_pages": pages}


async def _found(access: Access, batch: int | None, status: str, most: int) -> list[ListedRun]:
    """The newest runs first."""
    if batch is not None:
        runs = await runs_of(access, await named(access, "batch", batch))
    else:
        runs = []
        for one in OF_STATUS[status] if status else ("",):
            runs += await _of_documents(access, str(one), most)
    chosen = [run for run in runs if not status or run.status == status]
    return sorted(chosen, key=lambda run: run.id, reverse=True)[:most]


async def _of_documents(access: Access, status: str, most: int) -> list[ListedRun]:
    found: list[ListedRun] = []
    before = ""
    while len(found) < most:
        look = partial(documents.newest, access.owner)
        page = await access.scope.ledger.read(look, status=status, collection="", before=before, count=MOST)
        if not page:
            break
        before = page[-1].document.id
        ids = [one.document.id for one in page]
        found += await access.scope.ledger.read(partial(run_lists.of_documents, access.owner), ids)
    return found
