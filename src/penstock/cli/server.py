"""Commands on a server: the verbs of `OwnerScope` that map directly, by requests."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import Ambiguous, NotFound, UsageError

if TYPE_CHECKING:
    from penstock.cli.call import Call
    from penstock.client import AsyncClient
    from penstock.ledger.engine.documents import Counted
    from penstock.search.results import SearchResult
    from penstock.verbs.documents import Deletion
    from penstock.verbs.owner import OwnerScope
    from penstock.verbs.replays import Discard, Replay
    from penstock.verbs.views import Counts, DocumentDetails, DocumentView

PATIENCE_S = 15.0
COUNTED = 1_000
"""The number of documents that a count looks at."""
LISTED = 1_000
ID_LENGTH = 26


def refusal(call: "Call") -> UsageError:
    """The error of a command that does not work on a server."""
    how = "without --server" if call.server is not None else "with --home, or without PENSTOCK_SERVER"
    return UsageError(f"this command needs the home: use it where the server runs, {how}")


@asynccontextmanager
async def client_of(call: "Call", patience_s: float = PATIENCE_S) -> "AsyncIterator[AsyncClient]":
    from penstock.client import AsyncClient

    if call.home is not None or call.config is not None:
        raise UsageError("use either --server, or --home and --config")
    key = _key(call.key_file) if call.key_file is not None else None
    async with AsyncClient(call.server_url, key=key, patience_s=patience_s, owner=call.owner) as client:
        yield client


def _key(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            key = opened.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--key-file {file}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from error
    if not key:
        raise UsageError(f"--key-file {file}: the first line is empty")
    return key


@asynccontextmanager
async def scope_of(call: "Call") -> "AsyncIterator[OwnerScope]":
    async with client_of(call) as client:
        yield cast("OwnerScope", ServerScope(call, client))


class ServerScope:
    """The methods of `OwnerScope` that commands use, with the same arguments and results."""

    def __init__(self, call: "Call", client: "AsyncClient") -> None:
        self._call = call
        self._client = client
        for same in ("list_dead_letters", "dead_letter", "collection", "list_collections"):
            setattr(self, same, getattr(client, same))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refusal(self._call)

    async def status(self, document: str | None = None) -> "Counts | DocumentDetails":
        if document is None:
            return await self._client.status()
        return await self._client.document(await self._id(document))

    async def _id(self, name: str) -> str:
        """The id of a document that is named by its id, its source URI or path, or its name."""
        if len(name) == ID_LENGTH and name.isalnum():
            return name.upper()
        places = (name, os.path.abspath(name))
        end = name.rstrip("/").rpartition("/")[2]
        same: list[DocumentView] = []
        async with aclosing(self._client.list_documents(name=_literal(end), page=500)) as found:
            async for one in found:
                if one.source in places:
                    return one.id
                if one.name == name and len(same) < 10:
                    same.append(one)
        if not same:
            raise NotFound(f"no document {name!r}: `penstock list` shows all documents; an id must be whole")
        if len(same) > 1:
            raise Ambiguous(f"{name!r} may mean several documents:", [f"{one.id}  {one.source}" for one in same])
        return same[0].id

    async def list_documents(self, *, limit: int = 100, **where: Any) -> "list[DocumentView]":
        if where.get("parent") is not None:
            where["parent"] = await self._id(where["parent"])
        found: list[DocumentView] = []
        async with aclosing(self._client.list_documents(page=min(limit, 500), **where)) as documents:
            async for document in documents:
                found.append(document)
                if len(found) == limit:
                    break
        return found

    async def count_documents(self, **where: Any) -> "Counted":
        from penstock.ledger.engine.documents import Counted

        found = await self.list_documents(limit=COUNTED + 1, **where)
        return Counted(min(len(found), COUNTED), len(found) <= COUNTED)

    async def show(self, document: str, what: str) -> AsyncIterator[Any]:
        source: Any = self._client.chunks(document) if what == "chunks" else self._client.pages(document)
        async with aclosing(source) as items:
            async for item in items:
                yield item

    async def search(self, query: str, k: int = 5, **options: Any) -> "SearchResult":
        return await self._client.search(query, k, **options)

    async def retry(
        self,
        names: Sequence[str],
        *,
        workflow: str | None = None,
        params: str | None = None,
        values: Mapping[str, Mapping[str, Any]] | None = None,
        password: str | None = None,
        dropped: bool = False,
        notes: list[str] | None = None,
    ) -> set[str]:
        self._refuse({"--password": password, "--dropped": dropped})
        done: set[str] = set()
        for document in [await self._id(name) for name in names]:
            if await self._client.retry(document, workflow=workflow, params=params, values=values or None):
                done.add(document)
        return done

    async def cancel(self, names: Sequence[str]) -> set[str]:
        documents = [await self._id(name) for name in names]
        return {document for document in documents if await self._client.cancel(document)}

    async def delete(self, names: Sequence[str], *, forget: bool = False) -> set[str]:
        self._refuse({"--forget": forget})
        done: set[str] = set()
        for document in [await self._id(name) for name in names]:
            try:
                await self._client.delete(document)
            except NotFound:
                continue
            done.add(document)
        return done

    async def delete_matching(
        self, *, path: str | None = None, forget: bool = False, dry_run: bool = False, **chosen: Any
    ) -> "Deletion":
        from penstock.verbs.documents import Deletion

        self._refuse({"--forget": forget})
        if path is not None:
            raise UsageError(f"{path!r}: a pattern of paths needs the home; with --server, use --name or --filter")
        found = await self.list_documents(limit=LISTED, **chosen)
        if dry_run:
            counted = await self._client.count_action("delete", **chosen)
            return Deletion(counted.count, True, found)
        action = await self._client.wait_action((await self._client.start_action("delete", **chosen)).id)
        return Deletion(action.changed, False, found)

    async def replay(
        self,
        letters: Sequence[int] | None = None,
        *,
        reason: str | None = None,
        workflow: str | None = None,
        params: str | None = None,
        values: Mapping[str, Mapping[str, Any]] | None = None,
        password: str | None = None,
        dry_run: bool = False,
    ) -> "Replay":
        self._refuse({"--workflow": workflow, "--params": params, "--set": values, "--password": password})
        return await self._client.replay(letters, reason=reason, dry_run=dry_run)

    async def discard(
        self, letters: Sequence[int] | None = None, *, reason: str | None = None, dry_run: bool = False
    ) -> "Discard":
        return await self._client.discard(letters, reason=reason, dry_run=dry_run)

    def _refuse(self, given: Mapping[str, Any]) -> None:
        for option, value in given.items():
            if value:
                raise UsageError(f"{option} needs the home: use it where the server runs, without --server")


def _literal(name: str) -> str:
    """A pattern that only this name matches."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
