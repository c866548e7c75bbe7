"""Limits of what one owner may ask of a server at once, and the reserve of the disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.api.problems import Problem
from penstock.app import App
from penstock.config_serve import ServeConfig
from penstock.metrics.disk import MEGABYTE, free_bytes
from penstock.verbs.admissions import Limits

WINDOW_S = 10
LOOK_S = 0.5
"""How long the free space that was measured is believed."""


class RequestLimits:
    """A token bucket for each owner."""

    def __init__(self, app: App, settings: ServeConfig) -> None:
        self._clock = app.runtime.clock
        self._rate = settings.requests_per_s
        self._left: dict[str, tuple[float, float, float]] = {}
        """What is left, since when, and at which rate: another rate begins with a full bucket."""

    def take(self, owner: str, limits: Limits | None = None) -> dict[str, str]:
        """Count a request. Return the headers that tell the caller what is left; raise Problem 429 if nothing is.
        `limits`: those of the owner."""
        own = None if limits is None else limits.requests_per_s
        rate = self._rate if own is None else own
        most = max(1.0, rate * WINDOW_S)
        now = self._clock()
        left, since, former = self._left.get(owner, (most, now, rate))
        left = min(most, left + (now - since) * rate) if former == rate else most
        wait = max(1, round((1 - left) / rate + 0.5))
        policies = [f'"requests";q={int(most)};w={WINDOW_S}']
        remaining = [f'"requests";r={max(0, int(left) - 1)};t={wait if left < 1 else WINDOW_S}']
        for name, limit, used in _quotas(limits):
            policies.append(f'"{name}";q={limit}')
            remaining.append(f'"{name}";r={max(0, limit - used)}')
        headers = {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(remaining)}
        if left < 1:
            self._left[owner] = (left, now, rate)
            raise Problem("rate_limited", "too many requests", headers={**headers, "Retry-After": str(wait)})
        self._left[owner] = (left - 1, now, rate)
        return headers


def _quotas(limits: Limits | None) -> Iterator[tuple[str, int, int]]:
    """Name, limit and use of each quota that there is."""
    if limits is not None and limits.quota.documents is not None:
        yield "documents", limits.quota.documents, limits.holdings.documents
    if limits is not None and limits.quota.bytes is not None:
        yield "bytes", limits.quota.bytes, limits.holdings.bytes


class UploadLimits:
    """The bytes of uploads in progress by owner, and the free space of the disks."""

    def __init__(self, app: App, settings: ServeConfig) -> None:
        self._clock = app.runtime.clock
        self._most = settings.upload_megabytes * MEGABYTE
        self._reserve = settings.reserve_megabytes * MEGABYTE
        self._in_flight: dict[str, int] = {}
        self._folders = [folder for folder in (app.config.blobs_path, _ledger_folder(app)) if folder is not None]
        self._free: tuple[float, int | None] = (-LOOK_S, None)

    @contextmanager
    def upload(self, owner: str, size: int) -> Iterator[None]:
        """Count the bytes of an upload while it is in progress. Raise Problem 429 or 507 if there is no room."""
        self.check_disk(size)
        there = self._in_flight.get(owner, 0)
        # One upload is always accepted, however large it is.
        if there and there + size > self._most:
            raise Problem("rate_limited", "too many bytes are being uploaded at once", headers={"Retry-After": "1"})
        self._in_flight[owner] = there + size
        try:
            yield
        finally:
            self._in_flight[owner] -= size
            if not self._in_flight[owner]:
                del self._in_flight[owner]

    def check_disk(self, size: int) -> None:
        """Raise Problem 507 if the disk could not hold these bytes besides those in progress and the reserve."""
        free = self._free_bytes()
        if free is not None and free - size - sum(self._in_flight.values()) < self._reserve:
            raise Problem("disk_full", "the disk is nearly full: what was accepted is kept")

    def _free_bytes(self) -> int | None:
        now = self._clock()
        if now - self._free[0] >= LOOK_S:
            found = [free_bytes(folder) for folder in self._folders]
            self._free = (now, min((one for one in found if one is not None), default=None))
        return self._free[1]


def _ledger_folder(app: App) -> Path | None:
    ledger = app.ledger.database.file
    return None if ledger is None else ledger.parent
