"""What an owner may have, and what it has."""

import msgspec

from penstock.errors import UsageError
from penstock.ledger.engine import admission
from penstock.ledger.engine.admission import NO_LIMIT, Override
from penstock.verbs import arguments
from penstock.verbs.admissions import MEGABYTE
from penstock.verbs.scope import Scope

MOST = 10**12
MOST_REQUESTS = 1_000_000.0


class QuotaView(msgspec.Struct, frozen=True):
    """The limits of an owner, and what it has. A limit that is None does not exist."""

    documents: int | None
    megabytes: int | None
    requests_per_s: float
    used_documents: int
    used_bytes: int
    """Of the raw bytes of these documents."""
    own: bool
    """The limits are those of this owner, and not only those of the settings."""


async def quota(scope: Scope) -> QuotaView:
    """Return the quota of this owner, and how much of it is used."""
    scope.resources.admissions.forget()
    found = await scope.resources.admissions.of(scope.owner)
    limit = found.quota.bytes
    return QuotaView(
        found.quota.documents,
        None if limit is None else limit // MEGABYTE,
        scope.config.serve.requests_per_s if found.requests_per_s is None else found.requests_per_s,
        found.holdings.documents,
        found.holdings.bytes,
        found.is_own,
    )


async def set_quota(
    scope: Scope,
    *,
    documents: int | None = None,
    megabytes: int | None = None,
    requests_per_s: float | None = None,
) -> QuotaView:
    """Give this owner limits of its own. They replace all that were set before: what is None is as in the settings,
    and -1 is no limit. Documents that are there stay, also if they exceed the quota."""
    size = None if megabytes is None else arguments.number("megabytes", megabytes, NO_LIMIT, MOST)
    if requests_per_s is not None and not 0 < arguments.amount("requests_per_s", requests_per_s) <= MOST_REQUESTS:
        raise UsageError(f"requests_per_s {requests_per_s!r}: use more than 0, and at most {MOST_REQUESTS:,.0f}")
    override = Override(
        None if documents is None else arguments.number("documents", documents, NO_LIMIT, MOST),
        size if size is None or size == NO_LIMIT else size * MEGABYTE,
        requests_per_s,
    )
    await scope.ledger.write(admission.SET_QUOTA, admission.SetQuota(scope.owner, override, scope.actor))
    return await quota(scope)
