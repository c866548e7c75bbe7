"""What happens when a target answers: its breaker closes and the waiting steps continue. A failure for one step only is
a refusal, which counts against the step.

These statements cross owners (I10)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine.resource_keys import ready_steps
from penstock.model.nouns import Step, StepId, Token

AGAIN_S, AGAIN_LONGEST_S = 10.0, 60.0
"""Delay for a step whose target failed for this step only: another call succeeded. It doubles each time."""
REFUSALS = 3
"""After this many refusals, each further one uses one of the step's retries."""


class Answered(msgspec.Struct, frozen=True):
    """The probe with this token has ended."""

    name: str
    token: Token


class Refusal(msgspec.Struct, frozen=True):
    """The probe of a target failed, but a small call right after it succeeded. So the step itself is the cause."""

    step: Step
    name: str
    error: str
    moved: bool = False


_CLOSE = Statement(
    "DELETE FROM targets WHERE name = :name AND probe_token = :token "
    "RETURNING CASE WHEN state = 'away' AND failures = 1 THEN 1 ELSE 0 END"
)
_GO_ON = Statement(
    "UPDATE steps SET status = 'PENDING', waiting_on = NULL, not_before = NULL, error = NULL "
    "WHERE status = 'ERROR' AND waiting_on = :name RETURNING id"
)
# Jitter by id: steps whose common call failed are tried separately.
_LATER_AT = (
    "{now} + (0.5 + ((id * 37) % 97) / 194.0) * "
    "CASE WHEN refused >= 6 OR (1 << refused) * :again_s > :longest_s THEN :longest_s "
    "ELSE (1 << refused) * :again_s END"
)
_FAILED_HERE = Statement(
    "SELECT id FROM steps WHERE status = 'ERROR' AND waiting_on = :name AND error IS NOT NULL LIMIT 2"
)
# The first refusal may have another cause (a short outage, a call for several steps). After it, only that of a step
# that failed alone counts.
_LATER = Statement(
    f"UPDATE steps SET waiting_on = NULL, not_before = {_LATER_AT}, "
    "refused = CASE WHEN refused = 0 OR :alone = 1 THEN refused + 1 ELSE refused END "
    "WHERE status = 'ERROR' AND waiting_on = :name AND error IS NOT NULL"
)
_REFUSE = Statement(
    "UPDATE steps SET status = 'ERROR', lease_token = NULL, alone = 0, waiting_on = NULL, error = :error, "
    f"attempts = CASE WHEN attempts > 0 THEN attempts - 1 ELSE 0 END, not_before = {_LATER_AT}, "
    "refused = CASE WHEN :moved = 1 THEN 1 ELSE refused + 1 END "
    "WHERE id = :step AND lease_token = :token RETURNING id"
)


def _answered(connection: Connection, answers: Sequence[Answered]) -> list[int | None]:
    """Close breakers after successful probes. Returns the number of steps that continue; None if the probe was no
    longer valid."""
    return [_close(connection, answer) for answer in answers]


def _close(connection: Connection, answer: Answered) -> int | None:
    closed = connection.run(_CLOSE, name=answer.name, token=answer.token)
    if not closed:
        return None
    if closed[0][0]:
        # The first probe, with another step, succeeded: the steps that failed may have caused the failure.
        failed = connection.run(_FAILED_HERE, name=answer.name)
        delays = {"again_s": AGAIN_S, "longest_s": AGAIN_LONGEST_S}
        connection.run(_LATER, name=answer.name, alone=int(len(failed) == 1), **delays)
    going = [StepId(row[0]) for row in connection.run(_GO_ON, name=answer.name)]
    ready_steps(connection, going)
    return len(going)


def _refuse(connection: Connection, refusals: Sequence[Refusal]) -> list[bool]:
    """Count refusals and close the breakers, because the targets work."""
    answers = []
    for refusal in refusals:
        lease = refusal.step.lease
        delays = {"again_s": AGAIN_S, "longest_s": AGAIN_LONGEST_S}
        values = {"step": lease.step_id, "token": lease.token, "error": refusal.error, "moved": int(refusal.moved)}
        answers.append(bool(connection.run(_REFUSE, **values, **delays)))
        _close(connection, Answered(refusal.name, lease.token))
    return answers


ANSWERED = Verb("answered", _answered, notifies=any)
REFUSE = Verb("refuse", _refuse, of=lambda refusal: refusal.step.lease.step_id, notifies=any)
