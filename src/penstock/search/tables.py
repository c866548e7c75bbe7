"""Several tables of an index that are searched as one. Generations have different numbers in all tables."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from penstock.indexes.base import EVERYTHING, Filter, IndexHit, IndexTable, Query, RowSpan
from penstock.model.nouns import GenerationId


class Member(NamedTuple):
    collection: str
    version: int
    table: IndexTable
    where: Filter
    """Which rows of this table a search may return."""
    narrow: Callable[[], Awaitable[Filter]] | None = None
    """Lists the rows that a filter accepts; None: there is no filter. The caller removes the others from the hits, so
    this is only needed if few rows match."""
    hidden: int = 0
    """The number of hidden generations."""


class Tables:
    """Merges the hits of its members by their scores. Cosines of one model can be compared between tables. BM25 scores
    can be compared as far as the tables are alike, since each table counts its own words."""

    def __init__(self, members: Sequence[Member], unfiltered: int = 0) -> None:
        """`unfiltered`: up to this many hits are fetched without `narrow`."""
        self._members = members
        self.unfiltered = unfiltered
        self._narrowed: dict[str, Filter] = {}
        self._narrowing = asyncio.Lock()
        self._of: dict[int, Member] = {}
        self.filtered = any(member.narrow is not None for member in members)
        """Whether the caller removes hits that its filter rejects."""
        self.narrowed = False
        """Whether the index removes them."""
        self.hidden = sum(member.hidden for member in members)

    async def search(self, query: Query, k: int, where: Filter = EVERYTHING, *, whole: bool = True) -> list[IndexHit]:
        """The filter is that of each member. `where` is not used."""
        found = await asyncio.gather(*(self._search(member, query, k, whole) for member in self._members))
        hits = [hit for some in found for hit in some]
        if len(found) > 1:
            hits.sort(key=lambda hit: (-hit.score, hit.generation, hit.ordinal))
        return hits[:k]

    async def fill(self, hits: Sequence[IndexHit]) -> list[IndexHit]:
        if len(self._members) == 1:
            return await self._members[0].table.fill(hits)
        found: dict[tuple[int, int], IndexHit] = {}
        for member in self._members:
            mine = await member.table.fill([hit for hit in hits if self._of[hit.generation] is member])
            found |= {(hit.generation, hit.ordinal): hit for hit in mine}
        return [found[hit[:2]] for hit in hits if hit[:2] in found]

    async def _search(self, member: Member, query: Query, k: int, whole: bool) -> list[IndexHit]:
        hits = await member.table.search(query, k, await self._where(member, k), whole=whole)
        self._of |= {hit.generation: member for hit in hits}
        return hits

    async def _where(self, member: Member, k: int) -> Filter:
        if member.narrow is None or (k <= self.unfiltered and not self.narrowed):
            return member.where
        await self.narrow()
        return self._narrowed[member.collection]

    async def narrow(self) -> None:
        """List the rows that the filter accepts. From now on, the index finds only these."""
        async with self._narrowing:
            for member in self._members:
                if member.narrow is not None and member.collection not in self._narrowed:
                    self._narrowed[member.collection] = await member.narrow()
            self.narrowed = True

    async def rows(self, spans: Sequence[RowSpan]) -> list[IndexHit]:
        """The rows of generations that a search has found."""
        found: list[IndexHit] = []
        for member in self._members:
            found += await member.table.rows([span for span in spans if self._of[span.generation] is member])
        return found

    def by_version(self, found: Sequence[GenerationId]) -> dict[int, list[GenerationId]]:
        """The generations that were found, by the version of their table."""
        versions: dict[int, list[GenerationId]] = {}
        for generation in found:
            versions.setdefault(self._of[generation].version, []).append(generation)
        return versions

    def collection_of(self, hit: IndexHit) -> str:
        return self._of[hit.generation].collection
