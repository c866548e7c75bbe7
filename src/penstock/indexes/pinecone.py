"""The index in Pinecone: `pinecone://INDEX`. The rows of an owner are in a namespace with the owner's name.

Reads of Pinecone are eventually consistent: a put waits until a query of the namespace has reached the position of its
writes in the log of the server, so that a search which begins after the flip finds all rows.

The metric of the index is the inner product, because only this one allows a sparse vector in each record. A query by
text has a dense vector of zeros."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.errors import ConfigError, Permanent, Transient
from penstock.indexes.base import EVERYTHING, Filter, RowSpan, TableId
from penstock.indexes.remote import Found, Place
from penstock.indexes.remote_calls import NO_ANSWER, Calls, Fault
from penstock.indexes.remote_rows import (
    Fields,
    Limits,
    Row,
    identity,
    record_id,
    row_id,
    table_prefix,
)
from penstock.indexes.sparse import Sparse

TABLES = "_tables"
"""The namespace of the records. No owner has such a name."""
METRIC = "dotproduct"
FETCHED = 50
"""Ids of one fetch, which are in its URL."""
LISTED = 100
DELETED = 1_000
SAMPLED = 300
"""Rows of one answer with all fields, whose size is limited."""
MOST_VALUES = 10_000
"""Values of one list in a filter."""
SETTLE_S = 30.0
"""How long a write may take to become visible."""
LOOK_S = 0.05
TIMEOUT_S = 30.0
SMALL = 1e-9
"""In a vector of zeros, which Pinecone refuses to store."""


class PineconeStore:
    limits = Limits(rows=200, bytes=1_800_000, field_bytes=36_000, dimensions=1_000, hits=10_000)
    compares_epochs = False

    def __init__(self, client: Callable[[], Any], name: str, spec: dict[str, str], calls: Calls) -> None:
        """`client` returns a client of the library. `spec`: `cloud` and `region` of an index that does not exist."""
        self._connect = client
        self._name = name
        self._spec = spec
        self._calls = calls
        self._connecting = threading.Lock()
        self._made: tuple[Any, Any, int] | None = None
        self._documents: dict[int, str] = {}
        """Of generations whose rows were found."""

    @property
    def _index(self) -> Any:
        """Raises Missing if the index does not exist."""
        return self._opened()[1]

    def _opened(self) -> tuple[Any, Any, int]:
        with self._connecting:
            if self._made is None:
                client = self._connect()
                try:
                    self._made = self._describe(client)
                except BaseException:
                    client.close()
                    raise
            return self._made

    def _describe(self, client: Any) -> tuple[Any, Any, int]:
        found = client.describe_index(self._name)
        if found.metric != METRIC:
            raise ConfigError(
                f"the Pinecone index {self._name!r} has the metric {found.metric}, but text search needs {METRIC}: "
                "name another index, or one that does not exist and is created"
            )
        return client, client.Index(host=found.host), int(found.dimension)

    def warm_up(self) -> None:
        self._opened()

    def close(self) -> None:
        with self._connecting:
            if self._made is not None:
                self._made[1].close()
                self._made[0].close()
                self._made = None

    def records(self) -> list[Place]:
        ids = [one for page in self._ids(TABLES, "") for one in page]
        return [_place(one) for one in self._fetch(TABLES, ids)]

    def record(self, table: TableId) -> Place | None:
        found = self._fetch(TABLES, [record_id(table)])
        return _place(found[0]) if found else None

    def add(self, place: Place) -> None:
        dimensions = self._created(place.dimensions)
        if dimensions != place.dimensions:
            raise Permanent(
                f"the Pinecone index {self._name!r} has vectors of {dimensions} dimensions, and these have "
                f"{place.dimensions}: a Pinecone index has one number of dimensions, so choose another with `index:`",
                reason="dimension_mismatch",
            )
        table = place.table
        fields = {
            "owner": table.owner,
            "collection": table.collection,
            "version": table.version,
            "dimensions": dimensions,
        }
        one = {"id": record_id(table), "values": _unit(dimensions), "metadata": fields}
        self._index.upsert(vectors=[one], namespace=TABLES)
        self._wait(lambda: self.record(table) is not None)

    def _created(self, dimensions: int) -> int:
        """The dimensions of the index. Creates it if it does not exist and the setting says where."""
        from pinecone import ConflictError, ServerlessSpec

        try:
            return self._opened()[2]
        except Exception as error:
            fault = explain(error)
            if fault is None or fault.status != 404:
                raise
        if not self._spec:
            raise ConfigError(
                f"there is no Pinecone index {self._name!r}: create it with the metric {METRIC} and {dimensions} "
                "dimensions, or set the parameters `cloud` and `region` of the setting, and it is created"
            )
        client = self._connect()
        try:
            client.create_index(
                name=self._name,
                dimension=dimensions,
                metric=METRIC,
                spec=ServerlessSpec(cloud=self._spec["cloud"], region=self._spec["region"]),
            )
        except ConflictError:
            # Another process has created it.
            pass
        finally:
            client.close()
        return self._opened()[2]

    def remove(self, place: Place) -> None:
        id_ = record_id(place.table)
        self._index.delete(ids=[id_], namespace=TABLES)
        self._wait(lambda: self.record(place.table) is None)

    def upsert(self, place: Place, rows: Sequence[Row]) -> tuple[int | None, int, int]:
        """Returns the position of the write in the log of the server, and the last row."""
        vectors = [
            {
                "id": row.id,
                "values": row.vector if any(row.vector) else [SMALL, *row.vector[1:]],
                "sparse_values": {"indices": row.sparse.indices, "values": row.sparse.values},
                "metadata": row.fields,
            }
            for row in rows
        ]
        answer = self._index.upsert(vectors=vectors, namespace=place.table.owner)
        self._documents.update({row.fields["generation"]: row.fields["document"] for row in rows})
        last = rows[-1].fields
        return answer.response_info.lsn_committed, last["generation"], last["ordinal"]

    def settle(self, place: Place, receipts: Sequence[Any]) -> None:
        """A query says up to which position it has read. If it does not, the last row of each write must be found."""
        owner, unit = place.table.owner, _unit(place.dimensions)
        positions = [position for position, _, _ in receipts if position is not None]
        last = max(positions, default=0)
        for position, generation, ordinal in receipts:
            if position is not None and position != last:
                continue
            terms = [{"generation": {"$eq": generation}}, {"ordinal": {"$eq": ordinal}}]
            where = {"$and": [*_filter(place.table)["$and"], *terms]}

            def is_there(position: int | None = position, where: dict[str, Any] = where) -> bool:
                answer = self._index.query(top_k=1, vector=unit, namespace=owner, filter=where)
                reached = answer.response_info.lsn_reconciled
                if position is None or reached is None:
                    return bool(answer.matches)
                return bool(reached >= position)

            self._wait(is_there)

    def _wait(self, true: Callable[[], bool]) -> None:
        runtime = self._calls.runtime
        until, pause = runtime.clock() + SETTLE_S, LOOK_S
        while not self._calls.patiently(true):
            if runtime.clock() > until:
                raise Transient(f"Pinecone has not shown a write within {SETTLE_S:.0f} seconds")
            runtime.block(pause)
            pause = min(2 * pause, 1.0)

    def delete(self, place: Place, generations: Sequence[int] | None) -> None:
        table = table_prefix(place.table)
        for prefix in [table] if generations is None else [f"{table}{one}/" for one in generations]:
            self._wait(lambda prefix=prefix: self._emptied(place.table.owner, prefix))  # type: ignore[misc]

    def _emptied(self, owner: str, prefix: str) -> bool:
        """Whether no row is listed any more. Those that were are deleted."""
        none = True
        for page in self._ids(owner, prefix):
            for start in range(0, len(page), DELETED):
                none = False
                self._index.delete(ids=page[start : start + DELETED], namespace=owner)
        return none

    def nearest(self, place: Place, vector: list[float], k: int, where: Filter, whole: bool) -> list[Found]:
        return self._query(place, k, where, vector=vector)

    def matching(self, place: Place, query: Sparse, k: int, where: Filter, whole: bool) -> list[Found]:
        sparse = {"indices": query.indices, "values": query.values}
        found = self._query(place, k, where, vector=[0.0] * place.dimensions, sparse_vector=sparse)
        return [one for one in found if one[1] > 0]

    def _query(self, place: Place, k: int, where: Filter, **query: Any) -> list[Found]:
        """Only ids and scores: an answer with all fields has a limit of 4 MB. The rows are fetched by their ids."""
        answer = self._index.query(top_k=k, namespace=place.table.owner, filter=_filter(place.table, where), **query)
        found: list[Found] = []
        for one in answer.matches:
            generation, ordinal, document = identity(one.id)
            self._documents[generation] = document
            found.append(({"generation": generation, "ordinal": ordinal, "document": document}, float(one.score)))
        return found

    def get(self, place: Place, ids: Sequence[str]) -> list[Fields]:
        return self._fetch(place.table.owner, ids)

    def _fetch(self, namespace: str, ids: Sequence[str]) -> list[Fields]:
        found: list[Fields] = []
        for start in range(0, len(ids), FETCHED):
            answer = self._index.fetch(ids=list(ids[start : start + FETCHED]), namespace=namespace)
            found += [one.metadata for one in answer.vectors.values()]
        return found

    def spans(self, place: Place, spans: Sequence[RowSpan]) -> list[Fields]:
        """Rows are fetched by their ids, for which the documents of the generations must be known."""
        table, ids = place.table, list[str]()
        for span in spans:
            document = self._document(table, span.generation)
            if document is not None:
                ids += [row_id(table, span.generation, document, one) for one in range(span.first, span.last + 1)]
        return self.get(place, list(dict.fromkeys(ids)))

    def _document(self, table: TableId, generation: int) -> str | None:
        if generation not in self._documents:
            prefix = f"{table_prefix(table)}{generation}/"
            for page in self._ids(table.owner, prefix, 1):
                for one in page:
                    self._documents[generation] = identity(one)[2]
                break
        return self._documents.get(generation)

    def scan(self, place: Place) -> Iterator[list[Fields]]:
        for page in self._ids(place.table.owner, table_prefix(place.table)):
            yield self._calls.patiently(self.get, place, page)

    def count(self, place: Place) -> int:
        return sum(map(len, self._ids(place.table.owner, table_prefix(place.table))))

    def sample(self, place: Place, buckets: int, most: int) -> list[Fields]:
        most = min(most, SAMPLED)
        where = _filter(place.table)
        where["$and"].append({"bucket": {"$lt": buckets}})
        answer = self._index.query(
            top_k=most, namespace=place.table.owner, filter=where, vector=_unit(place.dimensions), include_metadata=True
        )
        return [one.metadata for one in answer.matches]

    def _ids(self, namespace: str, prefix: str, limit: int = LISTED) -> Iterator[list[str]]:
        token = None
        while True:
            answer = self._calls.patiently(
                self._index.list_paginated, prefix=prefix, limit=limit, namespace=namespace, pagination_token=token
            )
            if answer.vectors:
                yield [one.id for one in answer.vectors]
            token = answer.pagination.next if answer.pagination is not None else None
            if not token:
                return


def connect(key: str, host: str) -> Any:
    """`host`: that of the control plane; empty: Pinecone's."""
    from pinecone import Pinecone, RetryConfig

    # Calls are repeated by us, and a wait of any length would keep a thread.
    retries = RetryConfig(max_retries=0)
    return Pinecone(api_key=key, host=host or None, timeout=TIMEOUT_S, retry_config=retries)


def explain(error: Exception) -> Fault | None:
    from pinecone import ApiError, PineconeConnectionError, PineconeError, PineconeTimeoutError

    match error:
        case ApiError():
            headers = {name.lower(): value for name, value in (error.headers or {}).items()}
            wait = headers.get("retry-after", "")
            return Fault(error.status_code, str(error), float(wait) if wait.isdigit() else None)
        case PineconeConnectionError() | PineconeTimeoutError():
            return Fault(NO_ANSWER, f"{type(error).__name__}: {error}")
        case PineconeError():
            return Fault(400, str(error))
    return None


def _unit(dimensions: int) -> list[float]:
    return [1.0, *[0.0] * (dimensions - 1)]


def _filter(table: TableId, where: Filter = EVERYTHING) -> dict[str, Any]:
    terms: list[dict[str, Any]] = [{"collection": {"$eq": table.collection}}, {"version": {"$eq": table.version}}]
    for start in range(0, len(where.hidden), MOST_VALUES):
        terms.append({"generation": {"$nin": list(where.hidden[start : start + MOST_VALUES])}})
    if where.only is not None:
        lists = [where.only[start : start + MOST_VALUES] for start in range(0, len(where.only), MOST_VALUES)]
        any_of = [{"generation": {"$in": list(one)}} for one in lists]
        terms.append({"$or": any_of} if len(any_of) > 1 else any_of[0])
    return {"$and": terms}


def _place(fields: Fields) -> Place:
    table = TableId(fields["owner"], fields["collection"], int(fields["version"]))
    return Place(table, int(fields["dimensions"]))
