"""Buckets as a source: `s3://BUCKET/PREFIX`, `gs://…` and `az://…`, all objects below a prefix or a single one.

`discover` lists the bucket in pages; the ETags of the list say what has changed. `read` streams an object, and
continues by range after a cut connection, on the condition that the object still has the same ETag."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from penstock.config_http import HttpConfig
from penstock.errors import Away, PenstockError, SourceChanged, SourceError
from penstock.net.buckets import open_store, parse
from penstock.runtime import Runtime
from penstock.sources.base import Change, Found, Known, compared
from penstock.sources.patterns import is_wanted
from penstock.sources.web_hosts import Host, Patience
from penstock.sources.web_names import base_name

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta

    from penstock.net.buckets import Store

PAGE = 1_000
PIECE = 1 << 20
_AGE_S = 2.0


@dataclass
class _Place:
    key: str
    learned: str | None = None
    """The revision of the bytes that were read."""


@dataclass
class _Listing:
    """What one `discover` has to remember: little for an object, nothing for one that is new and not empty."""

    seen: set[int] = field(default_factory=set)
    """Hashes of the known URIs that still exist. Two equal hashes only mean that a document is kept."""
    empty: set[str] = field(default_factory=set)
    """Keys of empty objects."""
    below: str | None = None
    """The prefix below which all objects were listed. None: the listing has not come to its end."""


class BucketSource:
    """Finds and reads objects. The URI of an object is `s3://BUCKET/KEY`, with the key as it is."""

    repeatable = True

    def __init__(
        self,
        scheme: str,
        rest: str,
        runtime: Runtime,
        config: HttpConfig,
        environment: Mapping[str, str],
        *,
        megabytes: int,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        """`rest`: `BUCKET/PREFIX`."""
        self._bucket, self._prefix = parse(scheme, rest, environment)
        self._environment = environment
        self._runtime = runtime
        self._config = config
        self._megabytes = megabytes
        self._include, self._exclude = include, exclude
        self._host = Host(repr(self._bucket), config, runtime)
        self._store = open_store(self._bucket, environment, config, retries=False)
        self.problems: list[str] = []

    @cached_property
    def _patient(self) -> "Store":
        """For requests that the library may repeat by itself: all but those whose answer is streamed."""
        return open_store(self._bucket, self._environment, self._config, retries=True)

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        listing = _Listing()
        try:
            async with aclosing(self._pages(listing)) as pages:
                async for page in pages:
                    found = [self._found(one) for one in page if await self._is_document(one, listing)]
                    before = await known.revisions([one.uri for one in found])
                    listing.seen.update(map(hash, before))
                    for one in compared(found, before):
                        if self._is_wanted(one.place.key):
                            yield one
        except PenstockError as error:
            self.problems.append(f"{self._uri(self._prefix)}: {error}")
            return
        if listing.below is not None:
            for uri in await known.revisions([self._uri(listing.below)]):
                if hash(uri) not in listing.seen:
                    yield _gone(uri)
            async for uri in known.under(self._uri(f"{listing.below}/" if listing.below else "")):
                if hash(uri) not in listing.seen:
                    yield _gone(uri)

    async def _pages(self, listing: _Listing) -> "AsyncGenerator[Sequence[ObjectMeta], None]":
        """The one object that the prefix names, or else all objects below the prefix. Raises Away or SourceError."""
        folder = self._prefix.rstrip("/")
        try:
            if folder and folder == self._prefix and (named := await self._head(folder)) is not None:
                yield [named]
                return
            async for page in self._patient.list(folder or None, chunk_size=PAGE):
                yield page
        except PenstockError:
            raise
        except Exception as error:
            # The library also raises built-in errors, and errors that it does not name.
            raise self._bucket.source_error(error) from None
        listing.below = folder

    async def _is_document(self, listed: "ObjectMeta", listing: _Listing) -> bool:
        """An empty object whose key ends with a slash marks a folder. The library lists it without the slash: then
        there is no object with this key, or it is another one."""
        key = listed["path"]
        if listed["size"]:
            return True
        if key in listing.empty:
            return False
        there = await self._head(key)
        if there is None:
            return False
        listing.empty.add(key)
        # An object that is not empty is listed by itself, or was written since: it is not gone.
        listing.seen.add(hash(self._uri(key)))
        return not there["size"]

    async def _head(self, key: str) -> "ObjectMeta | None":
        try:
            return await self._patient.head_async(key)
        except FileNotFoundError:
            return None
        except PenstockError:
            raise
        except Exception as error:
            raise self._bucket.source_error(error) from None

    async def find(self, uri: str) -> Found | None:
        there = await self._head(uri.removeprefix(f"{self._bucket!r}/"))
        return None if there is None else self._found(there)

    def _found(self, listed: "ObjectMeta") -> Found:
        key = listed["path"]
        revision = _revision(listed, self._runtime.now())
        return Found(self._uri(key), base_name(key) or "document", revision, place=_Place(key))

    def _is_wanted(self, key: str) -> bool:
        folder = self._prefix.rstrip("/")
        within = key.removeprefix(f"{folder}/") if folder else key
        return key == folder or is_wanted(PurePosixPath(within), self._include, self._exclude)

    def _uri(self, key: str) -> str:
        return f"{self._bucket!r}/{key}"

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        place: _Place = found.place
        patience = Patience(self._host, self._config, self._runtime)
        download = _Download(place.key, self._megabytes)
        while True:
            try:
                async with aclosing(self._rest(download)) as pieces:
                    async for piece in pieces:
                        download.size += len(piece)
                        patience.renew()
                        yield piece
                download.check_complete()
                break
            except Away as error:
                download.check_resumable(error)
                await patience.wait(error)
        assert download.first is not None
        place.learned = _revision(download.first, self._runtime.now())

    async def _rest(self, download: "_Download") -> AsyncGenerator[bytes, None]:
        """The bytes that are missing. Raises Away if the connection is cut, and SourceError."""
        if download.is_complete:
            return
        try:
            answer = await self._store.get_async(download.key, options=download.options())
            download.begin(answer)
            async for piece in answer.stream(min_chunk_size=PIECE):
                yield bytes(piece)
        except PenstockError:
            raise
        except Exception as error:
            raise self._bucket.source_error(error) from None

    def learned(self, found: Found) -> Found:
        place: _Place = found.place
        return found if place.learned is None else found._replace(revision=place.learned)


class _Download:
    """The progress of one object."""

    def __init__(self, key: str, megabytes: int) -> None:
        self.key = key
        self.size = 0
        self.first: ObjectMeta | None = None
        """What the first answer said about the object."""
        self._megabytes = megabytes

    @property
    def is_complete(self) -> bool:
        return self.first is not None and self.size == self.first["size"]

    def options(self) -> Any:
        if self.first is None or not self.size:
            return {}
        return {"if_match": self.first["e_tag"], "range": {"offset": self.size}}

    def begin(self, answer: "GetResult") -> None:
        meta = answer.meta
        if not self.size:
            self.first = meta
            if meta["size"] > self._megabytes << 20:
                raise SourceError(
                    f"it has {meta['size']:,} bytes, which is too large (the setting limits.megabytes is "
                    f"{self._megabytes:,})"
                )
        elif self.first is None or _identity(meta) != _identity(self.first) or answer.range[0] != self.size:
            raise SourceChanged("it changed while it was read")

    def check_resumable(self, error: Away) -> None:
        if self.size and (self.first is None or not self.first["e_tag"]):
            raise SourceChanged(f"{error}, and the server does not say whether it still has the same content")

    def check_complete(self) -> None:
        if not self.is_complete:
            raise Away("the connection was cut")


def _gone(uri: str) -> Found:
    return Found(uri, uri.rpartition("/")[2], change=Change.GONE)


def _identity(meta: "ObjectMeta") -> tuple[str | None, int]:
    return meta["e_tag"], meta["size"]


def _revision(meta: "ObjectMeta", now: float) -> str:
    """ETag, or else date and size; empty if there is neither, or the object is so new that it may change again within
    the same second. Lists and answers may differ in the quotes around the ETag."""
    if etag := (meta["e_tag"] or "").removeprefix("W/").strip('"'):
        return f"etag {etag}"[:1000]
    modified: datetime = meta["last_modified"]
    return "" if now - modified.timestamp() < _AGE_S else f"modified {modified.isoformat()} {meta['size']}"
