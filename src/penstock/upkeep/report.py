"""Findings and the report of `check`."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.blobs.base import Blobs
from penstock.indexes.base import IndexTable, TableId
from penstock.indexes.several import Indexes
from penstock.ledger.database.store import Ledger
from penstock.ledger.upkeep.audit_index import TablePlace

LISTED = 100
"""Number of entries of one kind that a report lists; the others are counted."""


@dataclass(frozen=True)
class Stores:
    """The three stores that are compared, for one owner or for all ("")."""

    ledger: Ledger
    blobs: Blobs
    index: Indexes
    owner: str = ""
    sample: float = 1.0
    """The share of blobs whose content is read. The existence of all blobs is checked."""
    chance: Callable[[], float] = lambda: 0.0
    progress: Callable[[int], None] = lambda count: None
    """Called with the number of further things that were checked."""

    async def open(self, place: TablePlace) -> IndexTable | None:
        return await self.index.open(TableId(place.owner, place.collection, place.version))

    def is_sampled(self) -> bool:
        return self.sample >= 1.0 or self.chance() < self.sample


class Finding(msgspec.Struct, frozen=True):
    kind: str
    what: str
    ids: dict[str, Any]
    """Identifies the object. The same problem has the same ids in both passes."""
    problem: bool = True
    """True if a reader could notice it or work may be lost, False for garbage."""
    count: int = 1
    ordinals: Sequence[int] | None = None
    """For a finding about rows: their ordinals; None: all rows of the generation."""
    queued: bool = False
    """Whether repair queued the document to be processed again from its raw bytes."""

    @property
    def identity(self) -> tuple[str, tuple[tuple[str, Any], ...]]:
        return self.kind, tuple(sorted(self.ids.items()))


Look = Callable[[Stores, list[Finding] | None], Awaitable[list[Finding]]]
"""One check. With the findings of the first pass, it checks only these again."""


class CheckEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding in a report. Only the fields that identify its object are set."""

    kind: str
    what: str
    owner: str | None = None
    collection: str | None = None
    version: int | None = None
    document_id: str | None = None
    generation: int | None = None
    counted_in: int | None = None
    artifact: int | None = None
    segment: int | None = None
    key: str | None = None
    size: int | None = None
    first_generation: int | None = None
    group: str | None = None
    resource_key: str | None = None
    step_kind: str | None = None
    count: int | None = None
    """How many rows or steps are affected, if more than one; in the last entry of a kind, the number of all."""


class CheckReport(msgspec.Struct, frozen=True):
    """`ok`: no problems are left. Garbage is harmless and waits for prune, purge or repair. `queued`: ids of documents
    that repair queued to be processed again from their raw bytes, at most a hundred."""

    ok: bool
    problems: list[CheckEntry]
    garbage: list[CheckEntry]
    repaired: list[CheckEntry]
    queued: list[str] = []
    queued_count: int = 0
    sample: float = 1.0
    """The share of stored files whose content was compared. The existence of all files was checked."""


def report(found: Sequence[Finding], repaired: Sequence[Finding], sample: float = 1.0) -> CheckReport:
    problems = _entries(finding for finding in found if finding.problem)
    garbage = _entries(finding for finding in found if not finding.problem)
    queued = sorted({finding.ids["document_id"] for finding in repaired if finding.queued})
    return CheckReport(not problems, problems, garbage, _entries(repaired), queued[:LISTED], len(queued), sample)


def _entries(findings: Iterable[Finding]) -> list[CheckEntry]:
    totals: Counter[str] = Counter()
    entries: list[CheckEntry] = []
    for finding in findings:
        totals[finding.kind] += finding.count if not finding.ids else 1
        if finding.ids and totals[finding.kind] <= LISTED:
            count = finding.count if finding.count > 1 else None
            entries.append(CheckEntry(finding.kind, finding.what, **finding.ids, count=count))
    for kind, total in totals.items():
        if total > LISTED:
            more = total - LISTED
            entries.append(CheckEntry(kind, f"and {more} more of this kind", count=total))
    return entries
