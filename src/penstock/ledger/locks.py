"""Resource locks for what is not a step: purge, vacuum, repair. Steps take theirs in the claim (queue.py)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database import Connection, Statement
from penstock.ledger.writer import Verb
from penstock.model.nouns import Token, WorkerId


def index_key(owner: str, collection: str, version: int) -> str:
    """One writer per index table."""
    return f"index:{owner}/{collection}/{version}"


class Acquire(msgspec.Struct, frozen=True):
    key: str
    token: Token
    worker: WorkerId
    purpose: str
    lease_s: float


_ACQUIRE = Statement(
    "INSERT INTO locks (resource_key, token, worker_id, purpose, lease_until) "
    "VALUES (:key, :token, :worker, :purpose, {now} + :lease_s) ON CONFLICT (resource_key) DO UPDATE SET "
    "token = excluded.token, worker_id = excluded.worker_id, purpose = excluded.purpose, "
    "lease_until = excluded.lease_until WHERE locks.token IS NULL OR locks.lease_until < {now} RETURNING resource_key"
)
_RELEASE = Statement(
    "UPDATE locks SET token = NULL, worker_id = NULL, purpose = NULL, lease_until = NULL, released_at = {now} "
    "WHERE resource_key = :key AND token = :token RETURNING resource_key"
)
_HELD = Statement("SELECT 1 FROM locks WHERE resource_key = :key AND token = :token AND lease_until > {now}")


def _acquire(connection: Connection, requests: Sequence[Acquire]) -> list[bool]:
    return [
        bool(connection.run(_ACQUIRE, key=r.key, token=r.token, worker=r.worker, purpose=r.purpose, lease_s=r.lease_s))
        for r in requests
    ]


def _release(connection: Connection, held: Sequence[tuple[str, Token]]) -> list[bool]:
    return [bool(connection.run(_RELEASE, key=key, token=token)) for key, token in held]


def held(connection: Connection, key: str, token: Token) -> bool:
    return bool(connection.run(_HELD, key=key, token=token))


ACQUIRE = Verb("acquire", _acquire)
RELEASE = Verb("release_lock", _release)
