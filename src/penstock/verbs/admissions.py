"""Whether an owner may bring in documents now: not while the intake is paused, and not beyond its quota."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.config_limits import QuotaConfig
from penstock.errors import IntakePaused, PenstockError, QuotaExceeded
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import admission
from penstock.ledger.engine.admission import NO_LIMIT, Admission, Holdings, Override, Pause, Quota
from penstock.model.nouns import Owner
from penstock.runtime import Runtime, shielded

if TYPE_CHECKING:
    from penstock.verbs.scope import Scope

FRESH_S = 0.5
"""For how long what was read is believed. A pause takes effect in every process after this time at the latest."""
REMEMBERED = 10_000
"""Owners."""
MANY_ROWS = 500
"""The counts of an owner are added up when they have more rows."""
MEGABYTE = 1 << 20


class Limits(msgspec.Struct, frozen=True):
    """What holds for one owner: the limits of the settings, or its own."""

    quota: Quota
    requests_per_s: float | None
    """None: as in the settings."""
    holdings: Holdings
    pause: Pause | None
    is_own: bool
    """Some of them are the owner's own."""


class Admissions:
    """What the ledger says of each owner, at most `FRESH_S` old."""

    def __init__(self, ledger: Ledger, runtime: Runtime, quota: QuotaConfig) -> None:
        self._ledger = ledger
        self._runtime = runtime
        self._quota = quota
        self._known: dict[Owner, tuple[float, Limits]] = {}
        self._asked: dict[Owner, asyncio.Task[Limits]] = {}

    def known(self, owner: Owner) -> Limits | None:
        """What was read last, however old."""
        found = self._known.get(owner)
        return None if found is None else found[1]

    async def of(self, owner: Owner) -> Limits:
        found = self._known.get(owner)
        if found is not None and self._runtime.clock() - found[0] < FRESH_S:
            return found[1]
        task = self._asked.get(owner)
        if task is None:
            task = self._asked[owner] = asyncio.create_task(self._look(owner))
            task.add_done_callback(lambda done: self._asked.pop(owner, None))
        return await asyncio.shield(task)

    async def check(self, owner: Owner) -> Quota:
        """Raise IntakePaused while the intake is paused. Return the quota, which the transaction that accepts documents
        checks."""
        found = await self.of(owner)
        if found.pause is not None:
            raise paused(found.pause)
        return found.quota

    async def check_one(self, owner: Owner, collection: str, source: str, size: int) -> None:
        """Raise IntakePaused while the intake is paused, and QuotaExceeded if a document of this size does not fit. The
        ledger is asked for its former version only if it would not fit besides that."""
        quota = await self.check(owner)
        there = (await self.of(owner)).holdings
        try:
            admission.refuse_above(owner, quota, there.documents + 1, there.bytes + size)
        except QuotaExceeded:
            former = await self._ledger.read(partial(admission.size_of, owner), collection, source)
            if former is None or size > former:
                admission.refuse_above(
                    owner, quota, there.documents + 1 if former is None else 0, there.bytes + size - (former or 0)
                )

    def forget(self) -> None:
        """Read again: something was changed here."""
        self._known.clear()
        self._asked.clear()

    async def _look(self, owner: Owner) -> Limits:
        began = self._runtime.clock()
        found = await self._ledger.read(partial(admission.state, owner))
        limits = self._limits(found)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[owner] = (began, limits)
        if found.holdings.rows > MANY_ROWS:
            try:
                await shielded(self._ledger.write(admission.SETTLE_HOLDINGS, owner))
            except PenstockError as error:
                # The sum is right anyway; it only takes longer.
                logging.getLogger("penstock").debug("the counts of an owner were not added up: %s", error)
        return limits

    def _limits(self, found: Admission) -> Limits:
        own, common = found.override, self._quota
        size = None if common.megabytes is None else common.megabytes * MEGABYTE
        quota = Quota(_chosen(own.documents, common.documents), _chosen(own.bytes, size))
        return Limits(quota, own.requests_per_s, found.holdings, found.pause, own != Override())


def gate_of(scope: "Scope") -> Callable[[], Awaitable[Quota]]:
    """What the intake of an owner asks before each batch."""
    return partial(scope.resources.admissions.check, scope.owner)


def _chosen(own: int | None, common: int | None) -> int | None:
    chosen = common if own is None else own
    return None if chosen == NO_LIMIT else chosen


def paused(pause: Pause) -> IntakePaused:
    whose = "The intake of all owners" if pause.everyone else "The intake"
    why = f" ({pause.reason})" if pause.reason else ""
    return IntakePaused(
        f"{whose} is paused{why}: nothing was accepted. Try again later, or resume it (penstock intake resume)"
    )
