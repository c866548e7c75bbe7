"""Release: a step goes back to PENDING unfinished, its checkpoint kept.

This statement crosses owners (I10)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine.resource_keys import ready_steps
from penstock.model.nouns import Step, StepId


class Release(msgspec.Struct, frozen=True):
    step: Step
    give_back: bool
    """The attempt is given back: the cursor moved, or no batch was begun (I7)."""
    error: str | None = None
    """Why, for a person who asks what the step waits for."""


_RELEASE = Statement(
    "UPDATE steps SET status = 'PENDING', lease_token = NULL, waiting_on = NULL, alone = 0, "
    "attempts = CASE WHEN attempts > 0 THEN attempts - r.back ELSE 0 END, error = coalesce(r.why, steps.error) "
    "FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, back int, why text",
)


def _release(connection: Connection, releases: Sequence[Release]) -> list[bool]:
    rows = [(r.step.lease.step_id, r.step.lease.token, int(r.give_back), r.error) for r in releases]
    took = {StepId(row[0]) for row in connection.run(_RELEASE, rows)}
    ready_steps(connection, sorted(took))
    return [r.step.lease.step_id in took for r in releases]


RELEASE = Verb("release", _release, of=lambda release: release.step.lease.step_id)
