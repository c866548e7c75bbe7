"""Repair what can be restored from stored data, without calling paid providers. Index rows are made again from stored
chunks and vectors (`repair_rows`). The ledger is corrected so that the engine can continue. A damaged artifact is
truncated to its last intact segment, and its documents are queued to be processed again from their raw bytes
(`remake`). So are documents whose artifacts were dropped on purpose, if their index rows are lost.

Not repaired: missing raw bytes (submit the file again), vectors of the wrong dimension (re-index), a COMPLETED document
without a generation."""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from penstock.errors import PenstockError
from penstock.ledger.database import histories
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import groups
from penstock.ledger.upkeep import repairs
from penstock.model.nouns import GenerationId, WorkerId
from penstock.upkeep.check_rows import ids_of, place_of, said
from penstock.upkeep.remake import Remaker
from penstock.upkeep.repair_rows import IN_TABLES, TableRepair
from penstock.upkeep.report import Finding, Stores

RAW = ("raw_missing", "raw_broken")


async def repair_findings(
    stores: Stores, worker: WorkerId, found: Sequence[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """Repair the findings. Returns those that were repaired, and findings about what prevented further repairs."""
    repaired = [finding for finding in found if await _repair_ledger(stores, finding)]
    hindered: list[Finding] = []
    in_tables = [finding for finding in found if finding.kind in IN_TABLES]
    torn = {finding.ids["artifact"] for finding in found if finding.kind == "segment_broken"}
    remaker = Remaker(stores, [finding.ids["document_id"] for finding in found if finding.kind in RAW])
    for place in sorted({place_of(finding) for finding in in_tables}):
        here = [finding for finding in in_tables if place_of(finding) == place]
        try:
            async for finding in TableRepair(stores, worker, place, remaker).repair(here, torn):
                repaired.append(finding)
        except PenstockError as error:
            what = f"the index table {said(place)} could not be repaired: {error}"
            problem = any(finding.problem for finding in here)
            hindered.append(Finding("not_repaired", what, ids_of(place), problem=problem))
    repaired += await remaker.missing(found)
    # Last, because index rows can still be made from the intact segments of an artifact.
    return repaired + await _cut(stores, found), hindered


async def _repair_ledger(stores: Stores, finding: Finding) -> bool:
    def write(verb: Verb[Any, bool], item: object) -> Awaitable[bool]:
        return stores.ledger.write(verb, item)

    ids = finding.ids
    match finding.kind:
        case "lost_wakeup":
            return await write(repairs.WAKE, (ids["resource_key"], ids["step_kind"]))
        case "purge_missing" | "deleted_visible":
            return await write(repairs.RETIRE, GenerationId(ids["generation"]))
        case "not_placed":
            return await write(repairs.PLACE, GenerationId(ids["generation"]))
        case "purge_of_active":
            return await write(repairs.UNPURGE, GenerationId(ids["generation"]))
        case "stuck":
            return await write(repairs.REQUEUE, ids["document_id"])
        case "orphan_child":
            return await write(repairs.DELETE_ORPHAN, ids["document_id"])
        case "no_dead_letter":
            return await write(repairs.ADD_DEAD_LETTER, ids["document_id"])
        case "ledger_set_back":
            return await write(histories.SETTLE, ids["first_generation"])
        case "group_miscounted":
            return await write(groups.RECOUNT, ids["group"])
        case _:
            return False


async def _cut(stores: Stores, found: Iterable[Finding]) -> list[Finding]:
    """Truncate each damaged artifact before its first bad segment, or completely if its rows are inconsistent."""
    torn: dict[int, list[Finding]] = {}
    for finding in found:
        if finding.kind in ("segment_broken", "artifact_inconsistent") and "artifact" in finding.ids:
            torn.setdefault(finding.ids["artifact"], []).append(finding)
    repaired = []
    for artifact, findings in torn.items():
        ordinal = min(finding.ids.get("segment", 0) for finding in findings)
        if await stores.ledger.write(repairs.CUT, repairs.Cut(artifact, ordinal)):
            repaired += findings
    return repaired
