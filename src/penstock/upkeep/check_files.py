"""The files of the index against what vacuum left. As long as nobody of ours has held a table's lock since, it is at
the same version and has the same bytes; afterwards the checksum says nothing any more, and the rows are compared."""

from penstock.errors import PenstockError
from penstock.indexes.base import maintained
from penstock.ledger.upkeep import checksums
from penstock.ledger.upkeep.checksums import Sealed
from penstock.upkeep.check_rows import ids_of, place_of, said
from penstock.upkeep.report import Finding, Stores

_ACCEPT = "`penstock vacuum` accepts it as it is"
_AGAIN = f"`penstock check --repair` makes the table again, {_ACCEPT}"
_BACK = f"`penstock check --repair` takes the table back to what it was, {_ACCEPT}"


async def files(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    wanted = None if before is None else {place_of(finding) for finding in before}
    found = []
    for seal in await stores.ledger.read(checksums.sealed, stores.owner):
        if wanted is None or seal.place in wanted:
            finding = await _compared(stores, seal)
            if finding is not None:
                found.append(finding)
    return found


async def _compared(stores: Stores, seal: Sealed) -> Finding | None:
    place = seal.place
    try:
        table = maintained(await stores.open(place))
        state = await table.state() if table is not None else None
    except PenstockError:
        # A table that cannot be read at all: the comparison of its rows says so.
        return None
    # After the version: a commit that came between is one of somebody who holds the lock.
    touched = await stores.ledger.read(checksums.held_since, seal)
    version = state.version if state is not None else 0
    if version == seal.table_version:
        try:
            now = await table.checksum() if table is not None else None
        except PenstockError as error:
            return _changed(seal, str(error))
        if now is None or now == (seal.table_version, seal.sha256):
            return None
        return _changed(seal, "other bytes") if now.version == seal.table_version else None
    if touched:
        return None
    if version < seal.table_version:
        return _changed(seal, f"version {seal.table_version} of it is gone")
    what = (
        f"the index table {said(place)} was at version {seal.table_version} when vacuum left it and is at {version}, "
        f"but nobody has held its lock since: {_BACK}"
    )
    return Finding("index_written_elsewhere", what, ids_of(place))


def _changed(seal: Sealed, how: str) -> Finding:
    what = f"the files of the index table {said(seal.place)} are not those that vacuum left ({how}): {_AGAIN}"
    return Finding("index_changed", what, ids_of(seal.place))
