"""Prune: take away what nothing refers to any more. Rows go first, then the blobs that they named: a kill in between
leaves blobs without a name, which the next prune finds, and never a name without a blob.

Only what is older than a day goes: an open submit stores bytes before it names them, and so does a running step."""

from penstock.ledger import audit, mending
from penstock.model.nouns import WorkerId
from penstock.upkeep.check_blobs import batches, unnamed
from penstock.upkeep.purge import purge
from penstock.upkeep.report import Stores


async def prune(stores: Stores, worker: WorkerId, *, older_than_s: float) -> dict[str, int]:
    """How many generations, artifacts and blobs went, and how many bytes these were."""
    counts = {"purged": 0, "artifacts": 0, "blobs": 0, "bytes": 0}
    while gone := await purge(stores.ledger, stores.index, worker):
        counts["purged"] += gone
    await _artifacts(stores, older_than_s, counts)
    await _blobs(stores, older_than_s, counts)
    return counts


async def _artifacts(stores: Stores, older_than_s: float, counts: dict[str, int]) -> None:
    """Artifacts that no generation refers to and nobody builds, with their segments."""
    last = 0
    while True:
        forgotten = await stores.ledger.write(mending.FORGET, mending.Forget(last, older_than_s, audit.PAGE))
        if not forgotten.last:
            return
        last = forgotten.last
        await stores.blobs.delete([key for key, _ in forgotten.blobs])
        counts["artifacts"] += forgotten.artifacts
        counts["blobs"] += len(forgotten.blobs)
        counts["bytes"] += sum(size for _, size in forgotten.blobs)


async def _blobs(stores: Stores, older_than_s: float, counts: dict[str, int]) -> None:
    """Blobs that no row names: of purged generations, of steps and submits that were killed, unfinished files."""
    before = stores.ledger.database.runtime.now() - older_than_s
    async for infos in batches(stores.blobs, stores.owner):
        old = [info for info in infos if info.modified_at < before]
        if gone := await unnamed(stores, old) if old else []:
            await stores.blobs.delete([info.key for info in gone])
            counts["blobs"] += len(gone)
            counts["bytes"] += sum(info.size for info in gone)
