"""The collections that a caller can choose from."""

from functools import partial

from penstock.api.callers import Access
from penstock.ledger.engine import collections


async def names(access: Access) -> list[str]:
    found = await access.scope.ledger.read(partial(collections.names, access.owner))
    return sorted(name for name in {*found, access.scope.config.collection} if access.may_use(name))
