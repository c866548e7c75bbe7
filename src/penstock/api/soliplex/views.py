"""What Soliplex's clients see: batches, documents, runs and steps with their numbers."""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

from penstock.api.callers import Access
from penstock.api.problems import not_found
from penstock.api.soliplex.parameters import LARGEST
from penstock.api.soliplex.words import id_of, times
from penstock.ledger.engine import clients, numbers
from penstock.ledger.engine.numbers import Numbering
from penstock.ledger.reads import batches, run_lists
from penstock.ledger.reads.batches import Group
from penstock.ledger.reads.run_lists import ListedRun, RunStep

NumberKind = Literal["batch", "document", "group", "run", "step"]
HASH = "sha256-"
MOST = 500
"""Maximum number of rows of a list."""


def source_uri(source: str, uri: str) -> str:
    """The source URI of a document that a client knows by a source and a URI."""
    return f"{prefix(source)}{uri}"


def prefix(source: str) -> str:
    return f"soliplex:{quote(source, safe='')}:"


async def numbered(access: Access, kind: NumberKind, ids: Iterable[str]) -> dict[str, int]:
    """The numbers of these ids. They are allotted when they are first asked for."""
    wanted = tuple(dict.fromkeys(ids))
    known = await access.scope.ledger.read(partial(numbers.known, access.owner), kind, wanted)
    if missing := tuple(one for one in wanted if one not in known):
        return known | await access.scope.ledger.write(numbers.ALLOT, Numbering(access.owner, kind, missing))
    return known


async def named(access: Access, kind: NumberKind, given: Any) -> str:
    """The id that has this number. Raise Problem 404 if there is none."""
    number = id_of(kind, given)
    found = await access.scope.ledger.read(partial(numbers.named, access.owner), kind, min(number, LARGEST))
    if found is None:
        raise not_found(kind, str(number))
    return found


async def document_of(access: Access, doc_id: str) -> str:
    """The newest document with these bytes. The beginning of a hash is enough if it is the only one."""
    digits = doc_id.strip().removeprefix(HASH).rstrip(".").lower()
    if not 6 <= len(digits) <= run_lists.WHOLE or not set(digits) <= set("0123456789abcdef"):
        raise not_found("document", doc_id)
    found = await access.scope.ledger.read(partial(run_lists.by_hash, access.owner), digits)
    if found is None:
        raise not_found("document", doc_id)
    return found


async def batch_rows(access: Access) -> list[dict[str, Any]]:
    """The batches that were created, and those that documents were submitted with."""
    ledger = access.scope.ledger
    created = await ledger.read(partial(clients.batches, access.owner), MOST)
    used = await ledger.read(partial(batches.batches, access.owner))
    known = {one.batch: one for one in created}
    began = {one.name: one.created_at for one in used}
    places = await numbered(access, "batch", [*known, *began])
    rows = []
    for name, number in sorted(places.items(), key=lambda place: place[1]):
        one = known.get(name)
        row = {
            "id": number,
            "name": one.name if one is not None else name,
            "source": one.source if one is not None else "",
            "start_date": one.created_at if one is not None else began[name],
            "batch": name,
        }
        rows.append(times(row))
    return rows


async def run_rows(access: Access, runs: Sequence[ListedRun], *, steps: bool = False) -> list[dict[str, Any]]:
    """Runs with their numbers; with `steps`, also with their steps."""
    own = await numbered(access, "run", (run.id for run in runs))
    groups = await numbered(access, "group", (run.group_id for run in runs if run.group_id is not None))
    places = await numbered(access, "batch", (run.batch for run in runs if run.batch is not None))
    listed = [
        times(
            {
                "id": own[run.id],
                "workflow_definition_id": run.workflow,
                "param_definition_id": run.params,
                "run_group_id": None if run.group_id is None else groups[run.group_id],
                "batch_id": None if run.batch is None else places[run.batch],
                "doc_id": f"{HASH}{run.sha256}",
                "document_id": run.document_id,
                "document_uri": run.source,
                "priority": run.priority,
                "status": run.status,
                "created_date": run.created_at,
                "start_date": run.started_at,
                "completed_date": run.finished_at,
            }
        )
        for run in runs
    ]
    if steps:
        found = await step_rows(access, await steps_of(access, runs), {run.id: own[run.id] for run in runs})
        for row in listed:
            row["steps"] = [step for step in found if step["workflow_run_id"] == row["id"]]
    return listed


async def steps_of(access: Access, runs: Sequence[ListedRun]) -> list[RunStep]:
    return await access.scope.ledger.read(partial(run_lists.steps, access.owner), [run.id for run in runs])


async def step_rows(access: Access, steps: Sequence[RunStep], runs: dict[str, int]) -> list[dict[str, Any]]:
    """Steps with their numbers. `runs`: the numbers of their runs."""
    own = await numbered(access, "step", (str(step.id) for step in steps))
    return [
        times(
            {
                "id": own[str(step.id)],
                "workflow_run_id": runs[step.run_id],
                "workflow_step_number": step.position + 1,
                "workflow_step_name": step.name,
                "step_type": step.kind,
                "status": step.status,
                "status_message": step.error,
                "status_meta": json.loads(step.meta),
                "retry": step.attempts,
                "priority": step.priority,
                "worker_id": step.worker,
                "created_date": step.created_at,
                "start_date": step.started_at,
                "completed_date": step.finished_at,
            }
        )
        for step in steps
    ]


async def group_rows(access: Access, groups: Sequence[Group]) -> list[dict[str, Any]]:
    own = await numbered(access, "group", (group.id for group in groups))
    places = await numbered(access, "batch", (group.batch for group in groups if group.batch is not None))
    return [
        times(
            {
                "id": own[group.id],
                "name": group.id,
                "workflow_definition_id": group.workflow,
                "param_definition_id": group.params,
                "batch_id": None if group.batch is None else places[group.batch],
                "status": group.status,
                "created_date": group.created_at,
                "completed_date": group.finished_at,
                "total_runs": group.total,
            }
        )
        for group in groups
    ]
