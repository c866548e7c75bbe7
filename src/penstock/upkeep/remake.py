"""Queue documents with lost artifacts to be processed again from their raw bytes. They stay searchable until then."""

from collections.abc import Collection, Sequence

import msgspec

from penstock.ledger.engine import restarts
from penstock.ledger.upkeep import audit, audit_index
from penstock.model.nouns import DocumentId, Owner, RunId
from penstock.upkeep.report import Finding, Stores


class Remaker:
    """Queues documents for one repair. `unreadable`: documents whose raw bytes are missing or damaged. They are not
    queued, because their run would fail and a searchable document would become FAILED."""

    def __init__(self, stores: Stores, unreadable: Collection[str]) -> None:
        self._ledger = stores.ledger
        self._unreadable = frozenset(unreadable)
        self._queued: set[str] = set()

    def can_read(self, document: str) -> bool:
        """Whether the raw bytes of the document are there and intact."""
        return document not in self._unreadable

    async def queue(self, owner: str, documents: Collection[str]) -> set[str]:
        """Queue the documents, and return those that are queued now."""
        fresh = sorted(set(documents) - self._unreadable - self._queued)
        ulid = self._ledger.database.runtime.ulid
        for start in range(0, len(fresh), audit.PAGE):
            names = tuple((DocumentId(one), RunId(ulid())) for one in fresh[start : start + audit.PAGE])
            done = await self._ledger.write(restarts.REMAKE, restarts.Remake(Owner(owner), names))
            self._queued.update(done)
        return self._queued.intersection(documents)

    async def missing(self, found: Sequence[Finding]) -> list[Finding]:
        """Queue documents with missing artifacts, and return the findings whose documents are queued."""
        lost = [finding for finding in found if finding.kind == "artifacts_missing"]
        made: set[str] = set()
        for start in range(0, len(lost), audit.PAGE):
            page = [finding.ids["generation"] for finding in lost[start : start + audit.PAGE]]
            owners: dict[str, set[str]] = {}
            for state in (await self._ledger.read(audit_index.states, page)).values():
                owners.setdefault(state.place.owner, set()).add(state.document)
            for owner, documents in owners.items():
                made |= await self.queue(owner, documents)
        return [queued(finding) for finding in lost if finding.ids["document_id"] in made]


def queued(finding: Finding) -> Finding:
    what = f"{finding.what.partition(': `penstock')[0]}; the next `penstock run` processes it again from its raw bytes"
    return msgspec.structs.replace(finding, what=what, queued=True)
