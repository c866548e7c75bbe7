"""Search. It uses one read snapshot of the ledger, excludes hidden generations, and keeps the hits whose generation is
active in the snapshot (I5)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, NamedTuple

from penstock.embedders.base import Embedder, Relevance
from penstock.errors import NotFound, UsageError
from penstock.indexes.base import Filter, IndexHit, Joined, RowSpan, TableId, Traits
from penstock.indexes.several import Indexes
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.store import Ledger, Snapshot
from penstock.ledger.engine import collections, generations, index_versions
from penstock.model.items import Vector
from penstock.model.metadata import merged
from penstock.model.nouns import GenerationId, Owner
from penstock.rerankers.base import Reranker
from penstock.search.filters import Fields, Predicate, parts
from penstock.search.highlight import Terms, snippet
from penstock.search.paging import cursor, fingerprint, page_start, parse_cursor, ranked_to
from penstock.search.ranking import Asked, Candidate, Mode, explain_weights, rank
from penstock.search.reranking import Reranking
from penstock.search.results import Explanation, Hit, Passage, ScoreParts, SearchResult
from penstock.search.tables import Member, Tables

NAMES_SHOWN = 20
"""The number of collections that an error lists."""


UNFILTERED = 1_000
"""Up to this many hits are fetched without a filter, and those that the filter rejects are left out. If this is not
enough, few documents match: then all of them are listed, and the index finds only these."""
LISTED = 20_000
SWITCHES = 5
"""How often a search begins again because a re-index has ended meanwhile."""


class Request(NamedTuple):
    """What a caller asks for. `verbs/search.py` says what each field means."""

    query: str
    k: int
    collections: tuple[str, ...]
    mode: Mode = "hybrid"
    group: Literal["document"] | None = None
    context: int = 0
    min_score: float | None = None
    after: str | None = None
    explain: bool = False
    filter: Mapping[str, Any] | None = None
    accepts: Predicate | None = None
    """The compiled filter."""
    reranker: Reranker | None = None


@dataclass(frozen=True)
class Queries:
    """How queries are embedded."""

    choose: Callable[[Mapping[str, index_versions.IndexVersion]], Embedder]
    """Returns the embedder that made the vectors of the versions of these collections. Raises UsageError."""
    embed: Callable[[Embedder, str], Awaitable[Vector]]


class _Switched(Exception):
    """A re-index has switched to vectors of another model, or to another index, since the query was embedded."""


async def search(
    ledger: Ledger, index: Indexes, queries: Queries, relevance: Relevance, owner: Owner, request: Request
) -> SearchResult:
    """Return one page of hits. Raises UsageError if a collection does not exist or has vectors of another model."""
    for _ in range(SWITCHES):
        with suppress(_Switched):
            return await _search(ledger, index, queries, relevance, owner, request)
    raise UsageError("the collection was embedded again with other models several times just now: repeat the search")


async def _search(
    ledger: Ledger, index: Indexes, queries: Queries, relevance: Relevance, owner: Owner, request: Request
) -> SearchResult:
    before = await ledger.read(partial(_versions, owner), request.collections)
    traits = _common(index, before)
    mode = _possible(request.mode, traits)
    # Bytes of a command line that are not UTF-8 become lone surrogates, which no embedder accepts.
    query = request.query.encode("utf-8", "replace").decode()
    page = fingerprint(query, sorted(request.collections), mode, request.group, request.min_score, request.filter)
    if request.reranker is not None:
        page = fingerprint(page, request.reranker.name)
    begin = parse_cursor(request.after, page)
    vector: Vector | None = None
    embedder: Embedder | None = None
    if mode != "text":
        # Before the snapshot is taken, because loading a model or calling a provider can take long.
        embedder = queries.choose(before)
        vector = await queries.embed(embedder, query)
    reranking = None if request.reranker is None else await Reranking.start(request.reranker, query)
    asked = Asked(query, mode, vector, static=embedder is None or embedder.model.static)
    async with ledger.snapshot() as snapshot:
        versions = await snapshot.read(partial(_versions, owner), request.collections)
        if _common(index, versions) != traits or (embedder is not None and queries.choose(versions) is not embedder):
            raise _Switched
        tables = await _tables(snapshot, index, owner, versions, request)

        visible = _Visibility(snapshot, owner, tables, _reading(request.accepts))

        async def ranked_best(count: int) -> list[Candidate]:
            return await rank(tables, traits, asked, count, visible.of, relevance)

        async def best(count: int) -> list[Candidate]:
            return await ranked_best(count) if reranking is None else await reranking.best(count, ranked_best)

        need = begin.position + request.k + 1
        ranked = await ranked_to(need, best, request.min_score, by_document=request.group == "document")
        first = page_start(ranked.shown, begin)
        shown = ranked.shown[first : first + request.k]
        rows = await _neighbours(tables, [one.hit for one, _ in shown], request.context)
    explanation = (
        None
        if not request.explain
        else await _explanation(request, asked, traits, relevance, tables, len(ranked.ranking))
    )
    terms = Terms(query)
    last = first + len(shown)
    return SearchResult(
        [_hit(one, more, tables.collection_of(one.hit), rows, terms, request) for one, more in shown],
        cursor(page, last, shown[-1][0]) if shown and last < len(ranked.shown) else None,
        explanation,
    )


class _Visibility:
    """Which generations a search may show. The rankings have many documents in common; each is read and tested once."""

    def __init__(
        self,
        snapshot: Snapshot,
        owner: Owner,
        tables: Tables,
        accepts: Callable[[generations.Visible], bool] | None,
    ) -> None:
        self._snapshot, self._owner, self._tables, self._accepts = snapshot, owner, tables, accepts
        self._known: dict[GenerationId, generations.Visible | None] = {}
        self._reading = asyncio.Lock()

    async def of(self, found: list[GenerationId]) -> dict[GenerationId, generations.Visible]:
        known, accepts = self._known, self._accepts
        async with self._reading:
            new = [one for one in found if one not in known]
            known.update(dict.fromkeys(new))
            for version, some in self._tables.by_version(new).items():
                active = await self._snapshot.read(partial(generations.visible, self._owner), version, some)
                known.update((key, one) for key, one in active.items() if accepts is None or accepts(one))
        return {key: one for key in found if (one := known[key]) is not None}


async def _explanation(
    request: Request, asked: Asked, traits: Traits, relevance: Relevance, tables: Tables, ranked: int
) -> Explanation:
    shares, gate = await explain_weights(asked, traits, relevance)
    filters = {"hidden_generations": tables.hidden, "min_score": request.min_score, "filter": request.filter}
    return Explanation(asked.mode, request.collections, ranked, shares, gate, filters)


def _versions(owner: Owner, connection: Connection, wanted: Sequence[str]) -> dict[str, index_versions.IndexVersion]:
    """The current version of each collection. Raises NotFound."""
    found = {}
    for name in wanted:
        version = index_versions.current(owner, connection, name)
        if version is None:
            raise _unknown(name, owner, collections.names(owner, connection))
        found[name] = version
    return found


def _unknown(name: str, owner: Owner, known: list[str]) -> NotFound:
    if not known:
        return NotFound(
            f"nothing was ingested yet for owner {owner!r}: run `penstock ingest FOLDER` first, or choose another "
            "--home or --owner"
        )
    near = get_close_matches(name, known, 1)
    more = f" and {len(known) - NAMES_SHOWN} more" if len(known) > NAMES_SHOWN else ""
    return NotFound(
        f"there is no collection {name!r}"
        + (f": did you mean {near[0]!r}?" if near else ".")
        + f" Collections: {', '.join(known[:NAMES_SHOWN])}{more}"
    )


async def _tables(
    snapshot: Snapshot,
    index: Indexes,
    owner: Owner,
    versions: dict[str, index_versions.IndexVersion],
    request: Request,
) -> Tables:
    """The tables of these collections, with what may be found in them. A collection in which nothing was indexed has
    no table."""
    members = []
    for name, version in versions.items():
        mine = index.at(version.store)
        base = await _visible_rows(snapshot, mine.traits, owner, name, version.version)
        narrow = partial(_narrowed, snapshot, mine.traits, owner, name, version.version, base, request)
        table = await mine.open(TableId(owner, name, version.version))
        if table is not None:
            lazy = narrow if request.accepts is not None else None
            members.append(Member(name, version.version, table, base, lazy, len(base.hidden)))
    most = _common(index, versions).max_hits
    return Tables(members, UNFILTERED if most is None else min(UNFILTERED, most - 1))


async def _visible_rows(snapshot: Snapshot, traits: Traits, owner: Owner, collection: str, version: int) -> Filter:
    """The rows of active generations. An index in the same database joins them, others exclude the hidden ones."""
    if "active" in traits.filters:
        return Filter(joined=Joined(generations.active_condition(version), snapshot.execute))
    return Filter(await snapshot.read(partial(generations.hidden, owner), collection, version))


async def _narrowed(
    snapshot: Snapshot,
    traits: Traits,
    owner: Owner,
    collection: str,
    version: int,
    base: Filter,
    request: Request,
) -> Filter:
    """The condition for the index that leaves only documents that the filter accepts."""
    accepts, only = _reading(request.accepts), "only" in traits.filters
    assert accepts is not None
    assert request.filter is not None
    read = partial(generations.matching, owner)
    if only and (texts := parts(request.filter)):
        accepted, _ = await snapshot.read(read, collection, version, accepts, texts)
        if len(accepted) <= LISTED:
            return base._replace(only=accepted)
    accepted, rejected = await snapshot.read(read, collection, version, accepts)
    # The shorter list: a long one takes longer to apply than the search itself.
    if only and len(accepted) <= len(rejected):
        return base._replace(only=accepted)
    return base._replace(hidden=[*base.hidden, *rejected])


def _reading(accepts: Predicate | None) -> Callable[[generations.Visible], bool] | None:
    if accepts is None:
        return None
    return lambda one: accepts(
        Fields(
            *(one.document_id, one.collection, one.name, one.source, one.media_type, one.size, one.status, one.pages),
            one.created_at,
            (one.metadata, one.found),
        )
    )


async def _neighbours(tables: Tables, hits: Sequence[IndexHit], context: int) -> dict[tuple[int, int], IndexHit]:
    """The chunks around these hits, by generation and ordinal."""
    if not context:
        return {}
    spans = [RowSpan(hit.generation, hit.ordinal - context, hit.ordinal + context) for hit in hits]
    return {(row.generation, row.ordinal): row for row in await tables.rows(spans)}


def _common(index: Indexes, versions: Mapping[str, index_versions.IndexVersion]) -> Traits:
    """What all indexes of these collections can do."""
    several = [index.at(store).traits for store in {version.store for version in versions.values()}]
    limits = [one.max_hits for one in several if one.max_hits is not None]
    return Traits(
        single_writer=any(one.single_writer for one in several),
        modes=frozenset.intersection(*(one.modes for one in several)),
        text_fields=frozenset.intersection(*(one.text_fields for one in several)),
        filters=frozenset.intersection(*(one.filters for one in several)),
        max_hits=min(limits, default=None),
    )


def _possible(mode: Mode, traits: Traits) -> Mode:
    """The mode to use. If the index has only one mode, hybrid becomes that mode. Raises UsageError for a mode that the
    index does not support."""
    if mode == "hybrid" and len(traits.modes) == 1:
        return next(iter(traits.modes))
    if mode != "hybrid" and mode not in traits.modes:
        raise UsageError(f"this index cannot search with --mode {mode}: use {' or '.join(sorted(traits.modes))}")
    return mode


def _hit(
    candidate: Candidate,
    more: int,
    collection: str,
    rows: dict[tuple[int, int], IndexHit],
    terms: Terms,
    request: Request,
) -> Hit:
    hit, document = candidate.hit, candidate.document
    part = snippet(terms, hit.text)
    around = range(1, request.context + 1)
    metadata = merged((document.metadata, document.found))
    return Hit(
        candidate.score,
        document.document_id,
        document.name,
        hit.page,
        hit.page_end,
        hit.start,
        hit.end,
        hit.text,
        metadata,
        hit.headings,
        document.source,
        collection,
        hit.ordinal,
        candidate.relevance,
        hit.text[part.start : part.end],
        part.start,
        part.highlights,
        _passages(rows, [(hit.generation, hit.ordinal - n) for n in reversed(around)]),
        _passages(rows, [(hit.generation, hit.ordinal + n) for n in around]),
        more if request.group is not None else None,
        _parts(candidate) if request.explain else None,
        _skipped(document.found),
    )


def _parts(one: Candidate) -> ScoreParts:
    return ScoreParts(one.cosine, one.words, one.grams, one.fused, one.relevance, one.reranked)


def _skipped(found: str | None) -> tuple[int, ...]:
    """The skipped pages, from what the steps found: the caller may have submitted metadata of the same name."""
    return tuple(merged((found,)).get("pages_skipped", ())) if found and "pages_skipped" in found else ()


def _passages(rows: dict[tuple[int, int], IndexHit], ids: Sequence[tuple[int, int]]) -> tuple[Passage, ...]:
    found = [rows[one] for one in ids if one in rows]
    return tuple(Passage(r.ordinal, r.page, r.page_end, r.start, r.end, r.text, r.headings) for r in found)
