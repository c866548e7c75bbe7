"""What `check` says: findings while it looks, a report when it is done."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.blobs.base import Blobs
from penstock.indexes.base import Index, IndexTable, TableId
from penstock.ledger.database.store import Ledger
from penstock.ledger.upkeep.audit_index import Place

LISTED = 100
"""Entries of one kind that a report spells out; the others are counted."""


@dataclass(frozen=True)
class Stores:
    """The three that are compared, for one owner or for all ("")."""

    ledger: Ledger
    blobs: Blobs
    index: Index
    owner: str = ""
    sample: float = 1.0
    """The share of blobs whose content is read; all are looked for."""
    chance: Callable[[], float] = lambda: 0.0
    tell: Callable[[int], None] = lambda count: None
    """Told of so many more things that were looked at."""

    async def open(self, place: Place) -> IndexTable | None:
        return await self.index.open(TableId(place.owner, place.collection, place.version))

    def is_sampled(self) -> bool:
        return self.sample >= 1.0 or self.chance() < self.sample


class Finding(msgspec.Struct, frozen=True):
    kind: str
    what: str
    ids: dict[str, Any]
    """What it is about: the same trouble seen twice has the same."""
    problem: bool = True
    """A reader could notice it, or it loses work. Otherwise it is garbage."""
    count: int = 1
    ordinals: Sequence[int] | None = None
    """Of a finding about rows: which ones; None: all of the generation."""
    queued: bool = False
    """Repair has queued the document to be made again from its raw bytes."""

    @property
    def identity(self) -> tuple[str, tuple[tuple[str, Any], ...]]:
        return self.kind, tuple(sorted(self.ids.items()))


Look = Callable[[Stores, list[Finding] | None], Awaitable[list[Finding]]]
"""Looks for one sort of trouble; given what it found before, it looks at these again with fresh eyes."""


class CheckReport(msgspec.Struct, frozen=True):
    """`ok`: no problems are left. Garbage waits for prune, purge or repair and harms nobody. `queued`: documents that
    repair has queued to be made again from their raw bytes, the first hundred by their ids."""

    ok: bool
    problems: list[dict[str, Any]]
    garbage: list[dict[str, Any]]
    repaired: list[dict[str, Any]]
    queued: list[str] = []
    queued_count: int = 0
    sample: float = 1.0
    """The share of stored bytes whose content was compared; all were looked for."""


def report(found: Sequence[Finding], repaired: Sequence[Finding], sample: float = 1.0) -> CheckReport:
    problems = _entries(finding for finding in found if finding.problem)
    garbage = _entries(finding for finding in found if not finding.problem)
    queued = sorted({finding.ids["document_id"] for finding in repaired if finding.queued})
    return CheckReport(not problems, problems, garbage, _entries(repaired), queued[:LISTED], len(queued), sample)


def _entries(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    totals: Counter[str] = Counter()
    entries: list[dict[str, Any]] = []
    for finding in findings:
        totals[finding.kind] += finding.count if not finding.ids else 1
        if finding.ids and totals[finding.kind] <= LISTED:
            entry = {"kind": finding.kind, "what": finding.what, **finding.ids}
            entries.append(entry | {"count": finding.count} if finding.count > 1 else entry)
    for kind, total in totals.items():
        if total > LISTED:
            more = total - LISTED
            entries.append({"kind": kind, "what": f"and {more} more of this kind", "count": total})
    return entries
