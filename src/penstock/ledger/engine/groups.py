"""Run groups: runs that were started together. The transaction that ends a run decrements `open_runs`; the one that
reaches 0 on a sealed group writes GROUP_END, once for each completion (I8)."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import outbox
from penstock.model.events import EventKind
from penstock.model.nouns import Owner

SUBMIT_S = 300.0
"""A submit that adds nothing to its group for so long counts as dead."""


class GroupStart(msgspec.Struct, frozen=True):
    """The group of a submission's runs. Its row is inserted with the first of them."""

    id: str
    workflow: str
    params: str | None = None
    seal: bool = False
    """This is the last part of the submit."""


ADD = Statement(
    "INSERT INTO groups (id, owner, collection, batch, workflow, params, snapshot, tells_end, sealed, "
    "submitting_until, total_runs, open_runs, created_at) SELECT :family, :owner, :collection, :batch, :workflow, "
    ":params, :snapshot, :tells_end, :sealed, {now} + :submit_s, :count, :count, {now} WHERE true "
    "ON CONFLICT (id) DO UPDATE SET sealed = excluded.sealed, submitting_until = excluded.submitting_until, "
    "total_runs = groups.total_runs + excluded.total_runs, open_runs = groups.open_runs + excluded.open_runs, "
    "finished_at = NULL RETURNING total_runs"
)
"""So many more runs; the first of them create the group. They are open, so sealing it here does not end it."""


def values(group: GroupStart, snapshot: str, seal: bool) -> dict[str, object]:
    """The parameters of `ADD`."""
    return {
        "family": group.id,
        "workflow": group.workflow,
        "params": group.params,
        "tells_end": int(outbox.has_handlers(snapshot, EventKind.GROUP_END)),
        "sealed": int(group.seal and seal),
        "submit_s": SUBMIT_S,
    }


def tell_started(owner: Owner, connection: Connection, snapshot: str, group: str) -> None:
    if outbox.has_handlers(snapshot, EventKind.GROUP_START):
        outbox.add_group_events(connection, EventKind.GROUP_START, [(owner, snapshot, group, 0)])


# New values from the old ones; `r.n` runs end in this statement.
_OVER = "sealed = 1 AND open_runs = r.n"
_CLOSE = Statement(
    "UPDATE groups SET open_runs = open_runs - r.n, "
    f"completions = completions + CASE WHEN {_OVER} THEN 1 ELSE 0 END, "
    f"finished_at = CASE WHEN {_OVER} THEN {{now}} END "
    "FROM {rows} WHERE {groups.id = r.name} RETURNING owner, snapshot, id, completions, tells_end, finished_at",
    rows="name text, n int",
)
_SEAL = Statement(
    "UPDATE groups SET sealed = 1, completions = completions + CASE WHEN open_runs = 0 THEN 1 ELSE 0 END, "
    "finished_at = CASE WHEN open_runs = 0 THEN {now} END "
    "WHERE id = :id AND sealed = 0 AND (:alive = 1 OR submitting_until < {now}) "
    "RETURNING owner, snapshot, id, completions, tells_end, finished_at"
)
_ABANDONED = Statement(
    "SELECT id FROM groups WHERE sealed = 0 AND submitting_until < (SELECT {now}) "
    "ORDER BY submitting_until LIMIT :count"
)
_REOPEN = Statement(
    "UPDATE groups SET open_runs = open_runs + r.n, total_runs = total_runs + r.more, finished_at = NULL "
    "FROM {rows} WHERE {groups.id = r.name}",
    rows="name text, n int, more int",
)


def close(connection: Connection, groups: Iterable[str | None]) -> None:
    """Count one ended run for each of these groups, in the transaction that ends them."""
    counts = Counter(group for group in groups if group is not None)
    if counts:
        _tell_ended(connection, connection.run(_CLOSE, sorted(counts.items())))


def reopen(connection: Connection, groups: Iterable[str | None], *, new: bool = False) -> None:
    """Count one reopened run for each of these groups; `new`: a new run took its place."""
    counts = Counter(group for group in groups if group is not None)
    if counts:
        connection.run(_REOPEN, [(group, n, n if new else 0) for group, n in sorted(counts.items())])


def seal(connection: Connection, ids: Sequence[str], *, alive: bool = True) -> list[bool]:
    """Seal groups. True for those that were not sealed. `alive=False`: only if the submitter is still dead."""
    answers = []
    for group in ids:
        rows = connection.run(_SEAL, id=group, alive=int(alive))
        _tell_ended(connection, rows)
        answers.append(bool(rows))
    return answers


def seal_abandoned(connection: Connection, count: int) -> None:
    """Seal the groups whose submitter died."""
    seal(connection, [row[0] for row in connection.run(_ABANDONED, count=count)], alive=False)


def _tell_ended(connection: Connection, rows: Sequence[Row]) -> None:
    ended = [(row[0], row[1], row[2], row[3]) for row in rows if row[5] is not None and row[4]]
    outbox.add_group_events(connection, EventKind.GROUP_END, ended)


# A retry with other parameters is another run of the same document: only the newest counts.
_COUNTS = Statement(
    "SELECT x.group_id, x.status, CASE WHEN d.status IN ('NOT_INDEXABLE', 'UNSUPPORTED') THEN d.status END, count(*) "
    "FROM {rows} JOIN runs x ON x.group_id = r.name JOIN documents d ON d.id = x.document_id WHERE NOT EXISTS "
    "(SELECT 1 FROM runs y WHERE y.document_id = x.document_id AND y.generation_id > x.generation_id "
    "AND y.group_id = x.group_id) GROUP BY 1, 2, 3",
    rows="name text",
)


def counts(connection: Connection, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """The runs of each group by status. NOT_INDEXABLE and UNSUPPORTED: completed without any text to search."""
    found: dict[str, dict[str, int]] = {group: {} for group in ids}
    for group, status, textless, n in connection.run(_COUNTS, [(group,) for group in ids]) if ids else []:
        name = textless if textless and status == "COMPLETED" else status
        found[group][name] = found[group].get(name, 0) + n
    return found


# With the row locked, so that no run of the group ends between the count and the write.
_HOLD = Statement("SELECT id FROM groups WHERE id = :id {hold}")
_RECOUNT = Statement(
    "UPDATE groups SET open_runs = (SELECT count(*) FROM runs x WHERE x.group_id = groups.id AND x.status = 'OPEN'), "
    "finished_at = NULL WHERE id = :id RETURNING open_runs, sealed"
)
_END = Statement(
    "UPDATE groups SET completions = completions + 1, finished_at = {now} WHERE id = :id "
    "RETURNING owner, snapshot, id, completions, tells_end, finished_at"
)


def _recount(connection: Connection, ids: Sequence[str]) -> list[bool]:
    """Correct the counters of groups from their runs."""
    answers = []
    for group in ids:
        connection.run(_HOLD, id=group)
        rows = connection.run(_RECOUNT, id=group)
        if rows and rows[0] == (0, 1):
            _tell_ended(connection, connection.run(_END, id=group))
        answers.append(bool(rows))
    return answers


SEAL: Verb[str, bool] = Verb("seal", lambda connection, ids: seal(connection, ids))
RECOUNT = Verb("recount", _recount)
