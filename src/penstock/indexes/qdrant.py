"""The index in Qdrant: `qdrant://HOST:PORT`. Points have the id of their row as a UUID, and payload indexes on owner,
collection, version, document and generation."""

import hashlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.indexes.base import Filter, RowSpan, TableId
from penstock.indexes.remote import Found, Place
from penstock.indexes.remote_calls import NO_ANSWER, Calls, Fault, Missing
from penstock.indexes.remote_rows import IDENTITY, STORED, TEXT, WHOLE, Fields, Limits, Row, record_id
from penstock.indexes.sparse import Sparse

PAGE = 1_000
SPANS = 50
"""Spans of one request."""
DENSE, SPARSE = "vector", "lexical"
TIMEOUT_S = 60


class QdrantStore:
    limits = Limits(rows=500, bytes=8 << 20)
    compares_epochs = True

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
    def _models(self) -> Any:
        from qdrant_client import models

        return models

    @property
    def _records(self) -> str:
        return f"{self._prefix}_tables"

    def _rows(self, place: Place) -> str:
        return f"{self._prefix}_{place.dimensions}"

    def warm_up(self) -> None:
        self._client.get_collections()

    def close(self) -> None:
        with self._connecting:
            if self._made is not None:
                self._made.close()
                self._made = None

    def records(self) -> list[Place]:
        return [_place(one) for page in self._pages(self._records, None, True) for one in page]

    def record(self, table: TableId) -> Place | None:
        found = self._missing(self._client.retrieve, self._records, [_point(record_id(table))], with_payload=True)
        return _place(found[0].payload) if found else None

    def add(self, place: Place) -> None:
        m = self._models
        self._create(self._records, {})
        dense = m.VectorParams(size=place.dimensions, distance=m.Distance.DOT)
        self._create(self._rows(place), {DENSE: dense}, {SPARSE: m.SparseVectorParams()})
        id_ = record_id(place.table)
        record = {
            "id": id_,
            "owner": place.table.owner,
            "collection": place.table.collection,
            "version": place.table.version,
            "dimensions": place.dimensions,
        }
        self._client.upsert(self._records, [m.PointStruct(id=_point(id_), vector={}, payload=record)])

    def _create(self, name: str, dense: dict[str, Any], sparse: dict[str, Any] | None = None) -> None:
        if name in self._ready:
            return
        m = self._models
        if not self._client.collection_exists(name):
            try:
                self._client.create_collection(name, vectors_config=dense, sparse_vectors_config=sparse)
            except Exception:
                # Another process may have created it.
                if not self._client.collection_exists(name):
                    raise
        if dense:
            keyword = m.KeywordIndexParams(type=m.KeywordIndexType.KEYWORD)
            number = m.IntegerIndexParams(type=m.IntegerIndexType.INTEGER, lookup=True, range=True)
            schemas = {
                "owner": m.KeywordIndexParams(type=m.KeywordIndexType.KEYWORD, is_tenant=True),
                **dict.fromkeys(("collection", "document"), keyword),
                **dict.fromkeys(("version", "generation", "bucket"), number),
            }
            for field, schema in schemas.items():
                self._client.create_payload_index(name, field, field_schema=schema)
        self._ready.add(name)

    def remove(self, place: Place) -> None:
        points = self._models.PointIdsList(points=[_point(record_id(place.table))])
        self._missing(self._client.delete, self._records, points)

    def upsert(self, place: Place, rows: Sequence[Row]) -> None:
        m = self._models
        points = [
            m.PointStruct(
                id=_point(f"{place.table.owner}/{row.id}"),
                vector={
                    DENSE: row.vector,
                    SPARSE: m.SparseVector(indices=row.sparse.indices, values=row.sparse.values),
                },
                payload={"id": row.id, **row.fields},
            )
            for row in rows
        ]
        not_later = m.Filter(must=[m.FieldCondition(key="epoch", range=m.Range(lte=rows[0].epoch))])
        self._missing(self._client.upsert, self._rows(place), points, update_filter=not_later)

    def settle(self, place: Place, receipts: Sequence[Any]) -> None:
        """A write has been applied when it is acknowledged."""

    def delete(self, place: Place, generations: Sequence[int] | None) -> None:
        selector = self._models.FilterSelector(filter=self._filter(place, Filter((), generations)))
        self._missing(self._client.delete, self._rows(place), selector)

    def nearest(self, place: Place, vector: list[float], k: int, where: Filter, whole: bool) -> list[Found]:
        return self._query(place, vector, DENSE, k, where, whole)

    def matching(self, place: Place, query: Sparse, k: int, where: Filter, whole: bool) -> list[Found]:
        vector = self._models.SparseVector(indices=query.indices, values=query.values)
        return self._query(place, vector, SPARSE, k, where, whole)

    def _query(self, place: Place, query: Any, using: str, k: int, where: Filter, whole: bool) -> list[Found]:
        found = self._missing(
            self._client.query_points,
            self._rows(place),
            query=query,
            using=using,
            limit=k,
            query_filter=self._filter(place, where),
            with_payload=list(WHOLE if whole else IDENTITY),
        )
        return [(one.payload, float(one.score)) for one in found.points]

    def get(self, place: Place, ids: Sequence[str]) -> list[Fields]:
        found: list[Fields] = []
        for start in range(0, len(ids), PAGE):
            points = [_point(f"{place.table.owner}/{one}") for one in ids[start : start + PAGE]]
            some = self._missing(self._client.retrieve, self._rows(place), points, with_payload=list(WHOLE))
            found += [one.payload for one in some]
        return found

    def spans(self, place: Place, spans: Sequence[RowSpan]) -> list[Fields]:
        m = self._models
        found: list[Fields] = []
        for start in range(0, len(spans), SPANS):
            any_of = [
                m.Filter(
                    must=[
                        m.FieldCondition(key="generation", match=m.MatchValue(value=span.generation)),
                        m.FieldCondition(key="ordinal", range=m.Range(gte=span.first, lte=span.last)),
                    ]
                )
                for span in spans[start : start + SPANS]
            ]
            wanted = self._filter(place)
            wanted.should = any_of
            found += [one for page in self._pages(self._rows(place), wanted, list(WHOLE)) for one in page]
        return found

    def scan(self, place: Place) -> Iterator[list[Fields]]:
        return self._pages(self._rows(place), self._filter(place), list(STORED))

    def _pages(self, collection: str, where: Any, fields: Any) -> Iterator[list[Fields]]:
        offset = None
        while True:
            found, offset = self._calls.patiently(self._scrolled, collection, where, fields, PAGE, offset)
            yield found
            if offset is None:
                return

    def _scrolled(self, collection: str, where: Any, fields: Any, most: int, offset: Any) -> tuple[list[Fields], Any]:
        points, following = self._missing(
            self._client.scroll, collection, scroll_filter=where, limit=most, offset=offset, with_payload=fields
        )
        return [one.payload for one in points], following

    def count(self, place: Place) -> int:
        count: int = self._missing(self._client.count, self._rows(place), self._filter(place), exact=True).count
        return count

    def sample(self, place: Place, buckets: int, most: int) -> list[Fields]:
        m = self._models
        wanted = self._filter(place)
        wanted.must.append(m.FieldCondition(key="bucket", range=m.Range(lt=buckets)))
        found, _ = self._scrolled(self._rows(place), wanted, list(TEXT), most, None)
        return found

    def _filter(self, place: Place, where: Filter = Filter()) -> Any:
        m = self._models
        names = zip(("owner", "collection", "version"), place.table, strict=True)
        must = [m.FieldCondition(key=name, match=m.MatchValue(value=value)) for name, value in names]
        if where.only is not None:
            must.append(m.FieldCondition(key="generation", match=m.MatchAny(any=list(where.only))))
        hidden = list(where.hidden)
        if not hidden:
            return m.Filter(must=must)
        return m.Filter(must=must, must_not=[m.FieldCondition(key="generation", match=m.MatchAny(any=hidden))])

    def _missing(self, call: Callable[..., Any], collection: str, *values: Any, **keywords: Any) -> Any:
        try:
            return call(collection, *values, **keywords)
        except ValueError as error:
            # The client without a server.
            if "not found" in str(error):
                raise Missing(str(error)) from None
            raise


def connect(host: str, port: int, *, tls: bool, key: str) -> Any:
    from qdrant_client import QdrantClient

    with warnings.catch_warnings():
        # It warns of a key that is sent without TLS; the page about Qdrant says so.
        warnings.simplefilter("ignore")
        return QdrantClient(
            host=host, port=port, https=tls, api_key=key or None, timeout=TIMEOUT_S, check_compatibility=False
        )


def explain(error: Exception) -> Fault | None:
    from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

    match error:
        case ResourceExhaustedResponse():
            return Fault(429, str(error), float(error.retry_after_s))
        case UnexpectedResponse():
            content = error.content.decode(errors="replace")
            return Fault(error.status_code or 500, f"{error.status_code} {error.reason_phrase} {content}")
        case ResponseHandlingException():
            return Fault(NO_ANSWER, f"{type(error.source).__name__}: {error.source}")
        case OSError():
            return Fault(NO_ANSWER, str(error))
    return None


def _point(id_: str) -> str:
    """Qdrant accepts only numbers and UUIDs. The id itself is in the payload."""
    digest = hashlib.sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _place(fields: Fields) -> Place:
    return Place(TableId(fields["owner"], fields["collection"], fields["version"]), fields["dimensions"])
