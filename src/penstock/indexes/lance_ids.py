"""The ids of the rows of a Lance dataset, by row address.

A search that reads the columns of its hits spends more time on them than on the search itself. So a search asks only
for row addresses. Their ids come from this cache, and the other columns are read for the few hits that are shown.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_ROWS = 4_000_000
"""The maximum number of rows in the cache. A row takes 12 bytes."""

_ABSENT = -1
_Ids = tuple[NDArray[np.int64], NDArray[np.int32]]


class RowIds:
    """Generations and ordinals of rows, by fragment. A fragment is never changed, apart from rows that are deleted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, str], _Ids] = OrderedDict()

    def of(self, addresses: NDArray[np.uint64], fragments: Mapping[int, Any]) -> _Ids:
        """The generation and the ordinal of each row. `fragments`: those of the version that was searched, by id."""
        generations = np.empty(len(addresses), np.int64)
        ordinals = np.empty(len(addresses), np.int32)
        numbers = addresses >> np.uint64(32)
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            offsets = (addresses[mine] & np.uint64(0xFFFFFFFF)).astype(np.int64)
            found = self._fragment(fragments[number], offsets)
            generations[mine], ordinals[mine] = found[0][offsets], found[1][offsets]
        return generations, ordinals

    def _fragment(self, fragment: Any, offsets: NDArray[np.int64]) -> _Ids:
        # The number alone is not enough: after a restore it can be given to another fragment.
        key = (fragment.fragment_id, fragment.metadata.files[0].path)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
        # A row that was deleted when the fragment was read exists again after a restore.
        if known is None or (known[0][offsets] == _ABSENT).any():
            known = _read(fragment)
            with self._lock:
                self._known[key] = known
                while len(self._known) > 1 and sum(len(ids) for ids, _ in self._known.values()) > MOST_ROWS:
                    self._known.popitem(last=False)
        return known


def _read(fragment: Any) -> _Ids:
    table = fragment.scanner(columns=["generation", "ordinal"], with_row_address=True).to_table()
    offsets = (table["_rowaddr"].to_numpy() & np.uint64(0xFFFFFFFF)).astype(np.int64)
    generations = np.full(fragment.physical_rows, _ABSENT, np.int64)
    ordinals = np.zeros(fragment.physical_rows, np.int32)
    generations[offsets] = table["generation"].to_numpy()
    ordinals[offsets] = table["ordinal"].to_numpy()
    return generations, ordinals
