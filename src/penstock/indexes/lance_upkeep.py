"""Maintenance of the files and indexes of a Lance table: which work is due, and how it is done.

Pieces (files, index segments) are merged in the way a binary counter carries: the newest ones, and older ones as long
as they are not larger than the total merged so far. So a row is rewritten log n times, and a table has log n pieces.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.indexes import lance_rows

VECTOR = "vector"
GENERATION = "generation"
"""The index that applies filters. Without it, a filter reads a column of all rows: 3 ms for each query of 100,000. It
is created when the table has as many rows as an update of the text indexes needs."""
FIRST_TEXT = "text"
"""The text index of the first versions. It is on the column `text`, without headings."""

TEXT_EVERY = 4_000
"""Number of new rows after which the text index is updated. A text search reads rows outside the index one by one,
which takes 15 ms per thousand rows."""
BULK_EVERY = 25_000
"""The same for a table that nobody has searched lately. Fewer and larger updates take half of the time. The new files
become one that need not be merged again."""
BULK_SEGMENTS = 8
"""The segments of a table that nobody searches are merged only if there are more of them."""
NEW_FILES = 4
"""Before an update of the text indexes, so many small files without index entries are merged. That is the best time:
to merge files that are in the text indexes takes four times as long, because their entries are rewritten."""
VECTOR_EVERY = 20_000
"""Number of new rows after which the vector index is updated. A search without the index takes 14 ms for this many."""
VECTOR_SETTLED = 500
"""The same at the end of an ingest and in an idle worker, if the index exists. 3,000 rows outside the index cost 5 ms
of processor time for each search, and 0.07 s to add."""
SETTLED = 4
"""At the end of an ingest, segments of text indexes are merged with one that is up to so many times as large as they.
With one segment instead of four, a search takes half of the time."""
SETTLED_ROWS = 200_000
"""At most so many rows of a text index are merged at once: it takes 1.5 KB of memory for each, and 30 µs of processor
time."""
SMALL_FILES = 32
FILE_ROWS = 25_000
"""Files with at least this many rows are not merged. A merge needs two to three times the memory of its rows."""
SEGMENT_ROWS = 50_000
"""Rows that are added to one segment of the vector index. The memory needed depends only on this number."""
TRAINED = 128
"""Number of vectors for each partition that the partitions are trained on."""

PROBES = 256
"""Number of partitions that a search reads: all of them. They are compressed, so that leaving some out would cost more
recall than it saves time."""
SMALL_INDEX = 160
"""An index that needs no more partitions, up to 100,000 rows, is not trained anew."""
LEAST_COMPRESSED = 64
"""Vectors of fewer dimensions are not compressed: there is too little to tell them apart by."""

# Stop words are kept and English is stemmed: in trials with 300 SQuAD questions this was better than without.
# ICU splits Chinese, Japanese and Thai into words; `simple` treats a sentence of these languages as one word.
WORDS = {
    "base_tokenizer": "icu/split",
    "language": "English",
    "stem": True,
    "remove_stop_words": False,
    "lower_case": True,
    "ascii_folding": True,
    "with_position": False,
}
# Grams are cut by us, and are compared as they are.
GRAMS = {
    "base_tokenizer": "whitespace",
    "stem": False,
    "remove_stop_words": False,
    "lower_case": False,
    "ascii_folding": False,
    "with_position": False,
}
TEXT: dict[str, dict[str, Any]] = {"words": WORDS, "grams": GRAMS}
"""The text indexes: each has the name of its column."""


def tail(sizes: Sequence[int]) -> int:
    """The number of newest pieces to merge. `sizes` begins with the oldest piece."""
    total = count = 0
    for size in reversed(sizes):
        if count and size > total:
            break
        total += size
        count += 1
    return count


def create_text_indexes(dataset: Any) -> None:
    """Create empty text indexes. Rows outside an index are found too, with its tokenizer; `optimize` adds them."""
    for name in TEXT:
        create_text_index(dataset, name)


def create_text_index(dataset: Any, name: str) -> None:
    column, tokenizer = name, TEXT.get(name, WORDS)
    dataset.create_scalar_index(column, "INVERTED", name=name, replace=True, train=False, **tokenizer)


def text_column(dataset: Any, field: str) -> str | None:
    """The column that a text query searches; None if the table has no grams. A table of the first versions has none,
    and its words have no headings. Raises ValueError if the table has no index of words: then it is damaged."""
    names = {index.name for index in dataset.describe_indices()}
    if field in names:
        return field
    if field == "words" and FIRST_TEXT not in names:
        raise ValueError("it has lost its text index")
    return FIRST_TEXT if field == "words" else None


def lacks_columns(dataset: Any) -> bool:
    """Whether this is a table of the first versions, or one whose change to the present columns was interrupted."""
    if dataset is None:
        return False
    names = {index.name for index in dataset.describe_indices()}
    return not names.issuperset(TEXT) or FIRST_TEXT in names


def has_removed_rows(dataset: Any) -> bool:
    """Whether files or text indexes may contain rows that were removed."""
    if dataset is None:
        return False
    there = {part.fragment_id: part.num_deletions for part in dataset.get_fragments()}
    text = (index for index in dataset.describe_indices() if index.name in TEXT)
    known = {fragment for index in text for part in index.segments for fragment in part.fragment_ids}
    return any(there.values()) or not known.issubset(there)


def rebuild_text_indexes(dataset: Any) -> None:
    """Make the text indexes again, so that they contain no words of removed rows. In a large table this is left to the
    merges of their segments: it needs much memory."""
    if dataset.count_rows() > SETTLED_ROWS:
        return
    for index in dataset.describe_indices():
        if index.name in TEXT:
            create_text_index(dataset, index.name)
            dataset.optimize.optimize_indices(index_names=[index.name])


def add_text_columns(dataset: Any) -> None:
    """Change a table of the first versions to the present columns and indexes. Each commit leaves a table that can be
    searched: a query uses the first index until the new ones exist."""
    if not set(lance_rows.LEXICAL).issubset(dataset.schema.names):
        dataset.add_columns(lance_rows.add_lexical, read_columns=["headings", "text"])
    present = {index.name for index in dataset.describe_indices()}
    for name in TEXT:
        if name not in present:
            create_text_index(dataset, name)
            dataset.optimize.optimize_indices(index_names=[name])
    if FIRST_TEXT in present:
        dataset.drop_index(FIRST_TEXT)


def create_vector_index(dataset: Any) -> None:
    """Create the vector index in one commit. An index without compression is made segment by segment: `create_index`
    would need twice the memory of all vectors. Compressed segments could not be merged if they were trained apart; one
    of 400,000 rows needs 350 MB."""
    from lance.indices import IndicesBuilder

    rows = dataset.count_rows()
    count = partitions_for(rows)
    model = IndicesBuilder(dataset, "vector").train_ivf(
        num_partitions=count, distance_type="dot", sample_rate=min(TRAINED, rows // count)
    )
    kind = vector_index_kind(lance_rows.dimensions_of(dataset))
    options = {"name": VECTOR, "metric": "dot", "num_partitions": count, "replace": True}
    segments = [
        dataset.create_index_uncommitted(
            "vector", kind, fragment_ids=fragments, ivf_centroids=model.centroids, **options
        )
        for fragments in ([list(dataset.fragment_ids())] if kind == "IVF_RQ" else _groups(dataset))
    ]
    dataset.commit_existing_index_segments(VECTOR, "vector", segments)


def vector_index_kind(dimensions: int) -> str:
    """With one bit for each number (RaBitQ), a search reads a sixteenth of the bytes, and compares the best rows again
    by their vectors (docs/decisions/0027)."""
    return "IVF_RQ" if dimensions >= LEAST_COMPRESSED and dimensions % 8 == 0 else "IVF_FLAT"


def refine_factor(k: int) -> int:
    """How many times as many rows as are asked for are compared again by their vectors. Of many, fewer are enough."""
    return max(3 if k < 200 else 2, math.ceil(200 / k))


def _groups(dataset: Any) -> Iterator[list[int]]:
    """Groups of fragments with about SEGMENT_ROWS rows each."""
    group: list[int] = []
    rows = 0
    for fragment in dataset.get_fragments():
        group.append(fragment.fragment_id)
        rows += fragment.count_rows()
        if rows >= SEGMENT_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


def partitions_for(rows: int) -> int:
    return max(16, min(256, math.isqrt(rows) // 2))


class Pace(NamedTuple):
    """How much work must have gathered before it is done."""

    text_rows: int = TEXT_EVERY
    """Rows outside the text indexes."""
    force: bool = False
    """Add all rows to all indexes."""
    settles: bool = False
    """No work follows soon, so segments are merged for the sake of searches."""
    bulk: bool = False
    """Nobody searches, so segments are rarely merged."""


def due(dataset: Any, pace: Pace) -> list[str]:
    """Which of the files and indexes need work, in order. This takes 0.3 ms."""
    if dataset is None:
        return []
    rows = dataset.count_rows()
    described = {index.name: index for index in dataset.describe_indices()}
    indexed = {name: index.num_rows_indexed for name, index in described.items()}
    vector = rows - indexed.get(VECTOR, 0)
    found = []
    for name in (GENERATION, *TEXT, FIRST_TEXT):
        outside = rows - indexed.get(name, 0 if name == GENERATION else rows)
        is_due = outside >= pace.text_rows or (pace.force and outside > 0 and name in indexed)
        if is_due or (pace.settles and name in TEXT and name in described and _is_split(dataset, described[name])):
            found.append(name)
    enough = VECTOR_SETTLED if pace.settles and VECTOR in indexed else VECTOR_EVERY
    if vector >= enough or (pace.force and vector > 0 and VECTOR in indexed):
        found.append(VECTOR)
    if found and new_files(dataset):
        found.insert(0, "new files")
    elif len(dataset.fragment_ids()) >= SMALL_FILES and small_files(dataset):
        found.insert(0, "files")
    return found


def new_files(dataset: Any) -> list[int]:
    """The small fragments that are in no index; an empty list if there are fewer than NEW_FILES."""
    indexed = {one for index in dataset.describe_indices() for part in index.segments for one in part.fragment_ids}
    parts = (fragment.metadata for fragment in dataset.get_fragments())
    found = [part.id for part in parts if part.id not in indexed and part.physical_rows < FILE_ROWS]
    return found if len(found) >= NEW_FILES else []


def small_files(dataset: Any) -> list[int]:
    """The fragments to merge; an empty list if there are fewer than SMALL_FILES."""
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    sizes = [FILE_ROWS**2 if part.physical_rows >= FILE_ROWS else part.physical_rows for part in fragments]
    count = tail(sizes)
    return [part.id for part in fragments[-count:]] if count >= SMALL_FILES else []


def target_rows(dataset: Any, chosen: Sequence[int] | None) -> int:
    """The rows of each merged file. Without a small file at the end that would be merged again: that takes longer when
    its rows are in the indexes."""
    total = 0 if chosen is None else sum(dataset.get_fragment(one).count_rows() for one in chosen)
    return total if FILE_ROWS <= total < 2 * FILE_ROWS else FILE_ROWS


FILES: dict[str, Callable[[Any], list[int]]] = {"files": small_files, "new files": new_files}
"""Which fragments to merge, for each kind of work on files that `due` names."""


def update_indexes(dataset: Any, names: Sequence[str], pace: Pace) -> None:
    for name in names:
        update_index(dataset, name, pace)


def update_index(dataset: Any, name: str, pace: Pace) -> None:
    """Write the rows outside the index into a new segment, merged with the newest segments that are not larger. Creates
    an index that does not exist."""
    index = _described(dataset, name)
    if index is not None:
        sizes = _sizes(dataset, index)
        count = 1 if pace.bulk and len(sizes) <= BULK_SEGMENTS else tail(sizes)
        if name in TEXT:
            count = max(within(sizes, count), settled_tail(sizes) if pace.settles else 0)
        dataset.optimize.optimize_indices(index_names=[name], num_indices_to_merge=count - 1)
    elif name == GENERATION:
        dataset.create_scalar_index("generation", "BTREE", name=GENERATION, replace=True)
    else:
        create_vector_index(dataset)


def _sizes(dataset: Any, index: Any) -> list[int]:
    """The number of rows in each segment of an index, the oldest first, and of the rows outside of it."""
    rows = {fragment.fragment_id: fragment.count_rows() for fragment in dataset.get_fragments()}
    return [*(sum(rows.pop(one, 0) for one in part.fragment_ids) for part in index.segments), sum(rows.values())]


def within(sizes: Sequence[int], count: int) -> int:
    """At most `count` of the newest pieces, and no more than together have SETTLED_ROWS rows."""
    while count > 1 and sum(sizes[-count:]) > SETTLED_ROWS:
        count -= 1
    return count


def settled_tail(sizes: Sequence[int]) -> int:
    """The number of newest pieces to merge when no work follows soon: the oldest of them is at most SETTLED times as
    large as the others together. 0 if they have too few rows to be worth it."""
    for at, size in enumerate(sizes):
        newer = sum(sizes[at + 1 :])
        if size <= SETTLED * newer and size + newer <= SETTLED_ROWS:
            return len(sizes) - at if size + newer >= TEXT_EVERY else 0
    return 0


def _is_split(dataset: Any, index: Any) -> bool:
    """Whether an index has segments to merge when no work follows soon."""
    sizes = [size for size in _sizes(dataset, index) if size]
    return settled_tail(sizes) > 1


def outgrown(dataset: Any) -> bool:
    """Whether the vector index was trained on a much smaller table, so that its partitions are too large now."""
    wanted = 0 if dataset is None else partitions_for(dataset.count_rows())
    if wanted <= SMALL_INDEX or _described(dataset, VECTOR) is None:
        return False
    return len(dataset.get_ivf_model(VECTOR).centroids) * 2 < wanted


def _described(dataset: Any, name: str) -> Any:
    return next((index for index in dataset.describe_indices() if index.name == name), None)
