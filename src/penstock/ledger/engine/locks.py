"""Resource locks for everything but steps: purge, vacuum, repair, a user's own code. Steps take their locks in the
claim (claims.py). A person may release a lock by force; that is recorded."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine.resource_keys import FREED, GROUP_KEYS, OWN_KEYS, hand_on, ready_steps
from penstock.model.nouns import Lease, Owner, StepId, Token, WorkerId


def index_key(owner: str, collection: str, version: int) -> str:
    """One writer per index table."""
    return f"index:{owner}/{collection}/{version}"


def group_key(owner: str, kind: str, key: str) -> str:
    """The lock key for the steps of one group. For index steps it is the key of their table."""
    return f"index:{owner}/{key}" if kind == "index" else f"{GROUP_KEYS}{owner}/{kind}/{key}"


def own_key(owner: str, collection: str, named: str | None) -> str | None:
    """The lock key for a resource key in a workflow. It contains the owner, so that owners never share a lock."""
    if named is None:
        return None
    return f"{OWN_KEYS}{owner}/" + named.replace("{owner}", owner).replace("{collection}", collection)


def prefixes(owner: str) -> tuple[str, str, str]:
    """The prefixes of an owner's lock keys."""
    return f"index:{owner}/", f"{OWN_KEYS}{owner}/", f"{GROUP_KEYS}{owner}/"


class Acquire(msgspec.Struct, frozen=True):
    key: str
    token: Token
    worker: WorkerId
    purpose: str
    lease_s: float
    wanted_s: float = 0.0
    """If the lock is held: no step may take it before us for so many seconds, because a busy indexer frees it for an
    instant only. Less than 0: we no longer wait."""


class Force(msgspec.Struct, frozen=True):
    """A person releases a lock of this owner by force."""

    owner: Owner
    key: str
    by: str


class Forced(msgspec.Struct, frozen=True):
    worker: WorkerId
    purpose: str
    steps: int
    """Steps of its holder: they are PENDING again."""


_ENDED = -1
"""What `_RELEASE` leaves in `paused_until` where a pause is over. Only then the target is closed: most releases end no
pause, and cost one statement."""
_ACQUIRE = Statement(
    "INSERT INTO locks (resource_key, token, worker_id, purpose, lease_until) "
    "VALUES (:key, :token, :worker, :purpose, {now} + :lease_s) ON CONFLICT (resource_key) DO UPDATE SET "
    "token = excluded.token, worker_id = excluded.worker_id, purpose = excluded.purpose, "
    "lease_until = excluded.lease_until, wanted_until = NULL, "
    # A lapsed lock changes hands: `checksums` must see that it was held.
    "released_at = CASE WHEN locks.token IS NULL THEN locks.released_at ELSE {now} END "
    "WHERE locks.token IS NULL OR locks.lease_until < {now} RETURNING resource_key"
)
_WANT = Statement("UPDATE locks SET wanted_until = {now} + :wanted_s WHERE resource_key = :key AND token IS NOT NULL")
# A group of steps that was worked on ends a pause; a purge or a vacuum says nothing about what steps do.
_RELEASE = Statement(
    f"UPDATE locks SET {FREED}, paused_until = CASE WHEN purpose = 'step' AND paused_until IS NOT NULL THEN {_ENDED} "
    "ELSE paused_until END WHERE resource_key = :key AND token = :token RETURNING paused_until"
)
_UNPAUSE = Statement("UPDATE locks SET paused_until = NULL WHERE resource_key = :key")
_CLOSE = Statement("DELETE FROM targets WHERE name = :key")
_HELD = Statement("SELECT 1 FROM locks WHERE resource_key = :key AND token = :token AND lease_until > {now}")


# Found by its lease: a step that its holder has ended, or lost, is not touched. The step is not the cause: the attempt
# is given back. Steps before locks, as heartbeats do it.
_HAND_BACK = Statement(
    "UPDATE steps SET status = 'PENDING', lease_token = NULL, waiting_on = NULL, alone = 0, "
    "attempts = CASE WHEN attempts > 0 THEN attempts - 1 ELSE 0 END "
    "WHERE status = 'RUNNING' AND resource_key = :key AND lease_token = :token RETURNING id"
)
_HOLDER = Statement(
    "SELECT token, worker_id, purpose, lease_until FROM locks WHERE resource_key = :key AND token IS NOT NULL"
)
_WRITE_DOWN = Statement(
    "INSERT INTO lock_releases (owner, resource_key, worker_id, purpose, lease_until, steps, released_by, released_at) "
    "VALUES (:owner, :key, :worker, :purpose, :until, :steps, :by, {now})"
)


def _acquire(connection: Connection, requests: Sequence[Acquire]) -> list[bool]:
    answers = []
    for r in requests:
        values = {"key": r.key, "token": r.token, "worker": r.worker, "purpose": r.purpose, "lease_s": r.lease_s}
        took = bool(connection.run(_ACQUIRE, **values))
        if not took and r.wanted_s:
            connection.run(_WANT, key=r.key, wanted_s=r.wanted_s)
        answers.append(took)
    return answers


def _release(connection: Connection, held: Sequence[tuple[str, Token]]) -> list[bool]:
    return [give_back(connection, key, token) for key, token in held]


def give_back(connection: Connection, key: str, token: Token) -> bool:
    """Within a transaction that may do more than that."""
    released = connection.run(_RELEASE, key=key, token=token)
    if released and released[0][0] == _ENDED:
        connection.run(_UNPAUSE, key=key)
        connection.run(_CLOSE, key=key)
    if released:
        hand_on(connection, key)
    return bool(released)


def _force(connection: Connection, requests: Sequence[Force]) -> list[Forced | None]:
    """The lock is free, the steps behind it wait again, and it is written down who did that: all of it, or nothing."""
    return [_take_away(connection, request) for request in requests]


def _take_away(connection: Connection, request: Force) -> Forced | None:
    if not request.key.startswith(prefixes(request.owner)):
        return None
    for token, worker, purpose, until in connection.run(_HOLDER, key=request.key):
        steps = [StepId(row[0]) for row in connection.run(_HAND_BACK, key=request.key, token=token)]
        ready_steps(connection, steps)
        if give_back(connection, request.key, token):
            row = {"owner": request.owner, "key": request.key, "worker": worker, "purpose": purpose, "until": until}
            connection.run(_WRITE_DOWN, **row, steps=len(steps), by=request.by)
            return Forced(WorkerId(worker), purpose, len(steps))
    return None


def held(connection: Connection, key: str, token: Token) -> bool:
    return bool(connection.run(_HELD, key=key, token=token))


_LEASED = Statement(
    "SELECT s.id FROM {rows} JOIN steps s ON s.id = r.step AND s.lease_token = r.token AND s.lease_until > {now}",
    rows="step bigint, token text",
)


def leased(connection: Connection, leases: Sequence[Lease]) -> set[StepId]:
    """Those of the steps whose lease is still ours: what fences a table without a lock."""
    rows = connection.run(_LEASED, [(lease.step_id, lease.token) for lease in leases]) if leases else []
    return {StepId(row[0]) for row in rows}


ACQUIRE = Verb("acquire", _acquire)
RELEASE = Verb("release_lock", _release)
FORCE = Verb("force_release", _force, notifies=any)
