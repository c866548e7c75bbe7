"""What the ledger and the model look like, to be compared; and what must hold of a ledger whatever the model says."""

import math
from typing import Any

from tests.kit.ledger import ANNA, BERT, sha
from tests.simulation.model import Model

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import NOW
from penstock.ledger.engine import documents, work
from penstock.model.states import DOCUMENT_TRANSITIONS, ENDS, STEP_TRANSITIONS, DocumentStatus, StepStatus

TICK = 10_000.0
"""Seconds. Deadlines lie between two ticks, so that how long the test itself takes does not matter."""
Picture = dict[str, Any]


def picture(connection: Connection) -> Picture:
    """The whole ledger, as far as the model knows it; deadlines in ticks from now."""
    ask, now = connection.script, NOW[connection.dialect]

    def ticks(at: float | None) -> int:
        return 0 if at is None else math.floor(at / TICK)

    return {
        "documents": {
            row[0]: row[1:]
            for row in ask("SELECT id, owner, source, sha256, status, deleted_at IS NULL FROM documents")
        },
        "runs": {
            row[0]: row[1:]
            for row in ask(
                "SELECT x.id, x.document_id, x.settings, x.priority, x.rank, x.status, g.state, g.sha256, g.chunks, "
                "g.written, g.id FROM runs x JOIN generations g ON g.id = x.generation_id ORDER BY g.id"
            )
        },
        "steps": {
            (run, position): (
                *rest,
                *((token, worker, ticks(until)) if token else ()),
                *((ticks(due) + 1,) if rest[3] == "ERROR" else ()),
            )
            for run, position, token, worker, until, due, *rest in ask(
                f"SELECT run_id, position, lease_token, worker_id, lease_until - {now}, not_before - {now}, name, "
                "kind, resource_key, status, attempts, crashes, errors, epoch FROM steps"
            )
        },
        "locks": {
            key: (bool(ready), token, worker, ticks(until))
            for key, ready, token, worker, until in ask(
                f"SELECT resource_key, ready, token, worker_id, lease_until - {now} FROM locks"
            )
        },
        "letters": sorted(row[0] for row in ask("SELECT run_id FROM dead_letters WHERE state = 'OPEN'")),
        "purges": {
            row[0]: ticks(row[1]) + 1
            for row in ask(
                f"SELECT x.id, p.not_before - {now} FROM purges p JOIN runs x ON x.generation_id = p.generation_id"
            )
        },
        "placements": {
            row[0]: row[1]
            for row in ask(
                "SELECT x.id, p.state FROM placements p JOIN runs x ON x.generation_id = p.generation_id "
                "WHERE p.version = 1"
            )
        },
        "artifacts": {
            (owner, fingerprint): (state == "COMPLETE", segments, named, by)
            for owner, fingerprint, state, segments, named, *by in ask(
                "SELECT a.owner, a.fingerprint, a.state, a.segments, (SELECT count(*) FROM segments s WHERE "
                "s.artifact_id = a.id), b.run_id, b.position FROM artifacts a "
                "LEFT JOIN steps b ON b.id = a.builder AND b.lease_token = a.token"
            )
        },
        "refs": {
            (run, step): (owner, fingerprint)
            for run, step, owner, fingerprint in ask(
                "SELECT x.id, f.step, a.owner, a.fingerprint FROM artifact_refs f JOIN artifacts a "
                "ON a.id = f.artifact_id JOIN runs x ON x.generation_id = f.generation_id"
            )
        },
        "searchable": {
            one.document.id: (one.searchable, one.stale)
            for owner in (ANNA, BERT)
            for one in documents.newest(owner, connection, status="", collection="", before="", count=99)
        },
        "groups": {
            row[0]: (row[1], bool(row[2]), row[3], row[4])
            for row in ask(
                "SELECT g.id, g.open_runs, g.sealed, g.completions, (SELECT count(*) FROM events e "
                "WHERE e.kind = 'GROUP_END' AND e.group_id = g.id) FROM groups g"
            )
        },
        "ends": {
            row[0]: row[1]
            for row in ask(
                "SELECT run_id, count(*) FROM events WHERE kind IN ('ITEM_END', 'ITEM_FAILED') GROUP BY run_id"
            )
        },
        "open runs": work.open_runs(connection),
        "left": (work.left(connection).claimable, work.left(connection).running),
    }


def expected(m: Model) -> Picture:
    """The same of the model."""
    steps = m.steps()
    return {
        "documents": {d.id: (d.owner, d.source, sha(d.content), d.status, not d.deleted) for d in m.documents.values()},
        "runs": {
            x.id: (
                x.document.id,
                x.settings,
                x.priority,
                x.rank,
                x.status,
                x.state,
                sha(x.content),
                x.chunks,
                x.written,
            )
            for x in m.runs.values()
        },
        "steps": {
            (s.run.id, s.position): (
                *(s.name, s.kind, s.key, s.status, s.attempts, s.crashes, s.errors, s.epoch),
                *((s.token, s.worker, s.until - m.now) if s.token else ()),
                *((s.due - m.now,) if s.status == "ERROR" else ()),
            )
            for s in steps
        },
        "locks": {
            key: (lock.ready, lock.token, lock.worker, lock.until - m.now)
            if lock.token
            else (lock.ready, None, None, 0)
            for key, lock in m.locks.items()
        },
        "letters": sorted(x.id for x in m.runs.values() if x.letter),
        "purges": {x.id: x.purge_due - m.now for x in m.runs.values() if x.purge_due is not None},
        "artifacts": {
            key: (a.complete, a.segments, a.segments, [b.run.id, b.position] if (b := a.built_by) else [None, None])
            for key, a in m.artifacts.items()
        },
        "refs": m.refs,
        "searchable": {
            d.id: (bool(d.active and d.active.chunks), bool(d.active and d.active.content != d.content))
            for d in m.documents.values()
            if not d.deleted
        },
        "groups": {name: (g.open, g.sealed, g.completions, g.completions) for name, g in m.groups.items()},
        "ends": {x.id: x.ends for x in m.runs.values() if x.ends},
        "open runs": sum(d.status not in ENDS for d in m.documents.values()),
        "left": (any(s.status == "PENDING" for s in steps), any(s.status == "RUNNING" for s in steps)),
    }


def differences(found: Any, wanted: Any) -> str:
    if not isinstance(found, dict):
        return f"the ledger has {found}, the model {wanted}"
    keys = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
    return "; ".join(f"{key}: the ledger has {found.get(key)}, the model {wanted.get(key)}" for key in keys)


def keep_invariants(before: Picture, now: Picture) -> None:
    """What must hold whatever the model says."""
    for document, (*_, status, _there) in before["documents"].items():
        after = DocumentStatus(now["documents"][document][3])
        assert after == status or (DocumentStatus(status), after) in DOCUMENT_TRANSITIONS
    for step, (_, _, _, status, _, _, _, epoch, *_rest) in before["steps"].items():
        if step in now["steps"]:
            after_step = StepStatus(now["steps"][step][3])
            assert after_step == status or (StepStatus(status), after_step) in STEP_TRANSITIONS
            assert now["steps"][step][7] >= epoch, "I2: epochs only rise"
    holders: dict[str, str] = {}
    for run in now["runs"]:
        mine = [step for (of, _), step in now["steps"].items() if of == run]
        assert {position for of, position in now["steps"] if of == run} == set(range(len(mine)))
        assert sum(step[3] != "COMPLETED" for step in mine) <= 1, "a run is at one step"
        for step in mine:
            if step[3] == "RUNNING":
                assert holders.setdefault(step[8], step[9]) == step[9], "I2: one holder a token"
            if step[3] == "PENDING" and step[2] is not None:
                assert now["locks"][step[2]][0], "somebody waits behind a lock that no claim looks at"
    for document, (*_, status, there) in now["documents"].items():
        mine = [(*x, run) for run, x in now["runs"].items() if x[0] == document]
        active = [x for x in mine if x[5] == "ACTIVE"]
        assert len(active) <= 1
        assert sum(x[5] == "BUILDING" for x in mine) <= 1
        newest = [x[9] for x in before["runs"].values() if x[0] == document and x[5] == "ACTIVE"]
        assert not (newest and active) or newest[0] <= active[0][9], "I5: an older generation came back"
        assert sum(x[4] == "OPEN" for x in mine) == (status not in ENDS)
        letters = sum(x[-1] in now["letters"] for x in mine)
        assert letters == (status == "FAILED" and bool(there)), "I9: one open dead letter for what failed"
        assert active or not there or status not in ("COMPLETED", "NOT_INDEXABLE")
        assert there or not active, "I5: a deleted document is searchable"
    assert set(now["placements"]) == {run for run, x in now["runs"].items() if x[8]}, (
        "I5: a placement where rows may be"
    )
    for run, state in now["placements"].items():
        if now["runs"][run][5] == "BUILDING":
            assert state == "BUILDING", "I5: what is being built is whole in no version"
        elif run in before["placements"]:
            assert (before["placements"][run], state) != ("READY", "BUILDING")
    replaced = {run for run, x in now["runs"].items() if x[5] == "SUPERSEDED"}
    assert replaced == set(now["purges"]), "I5: a purge row for what was replaced, and for nothing else"
    assert sum(g[0] for g in now["groups"].values()) == now["open runs"], "I8: a group counts its open runs"
    for group, (_, _, completions, told) in now["groups"].items():
        assert told == completions >= before["groups"].get(group, (0, False, 0, 0))[2], "I8: each end is told once"
    assert now["open runs"] == sum(x[4] == "OPEN" for x in now["runs"].values())
