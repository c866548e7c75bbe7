"""The indexes of one ledger. New collections are in the index of the settings. A re-index can move a collection to
another one, so that each index version has its own store. The ledger knows where the table of a version is."""

from collections.abc import Awaitable, Callable
from functools import cached_property
from urllib.parse import parse_qsl, urlencode, urlsplit

from penstock.config import Config, local_path
from penstock.indexes.base import Closable, Index, IndexTable, TableId, Traits
from penstock.redaction import is_secret_parameter

HOME = "home"
"""The index in the home, whose path may change."""
OF_LEDGER = "pgvector"
_LANCE = "lancedb://"


def stored_name(config: Config, index: str) -> str:
    """How the ledger names an index: a name below the setting `indexes`, or a URL without its password."""
    if index in config.indexes:
        return index
    if index.startswith(_LANCE):
        path = local_path(index.removeprefix(_LANCE))
        return HOME if path == config.home_path / "index" else f"{_LANCE}{path}"
    if index.startswith(("postgresql:", "postgres:")) and index == config.database_url:
        return OF_LEDGER
    return without_password(index)


def without_password(url: str) -> str:
    if "://" not in url:
        return url
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    place = f"{user.partition(':')[0]}@{host}" if user else host
    query = parse_qsl(parts.query)
    kept = [(name, value) for name, value in query if not is_secret_parameter(name)]
    if not parts.password and kept == query:
        return url
    return f"{parts.scheme}://{place}{parts.path}{'?' if kept else ''}{urlencode(kept)}"


def url_of(config: Config, store: str | None) -> str:
    """The URL of an index that the ledger names; None: that of the settings. Its password comes from the settings."""
    if store is None or stored_name(config, config.index_url) == store:
        return config.index_url
    if store in config.indexes:
        return config.indexes[store]
    known = (url for url in config.indexes.values() if stored_name(config, url) == store)
    return next(known, f"{_LANCE}{config.home_path / 'index'}" if store == HOME else store)


class Indexes:
    """The index of the settings, and others that index versions are in."""

    def __init__(
        self,
        make: Callable[[str | None], Index],
        locate: Callable[[TableId], Awaitable[str | None]],
        stores: Callable[[], Awaitable[list[str]]],
    ) -> None:
        """`make` takes what the ledger says of a version; `locate` asks it, and `stores` lists all that it names."""
        self._make = make
        self._locate = locate
        self._stores = stores
        self._made: dict[str | None, Index] = {}

    @cached_property
    def usual(self) -> Index:
        """The index of the settings."""
        return self.at(None)

    @property
    def traits(self) -> Traits:
        """Those of the index of the settings."""
        return self.usual.traits

    @property
    def fingerprint(self) -> str:
        return self.usual.fingerprint

    def at(self, store: str | None) -> Index:
        if store not in self._made:
            self._made[store] = self._make(store)
        return self._made[store]

    async def of(self, table: TableId) -> Index:
        """The index that the table of a version is in, or will be in."""
        return self.at(await self._locate(table))

    async def open(self, table: TableId) -> IndexTable | None:
        return await (await self.of(table)).open(table)

    async def create(self, table: TableId, dimensions: int) -> IndexTable:
        return await (await self.of(table)).create(table, dimensions)

    async def close(self) -> None:
        for index in self._made.values():
            if isinstance(index, Closable):
                await index.close()

    async def warm_up(self) -> None:
        await self.usual.warm_up()

    async def tables(self) -> list[TableId]:
        """The tables of the index of the settings, and those that the ledger knows in others."""
        found = set(await self.usual.tables())
        for store in await self._stores():
            there = self.at(store)
            if there is not self.usual:
                found.update([table for table in await there.tables() if await self._locate(table) == store])
        return sorted(found)

    async def drop(self, table: TableId) -> None:
        await (await self.of(table)).drop(table)
