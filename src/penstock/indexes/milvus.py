"""The index in Milvus: `milvus://HOST:PORT/DATABASE`. The owner of a row is its partition key. All reads are strongly
consistent: a search that begins after a write finds its rows."""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.indexes.base import EVERYTHING, Filter, RowSpan, TableId
from penstock.indexes.checks import numbers
from penstock.indexes.remote import Found, Place
from penstock.indexes.remote_calls import NO_ANSWER, Calls, Fault
from penstock.indexes.remote_rows import IDENTITY, STORED, TEXT, WHOLE, Fields, Limits, Row, record_id
from penstock.indexes.sparse import Sparse

MOST = 16_384
"""Rows of one answer."""
PAGE = 1_000
SPANS = 50
"""Spans of one request."""
LONGEST_TEXT = 65_535
LONGEST_NAME = 512
TIMEOUT_S = 60
NUMBERS = ("version", "generation", "ordinal", "epoch", "bucket", "page", "page_end", "start", "end")
NAMES = ("collection", "document")
NOT_LOADED = 101


class MilvusStore:
    limits = Limits(rows=500, bytes=8 << 20, field_bytes=60_000, hits=MOST)
    compares_epochs = False

    def __init__(self, connect: Callable[[], Any], prefix: str, calls: Calls) -> None:
        """`connect` returns a client of the library."""
        self._connect = connect
        self._prefix = prefix
        self._calls = calls
        self._connecting = threading.Lock()
        self._made: Any = None
        self._ready: set[str] = set()

    @property
    def _client(self) -> Any:
        with self._connecting:
            if self._made is None:
                self._made = self._connect()
            return self._made

    @property
    def _records(self) -> str:
        return f"{self._prefix}_tables"

    def _rows(self, place: Place) -> str:
        return f"{self._prefix}_{place.dimensions}"

    def warm_up(self) -> None:
        self._client.list_collections()

    def close(self) -> None:
        with self._connecting:
            if self._made is not None:
                self._made.close()
                self._made = None

    def records(self) -> list[Place]:
        found = self._call("query", self._records, filter="version >= 0", limit=MOST, output_fields=["*"])
        return [_place(one) for one in found]

    def record(self, table: TableId) -> Place | None:
        found = self._call("query", self._records, ids=[record_id(table)], output_fields=["*"])
        return _place(found[0]) if found else None

    def add(self, place: Place) -> None:
        self._create(self._records, self._record_schema)
        self._create(self._rows(place), lambda: self._row_schema(place.dimensions))
        record = {
            "id": record_id(place.table),
            "owner": place.table.owner,
            "collection": place.table.collection,
            "version": place.table.version,
            "dimensions": place.dimensions,
            "nothing": [0.0, 0.0],
        }
        self._call("upsert", self._records, [record])

    def _create(self, name: str, schema: Callable[[], tuple[Any, Any]]) -> None:
        if name in self._ready:
            return
        if not self._client.has_collection(name):
            fields, indexes = schema()
            try:
                self._client.create_collection(name, schema=fields, index_params=indexes, consistency_level="Strong")
            except Exception:
                # Another process may have created it.
                if not self._client.has_collection(name):
                    raise
        self._ready.add(name)

    def _record_schema(self) -> tuple[Any, Any]:
        """A collection must have a vector, so each record has one without meaning."""
        from pymilvus import DataType

        fields, indexes = self._schema()
        fields.add_field("owner", DataType.VARCHAR, max_length=LONGEST_NAME)
        fields.add_field("collection", DataType.VARCHAR, max_length=LONGEST_NAME)
        for name in ("version", "dimensions"):
            fields.add_field(name, DataType.INT64)
        fields.add_field("nothing", DataType.FLOAT_VECTOR, dim=2)
        indexes.add_index("nothing", index_type="FLAT", metric_type="L2")
        return fields, indexes

    def _row_schema(self, dimensions: int) -> tuple[Any, Any]:
        from pymilvus import DataType

        fields, indexes = self._schema()
        fields.add_field("owner", DataType.VARCHAR, max_length=LONGEST_NAME, is_partition_key=True)
        for name in NAMES:
            fields.add_field(name, DataType.VARCHAR, max_length=LONGEST_NAME)
        for name in NUMBERS:
            fields.add_field(name, DataType.INT64)
        for name in ("text", "headings"):
            fields.add_field(name, DataType.VARCHAR, max_length=LONGEST_TEXT)
        fields.add_field("odd", DataType.BOOL)
        fields.add_field("vector", DataType.FLOAT_VECTOR, dim=dimensions)
        fields.add_field("lexical", DataType.SPARSE_FLOAT_VECTOR)
        indexes.add_index("vector", index_type="AUTOINDEX", metric_type="IP")
        indexes.add_index("lexical", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        for name in ("collection", "document", "generation", "bucket"):
            indexes.add_index(name, index_type="INVERTED")
        return fields, indexes

    def _schema(self) -> tuple[Any, Any]:
        from pymilvus import DataType

        fields = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        fields.add_field("id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_NAME)
        return fields, self._client.prepare_index_params()

    def remove(self, place: Place) -> None:
        self._call("delete", self._records, ids=[record_id(place.table)])

    def upsert(self, place: Place, rows: Sequence[Row]) -> None:
        made = [
            {
                **row.fields,
                "id": f"{place.table.owner}/{row.id}",
                "headings": json.dumps(row.fields["headings"], ensure_ascii=False),
                "vector": row.vector,
                "lexical": _sparse(row.sparse),
            }
            for row in rows
        ]
        self._call("upsert", self._rows(place), made)

    def settle(self, place: Place, receipts: Sequence[Any]) -> None:
        """Reads are strongly consistent."""

    def delete(self, place: Place, generations: Sequence[int] | None) -> None:
        self._call("delete", self._rows(place), filter=_filter(place, Filter((), generations)))

    def nearest(self, place: Place, vector: list[float], k: int, where: Filter, whole: bool) -> list[Found]:
        return self._search(place, vector, "vector", k, where, whole)

    def matching(self, place: Place, query: Sparse, k: int, where: Filter, whole: bool) -> list[Found]:
        return self._search(place, _sparse(query), "lexical", k, where, whole)

    def _search(self, place: Place, query: Any, field: str, k: int, where: Filter, whole: bool) -> list[Found]:
        found = self._call(
            "search",
            self._rows(place),
            [query],
            anns_field=field,
            limit=k,
            filter=_filter(place, where),
            output_fields=list(WHOLE if whole else IDENTITY),
            search_params={"metric_type": "IP"},
        )
        return [(_fields(one["entity"]), float(one["distance"])) for one in found[0]]

    def get(self, place: Place, ids: Sequence[str]) -> list[Fields]:
        found: list[Fields] = []
        for start in range(0, len(ids), PAGE):
            some = [f"{place.table.owner}/{one}" for one in ids[start : start + PAGE]]
            answer = self._call("query", self._rows(place), ids=some, output_fields=[*WHOLE])
            found += map(_fields, answer)
        return found

    def spans(self, place: Place, spans: Sequence[RowSpan]) -> list[Fields]:
        found: list[Fields] = []
        for start in range(0, len(spans), SPANS):
            any_of = " or ".join(
                f"(generation == {int(one.generation)} and ordinal >= {int(one.first)} and ordinal <= {int(one.last)})"
                for one in spans[start : start + SPANS]
            )
            found += self._query(place, f"{_filter(place)} and ({any_of})", MOST, WHOLE)
        return found

    def scan(self, place: Place) -> Iterator[list[Fields]]:
        pages = self._calls.patiently(
            self._call,
            "query_iterator",
            self._rows(place),
            batch_size=PAGE,
            filter=_filter(place),
            output_fields=[*STORED],
        )
        try:
            while page := pages.next():
                yield [_fields(one) for one in page]
        finally:
            pages.close()

    def count(self, place: Place) -> int:
        found = self._call("query", self._rows(place), filter=_filter(place), output_fields=["count(*)"])
        count: int = found[0]["count(*)"]
        return count

    def sample(self, place: Place, buckets: int, most: int) -> list[Fields]:
        return self._query(place, f"{_filter(place)} and bucket < {int(buckets)}", most, TEXT)

    def _query(self, place: Place, where: str, most: int, fields: Sequence[str]) -> list[Fields]:
        found = self._call("query", self._rows(place), filter=where, limit=most, output_fields=list(fields))
        return [_fields(one) for one in found]

    def _call(self, name: str, collection: str, *values: Any, **keywords: Any) -> Any:
        """Call the client. A collection that the server has not loaded since it was started is loaded first."""
        from pymilvus import MilvusException

        call = getattr(self._client, name)
        try:
            return call(collection, *values, **keywords)
        except MilvusException as error:
            if error.code != NOT_LOADED:
                raise
        self._client.load_collection(collection)
        return call(collection, *values, **keywords)


def connect(uri: str, token: str, database: str) -> Any:
    from pymilvus import MilvusClient

    # It logs every error with a traceback. Errors are raised, too.
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL + 1)
    return MilvusClient(uri, token=token, db_name=database, timeout=TIMEOUT_S)


_STATUS = {
    **dict.fromkeys((1, 2, 3, 5, 7), 503),
    **dict.fromkeys((4, 8, 9), 429),
    100: 404,
    1401: 401,
    1402: 403,
}
"""Of the error codes of Milvus. 5xx: the server, a channel, a segment or a node does not work for now."""


def explain(error: Exception) -> Fault | None:
    from pymilvus import MilvusException, MilvusUnavailableException

    said = str(getattr(error, "message", error))
    match error:
        case MilvusUnavailableException():
            return Fault(NO_ANSWER, said)
        case MilvusException() if "auth check failure" in said or "UNAUTHENTICATED" in said:
            return Fault(401, said)
        case MilvusException() if "Fail connecting" in said:
            return Fault(NO_ANSWER, said)
        case MilvusException():
            code = int(error.code)
            if code == 1 and type(error) is not MilvusException:
                # The library itself refuses the call.
                return Fault(400, said)
            return Fault(503 if 500 <= code < 700 or 900 <= code < 1000 else _STATUS.get(code, 400), said)
    return Fault(NO_ANSWER, said) if type(error).__module__.partition(".")[0] == "grpc" else None


def _sparse(given: Sparse) -> dict[int, float]:
    return dict(zip(given.indices, given.values, strict=True))


def _fields(entity: Any) -> Fields:
    found = dict(entity)
    if "headings" in found:
        found["headings"] = json.loads(found["headings"])
    return found


def _filter(place: Place, where: Filter = EVERYTHING) -> str:
    """Names of owners and collections have no characters that are special in filters."""
    owner, collection, version = place.table
    names = f"owner == {json.dumps(owner)} and collection == {json.dumps(collection)}"
    terms = [names, f"version == {int(version)}"]
    if where.only is not None:
        terms.append(f"generation in [{numbers(where.only)}]")
    if where.hidden:
        terms.append(f"generation not in [{numbers(where.hidden)}]")
    return " and ".join(terms)


def _place(fields: Fields) -> Place:
    table = TableId(fields["owner"], fields["collection"], int(fields["version"]))
    return Place(table, int(fields["dimensions"]))
