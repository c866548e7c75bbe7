"""Check: compare ledger, blobs and index in both directions, on a live system.

Every check runs twice, because the first pass may see changes in progress (a flip, a purge, a prune). Only what the
second pass finds again, on fresh state, is reported."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.ledger.database import histories
from penstock.ledger.upkeep import audit
from penstock.model.nouns import WorkerId
from penstock.upkeep.check_blobs import bought_answers, orphans, raw_bytes, segments
from penstock.upkeep.check_files import files
from penstock.upkeep.check_rows import rows
from penstock.upkeep.repair import repair_findings
from penstock.upkeep.report import CheckReport, Finding, Look, Stores, report

ROUNDS = 3
"""A repair may reveal the next problem: a dropped index table needs its rows again, and a truncated artifact needs its
document processed again."""
WINDOW = 10_000
"""Number of artifacts whose segments are summed in one statement."""

_SENTENCES = {
    "not_searchable": "{0!r} is COMPLETED, but it has no searchable generation: delete it and ingest it again",
    "stuck": "{0!r} is {1}, but none of its steps is pending or running, so it will never finish",
    "orphan_child": "{0!r} was found inside another document, which no longer exists",
    "no_dead_letter": "{0!r} is FAILED, but has no dead letter",
    "deleted_visible": "{0!r} was deleted, but its generation {1} is still active",
    "purge_missing": "generation {1} of {0!r} was replaced or deleted, but is not scheduled for removal from the index",
    "artifacts_missing": "artifacts of {0!r} are missing, and were not dropped: `penstock check "
    "--repair` or `penstock retry --dropped {2}` queues it to be processed again from its raw bytes",
    "not_placed": "{0!r} is searchable, but its generation {1} has no placement in the current version of the index",
    "purge_of_active": "generation {1} of {0!r} is active, but is scheduled for purge",
}


async def check(
    stores: Stores, worker: WorkerId, *, repair: bool = False, progress: "Progress | None" = None
) -> CheckReport:
    found = await survey(stores, progress)
    repaired: list[Finding] = []
    for _ in range(ROUNDS if repair else 0):
        now, hindered = await repair_findings(stores, worker, found)
        if not now:
            found += hindered
            break
        repaired += now
        found = await survey(stores, progress)
    left = {finding.identity for finding in found}
    return report(found, [finding for finding in repaired if finding.identity not in left], stores.sample)


Progress = Callable[[str, int], None]
"""Called with what is being checked and how much of it was checked."""


async def survey(stores: Stores, progress: Progress | None = None) -> list[Finding]:
    """All findings that both passes report."""
    looks: list[Look] = [
        set_backs,
        documents,
        generations,
        run_groups,
        wakeups,
        artifacts,
        raw_bytes,
        segments,
        bought_answers,
        rows,
        files,
        leftovers,
        orphans,
    ]
    first = [await look(_counted(stores, look, progress), None) for look in looks]
    confirmed: list[Finding] = []
    for look, found in zip(looks, first, strict=True):
        if found:
            suspects = {finding.identity for finding in found}
            confirmed += [finding for finding in await look(stores, found) if finding.identity in suspects]
    return confirmed


def _counted(stores: Stores, look: Look, progress: Progress | None) -> Stores:
    """The same stores, which also report progress."""
    if progress is None:
        return stores
    counted = 0

    def add(count: int) -> None:
        nonlocal counted
        counted += count
        progress(_NAMES.get(look, "the ledger"), counted)

    add(0)
    return replace(stores, progress=add)


async def set_backs(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    """Find a ledger that was set back to an earlier moment and was not confirmed yet."""
    return [
        Finding("ledger_set_back", histories.sentence(one), {"first_generation": one.first_generation})
        for one in await stores.ledger.read(histories.unsettled)
    ]


async def documents(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    found = []
    for kind in _asked(audit.DOCUMENT_QUESTIONS, before):
        last = ""
        while page := await stores.ledger.read(audit.documents, kind, stores.owner, last):
            for document, name, status in page:
                found.append(Finding(kind, _SENTENCES[kind].format(name, status), {"document_id": document}))
            last = page[-1][0]
    return found


async def generations(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    found = []
    for kind in _asked(audit.GENERATION_QUESTIONS, before):
        last = 0
        while page := await stores.ledger.read(audit.generations, kind, stores.owner, last):
            for generation, document, name in page:
                ids = {"document_id": document, "generation": generation}
                found.append(Finding(kind, _SENTENCES[kind].format(name, generation, document), ids))
            last = page[-1][0]
    return found


async def run_groups(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    found = []
    last = ""
    while page := await stores.ledger.read(audit.miscounted, stores.owner, last):
        for group, said, there in page:
            what = f"group {group} counts {said} open runs, but {there} are open: it would end too early or never"
            found.append(Finding("group_miscounted", what, {"group": group}))
        last = page[-1][0]
    return found


async def wakeups(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    found = []
    for key, kind, count in await stores.ledger.read(audit.unheard, stores.owner):
        what = f"{count} {kind} steps wait for the lock {key!r}, which no claim checks"
        found.append(Finding("lost_wakeup", what, {"resource_key": key, "step_kind": kind}, count=count))
    return found


async def artifacts(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    found = []
    last = await stores.ledger.read(audit.last_artifact)
    for start in range(0, last, WINDOW):
        for uneven in await stores.ledger.read(audit.uneven, stores.owner, start, start + WINDOW):
            user = await stores.ledger.read(audit.user_of, uneven.artifact)
            document, name = user or ("", "a document")
            what = (
                f"the {uneven.kind} artifact of {name!r} should have {uneven.items} items in {uneven.segments} segments"
                f" but has {uneven.items_found} in {uneven.segments_found}, or gaps"
            )
            ids = {"document_id": document, "artifact": uneven.artifact}
            found.append(Finding("artifact_inconsistent", what, ids))
    return found


async def leftovers(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    """Find artifacts that wait for prune."""
    found = []
    last = 0
    while page := await stores.ledger.read(audit.unreferenced, stores.owner, last):
        for artifact, kind in page:
            what = f"no generation refers to artifact {artifact} ({kind})"
            found.append(Finding("orphan_artifact", what, {"artifact": artifact}, problem=False))
        last = page[-1][0]
    return found


def _asked(questions: Sequence[str], before: list[Finding] | None) -> list[str]:
    return [kind for kind in questions if before is None or any(finding.kind == kind for finding in before)]


_NAMES: dict[Look, str] = {
    raw_bytes: "raw bytes",
    segments: "segments",
    bought_answers: "bought answers",
    rows: "index rows",
    orphans: "unreferenced blobs",
}
