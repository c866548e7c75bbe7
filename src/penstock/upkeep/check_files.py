"""Compare the files of index tables with the checksum of the last vacuum. If no process has held the lock of a table
since, its version and its bytes must be the same. After that the checksum is outdated, and only rows are compared."""

from penstock.errors import PenstockError
from penstock.indexes.base import maintained
from penstock.ledger.upkeep import checksums
from penstock.ledger.upkeep.checksums import StoredChecksum
from penstock.upkeep.check_rows import ids_of, place_of, said
from penstock.upkeep.report import Finding, Stores

_ACCEPT = "`penstock vacuum` accepts it as it is"
_AGAIN = f"`penstock check --repair` rebuilds the table, {_ACCEPT}"
_BACK = f"`penstock check --repair` restores that version, {_ACCEPT}"


async def files(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    wanted = None if before is None else {place_of(finding) for finding in before}
    found = []
    for stored in await stores.ledger.read(checksums.stored, stores.owner):
        if wanted is None or stored.place in wanted:
            finding = await _compared(stores, stored)
            if finding is not None:
                found.append(finding)
    return found


async def _compared(stores: Stores, stored: StoredChecksum) -> Finding | None:
    place = stored.place
    try:
        table = maintained(await stores.open(place))
        state = await table.state() if table is not None else None
    except PenstockError:
        # The comparison of rows reports a table that cannot be read.
        return None
    # Read after the version: a commit in between was made by a holder of the lock.
    touched = await stores.ledger.read(checksums.held_since, stored)
    version = state.version if state is not None else 0
    if version == stored.table_version:
        try:
            now = await table.checksum() if table is not None else None
        except PenstockError as error:
            return _changed(stored, str(error))
        if now is None or now == (stored.table_version, stored.sha256):
            return None
        return _changed(stored, "other bytes") if now.version == stored.table_version else None
    if touched:
        return None
    if version < stored.table_version:
        return _changed(stored, f"version {stored.table_version} is missing")
    what = (
        f"the index table {said(place)} was at version {stored.table_version} after the last vacuum and is at "
        f"{version}, but no process has held its lock since: {_BACK}"
    )
    return Finding("index_written_elsewhere", what, ids_of(place))


def _changed(stored: StoredChecksum, how: str) -> Finding:
    what = f"the files of the index table {said(stored.place)} are not those that vacuum left ({how}): {_AGAIN}"
    return Finding("index_changed", what, ids_of(stored.place))
