"""Compare the index with the ledger in both directions: every chunk of a searchable document is exactly one row with
the same content, and every row belongs to a generation that may have rows in the table.

A scan reads one version of a table. A generation becomes active only once, after its rows are committed. So a
generation that is active before and after the scan was active all the time, and must be complete."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from penstock.artifacts.segments import CHUNKS
from penstock.errors import PenstockError
from penstock.indexes.base import IndexTable, StoredRow, row_digest
from penstock.ledger.upkeep import audit, audit_index
from penstock.ledger.upkeep.audit_index import Active, RowSource, State, TablePlace
from penstock.upkeep.check_blobs import read_pieces
from penstock.upkeep.report import Finding, Stores

READ_BYTES = 8 << 20
"""Total size of the segments that are read at once."""
UNKNOWN = 0
"""The digest of a chunk whose segment is missing or was not read. The digest of the first row found replaces it."""


class Expected:
    """The expected rows of a table. Uses 9 bytes per row and 16 bytes per generation."""

    def __init__(self) -> None:
        self.ids = array("q")
        self._starts = array("q", [0])
        self._digests = array("Q")
        self._seen = bytearray()
        self.extra: Counter[int] = Counter()
        self.double: dict[int, array[int]] = {}
        self.differs: dict[int, array[int]] = {}
        self.others: Counter[int] = Counter()

    def add(self, generation: int, digests: "array[int]") -> None:
        """Add a generation. Generations must be added in the order of their ids."""
        self.ids.append(generation)
        self._digests.extend(digests)
        self._starts.append(len(self._digests))
        self._seen.extend(bytes(len(digests)))

    def see(self, row: StoredRow) -> None:
        place = bisect_left(self.ids, row.generation)
        if place == len(self.ids) or self.ids[place] != row.generation:
            self.others[row.generation] += 1
            return
        at = self._starts[place] + row.ordinal
        if row.ordinal < 0 or at >= self._starts[place + 1]:
            self.extra[row.generation] += 1
            return
        seen = int(row.digest, 16)
        if self._seen[at]:
            self.double.setdefault(row.generation, array("i")).append(row.ordinal)
        self._seen[at] = 1
        if self._digests[at] == UNKNOWN:
            self._digests[at] = seen
        elif self._digests[at] != seen:
            self.differs.setdefault(row.generation, array("i")).append(row.ordinal)

    def missing(self) -> dict[int, "array[int]"]:
        found = {}
        for place, generation in enumerate(self.ids):
            start, end = self._starts[place], self._starts[place + 1]
            if self._seen.count(0, start, end):
                found[generation] = array("i", (i - start for i in range(start, end) if not self._seen[i]))
        return found


async def rows(stores: Stores, before: list[Finding] | None) -> list[Finding]:
    """Check every table that the ledger names or that exists."""
    named = await stores.ledger.read(audit_index.places, stores.owner)
    there = [TablePlace(*info) for info in await stores.index.tables() if stores.owner in ("", info.owner)]
    found: list[Finding] = []
    for place in sorted({*named, *there}):
        known = None if before is None else [f for f in before if place_of(f) == place]
        if known == []:
            continue
        if place not in named:
            what = f"no collection names the index table {said(place)}"
            found.append(Finding("orphan_table", what, ids_of(place), problem=False))
        found += await _table(stores, place, named.get(place), known)
    return found


async def _table(
    stores: Stores, place: TablePlace, dimensions: int | None, known: list[Finding] | None
) -> list[Finding]:
    wanted = None if known is None else sorted({f.ids["generation"] for f in known if "generation" in f.ids})
    found: list[Finding] = []
    expected = await _expected(stores, place, wanted, found)
    # In the second pass a generation must have been dead before the scan, because a purge may have run since.
    dead = None if wanted is None else await _dead(stores, place, wanted)
    try:
        table = await stores.open(place)
        actual = None if table is None else table.dimensions
        async for batch in _scan(table):
            stores.progress(len(batch))
            for row in batch:
                expected.see(row)
    except (PenstockError, ValueError) as error:
        return [Finding("table_broken", f"the index table {said(place)} cannot be read: {error}", ids_of(place))]
    if None not in (dimensions, actual) and dimensions != actual:
        what = f"the index table {said(place)} holds vectors of {actual} dimensions, the ledger says {dimensions}"
        found.append(Finding("dimension_mismatch", f"{what}: only a re-index helps", ids_of(place)))
    missing = expected.missing()
    suspects = {*missing, *expected.extra, *expected.double, *expected.differs, *expected.others}
    if wanted is not None:
        suspects &= set(wanted)
    states = await _states(stores, place, suspects)
    for generation in sorted(suspects):
        state = states.get(generation)
        if state is not None and state.state == "ACTIVE":
            found += _compared(place, generation, state, expected, missing.get(generation))
        elif (state is None or state.state == "PURGED") and (dead is None or generation in dead):
            count = expected.others[generation]
            if count:
                what = f"{count} rows of generation {generation}, which is no more, are left in {said(place)}"
                ids = {**ids_of(place), "generation": generation}
                found.append(Finding("dead_rows", what, ids, problem=False, count=count))
    return found


async def _scan(table: IndexTable | None) -> AsyncIterator[list[StoredRow]]:
    if table is not None:
        async for batch in table.scan():
            yield batch


def _compared(
    place: TablePlace, generation: int, state: State, expected: Expected, missing: "array[int] | None"
) -> Iterable[Finding]:
    """Findings about an active generation."""
    ids = {**ids_of(place), "document_id": state.document, "generation": generation}
    if state.place != place:
        count = expected.others[generation]
        what = f"{count} rows of {state.name!r} stand in {said(place)}, but belong into {said(state.place)}"
        yield Finding("row_misplaced", what, ids, count=count)
        return
    if state.lost and state.followed:
        # The document is being processed again from its raw bytes. Its flip will correct these rows.
        return
    if missing:
        what = f"{len(missing)} of {state.chunks} rows of {state.name!r} are not in the index"
        wanted = None if len(missing) == state.chunks else missing
        yield Finding("row_missing", what, ids, count=len(missing), ordinals=wanted)
    differs = expected.differs.get(generation)
    if differs:
        what = f"{len(differs)} rows of {state.name!r} in the index are not what its chunks say"
        yield Finding("row_differs", what, ids, count=len(differs), ordinals=differs)
    # A generation without a placement, such as that of a document without text, should have no rows.
    if extra := expected.extra[generation] + (0 if state.chunks else expected.others[generation]):
        what = f"{extra} rows of {state.name!r} are in the index beyond its {state.chunks} chunks"
        yield Finding("row_extra", what, ids, count=extra)
    if double := expected.double.get(generation):
        what = f"{len(double)} rows of {state.name!r} are in the index more than once"
        unequal = differs is not None and not set(differs).isdisjoint(double)
        yield Finding("row_double", what, ids, problem=unequal, count=len(double), ordinals=double)


async def _expected(stores: Stores, place: TablePlace, wanted: Sequence[int] | None, found: list[Finding]) -> Expected:
    expected = Expected()
    last = 0
    while True:
        if wanted is None:
            page = await stores.ledger.read(audit_index.actives, place, last)
        else:
            page = await stores.ledger.read(audit_index.actives_again, place, wanted[: audit.PAGE])
            wanted = wanted[audit.PAGE :]
        sources = await stores.ledger.read(audit_index.sources, [active.generation for active in page])
        digests = {active.generation: array("Q", bytes(8 * active.chunks)) for active in page}
        made: dict[int, list[array[int]]] = {}
        for active in page:
            chunk = sources.get((active.generation, "chunk"))
            if chunk is not None and active.chunks:
                made.setdefault(chunk.artifact, []).append(digests[active.generation])
        await _digest(stores, made)
        for active in page:
            chunk = sources.get((active.generation, "chunk"))
            expected.add(active.generation, digests[active.generation])
            found += _uneven(place, active, chunk, sources.get((active.generation, "embed")))
        if wanted == [] or (wanted is None and not page):
            return expected
        last = page[-1].generation if page else last


def _uneven(place: TablePlace, active: Active, *sources: RowSource | None) -> Iterable[Finding]:
    for source in sources:
        if source is not None and source.complete and source.items != active.chunks:
            what = f"generation {active.generation} counts {active.chunks} chunks, an artifact of it {source.items}"
            ids = {**ids_of(place), "generation": active.generation, "counted_in": source.artifact}
            yield Finding("artifact_inconsistent", what, ids)


async def _digest(stores: Stores, made: dict[int, list["array[int]"]]) -> None:
    """Fill in the digests of chunks by artifact. Chunks that cannot be read or are outside the sample stay UNKNOWN."""
    artifacts = sorted(made)
    for start in range(0, len(artifacts), audit.AT_ONCE):
        last = (0, -1)
        some = artifacts[start : start + audit.AT_ONCE]
        while page := await stores.ledger.read(audit.pieces_of, some, last):
            last = (page[-1].artifact, page[-1].ordinal)
            stores.progress(len(page))
            for pieces in _by_size([piece for piece in page if stores.is_sampled()]):
                for piece, data in zip(pieces, await read_pieces(stores.blobs, pieces), strict=True):
                    if data is not None:
                        _enter(made[piece.artifact], piece, data)


def _enter(targets: Sequence["array[int]"], piece: audit.Piece, data: bytes) -> None:
    found = array("Q", (int(row_digest(chunk), 16) for chunk in CHUNKS.decode(data)))
    for digests in targets:
        count = min(len(found), len(digests) - piece.first)
        if count > 0:
            digests[piece.first : piece.first + count] = found[:count]


def _by_size(pieces: Sequence[audit.Piece]) -> Iterator[list[audit.Piece]]:
    """Divide pieces into groups of about READ_BYTES, so that the memory of a check is limited."""
    some: list[audit.Piece] = []
    size = 0
    for piece in pieces:
        some.append(piece)
        size += piece.size
        if size >= READ_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


async def _states(stores: Stores, place: TablePlace, wanted: Iterable[int]) -> dict[int, State]:
    ids = sorted(wanted)
    states: dict[int, State] = {}
    for start in range(0, len(ids), audit.PAGE):
        states |= await stores.ledger.read(audit_index.states, ids[start : start + audit.PAGE], place.version)
    return states


async def _dead(stores: Stores, place: TablePlace, wanted: Iterable[int]) -> set[int]:
    states = await _states(stores, place, wanted)
    return {one for one in wanted if one not in states or states[one].state == "PURGED"}


def ids_of(place: TablePlace) -> dict[str, str | int]:
    return {"owner": place.owner, "collection": place.collection, "version": place.version}


def place_of(finding: Finding) -> TablePlace:
    return TablePlace(finding.ids["owner"], finding.ids["collection"], finding.ids["version"])


def said(place: TablePlace) -> str:
    return f"{place.owner}/{place.collection}/v{place.version}"
