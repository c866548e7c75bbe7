"""The raw bytes of a version of a document, for a parser process that reads them outside of a run."""

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from penstock.ledger.engine import documents
from penstock.model.nouns import DocumentId
from penstock.net.providers import Providers
from penstock.verbs.scope import Scope


class StoredRaw:
    def __init__(self, scope: Scope, document: DocumentId, name: str, key: str, size: int) -> None:
        self._scope = scope
        self._document = document
        self._key = key
        self.name = name
        self.size = size
        self.parser_s = 0.0
        self.flow = (str(scope.owner), str(document))

    async def read_range(self, offset: int, length: int) -> bytes:
        return await self._scope.blobs.read_range(self._key, offset, length)

    async def password(self) -> str | None:
        return await self._scope.ledger.read(partial(documents.password, self._scope.owner), self._document)

    def file(self) -> AbstractAsyncContextManager[Path]:
        return self._scope.blobs.file(self._key)

    def waiting(self, on: str | None) -> None:
        pass

    @property
    def providers(self) -> Providers:
        raise AssertionError("a local extractor calls no provider")

    def may_parse(self) -> None:
        pass

    def parsed(self, seconds: float) -> None:
        self.parser_s += seconds
