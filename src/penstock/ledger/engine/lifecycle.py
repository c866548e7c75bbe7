"""Events as handlers receive them: with names, and with the counts of the group.

These statements cross owners (I10)."""

import json
from collections.abc import Sequence

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import groups
from penstock.ledger.engine.outbox import Delivery
from penstock.model.events import LifecycleEvent

_ABOUT = Statement(
    "SELECT e.id, coalesce(d.collection, g.collection), d.name, d.source, coalesce(g.id, x.group_id), "
    "coalesce(g.batch, d.batch) FROM {rows} JOIN events e ON e.id = r.id "
    "LEFT JOIN documents d ON d.id = e.document_id LEFT JOIN runs x ON x.id = e.run_id "
    "LEFT JOIN groups g ON g.id = coalesce(e.group_id, x.group_id)",
    rows="id bigint",
)


def event_id(run: str | None, group: str | None, number: int) -> str:
    """Globally unique, and the same for every delivery."""
    return f"{run or group}-{number}"


def describe(connection: Connection, deliveries: Sequence[Delivery], workflows: Sequence[str]) -> list[LifecycleEvent]:
    """`workflows`: the id of the workflow of each."""
    events = sorted({d.event_id for d in deliveries})
    about = {row[0]: row[1:] for row in connection.run(_ABOUT, [(event,) for event in events])}
    counts = groups.counts(connection, sorted({d.group_id for d in deliveries if d.group_id is not None}))
    return [
        _event(delivery, about[delivery.event_id], workflow, counts)
        for delivery, workflow in zip(deliveries, workflows, strict=True)
    ]


def _event(delivery: Delivery, about: Row, workflow: str, counts: dict[str, dict[str, int]]) -> LifecycleEvent:
    collection, name, source, group, batch = about
    body = json.loads(delivery.body)
    return LifecycleEvent(
        id=event_id(delivery.run_id, delivery.group_id, delivery.event_id),
        kind=delivery.kind,
        at=delivery.at,
        owner=delivery.owner,
        collection=collection or "",
        workflow=workflow,
        document_id=delivery.document_id,
        name=name,
        source=source,
        run_id=delivery.run_id,
        group_id=group,
        batch=batch,
        step=delivery.step,
        step_kind=delivery.step_kind,
        attempt=delivery.attempt,
        status=delivery.status,
        error=body.get("error"),
        meta=body.get("meta") or {},
        completion=delivery.completion,
        counts=counts.get(delivery.group_id or "", {}),
    )
