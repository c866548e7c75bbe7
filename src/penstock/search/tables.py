"""Several tables of an index that are searched as one. Generations have different numbers in all tables."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from penstock.indexes.base import EVERYTHING, Filter, IndexHit, IndexTable, Query, RowSpan
from penstock.model.nouns import GenerationId


class Member(NamedTuple):
    collection: str
    version: int
    table: IndexTable
    where: Filter
    """Which rows of this table a search may return."""
    allowed: set[GenerationId] | None = None
    """The generations that a filter accepts; None: there is no filter."""
    hidden: int = 0
    """The number of hidden generations."""


class Tables:
    """Merges the hits of its members by their scores. Cosines of one model can be compared between tables. BM25 scores
    can be compared as far as the tables are alike, since each table counts its own words."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._of: dict[int, Member] = {}
        self.hidden = sum(member.hidden for member in members)

    async def search(self, query: Query, k: int, where: Filter = EVERYTHING) -> list[IndexHit]:
        """The filter is that of each member. `where` is not used."""
        found = await asyncio.gather(*(self._search(member, query, k) for member in self._members))
        hits = [hit for some in found for hit in some]
        if len(found) > 1:
            hits.sort(key=lambda hit: (-hit.score, hit.generation, hit.ordinal))
        return hits[:k]

    async def _search(self, member: Member, query: Query, k: int) -> list[IndexHit]:
        hits = await member.table.search(query, k, member.where)
        self._of |= {hit.generation: member for hit in hits}
        return hits

    async def rows(self, spans: Sequence[RowSpan]) -> list[IndexHit]:
        """The rows of generations that a search has found."""
        found: list[IndexHit] = []
        for member in self._members:
            found += await member.table.rows([span for span in spans if self._of[span.generation] is member])
        return found

    def by_version(self, found: Sequence[GenerationId]) -> dict[int, list[GenerationId]]:
        """The generations that were found and are allowed, by the version of their table."""
        versions: dict[int, list[GenerationId]] = {}
        for generation in found:
            member = self._of[generation]
            if member.allowed is None or generation in member.allowed:
                versions.setdefault(member.version, []).append(generation)
        return versions

    def collection_of(self, hit: IndexHit) -> str:
        return self._of[hit.generation].collection
