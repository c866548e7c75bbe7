"""The raw bytes of a generation, as an extractor reads them."""

import hashlib
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.blobs.base import Blobs
from penstock.errors import Permanent
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import documents
from penstock.net.providers import Providers

if TYPE_CHECKING:
    from penstock.worker.context import Context

VERIFIED = 1 << 20
"""How many bytes are hashed at once. A smaller file is kept in memory while it is extracted."""


class RawFile:
    """The raw bytes of a generation."""

    def __init__(self, ctx: "Context", blobs: Blobs, ledger: Ledger) -> None:
        self._ctx = ctx
        self._blobs = blobs
        self._ledger = ledger
        self._key = ctx.generation.raw_key
        self.name = ctx.document.name
        self.size = ctx.generation.size
        self._verified: bytes | None = None
        self.parser_s = 0.0
        """How long parser processes have worked on the file, including earlier attempts that the cursor records."""
        self.flow = (ctx.step.owner, ctx.step.document_id)

    async def read_range(self, offset: int, length: int) -> bytes:
        if self._verified is not None:
            return self._verified[offset : offset + length]
        return await self._blobs.read_range(self._key, offset, length)

    async def verify(self) -> None:
        """Compare the stored bytes with their hash; raise `Permanent` if they differ. The bytes of a small file are
        kept and not read again."""
        hashed, size = hashlib.sha256(), 0
        while piece := await self._blobs.read_range(self._key, size, min(VERIFIED, self.size - size + 1)):
            await self._ctx.runtime.run_sized("io", len(piece), hashed.update, piece)
            size += len(piece)
            if size == len(piece) == self.size < VERIFIED:
                self._verified = piece
                break
            self._ctx.raise_if_cancelled()
            self._ctx.progress()
        if size != self.size or hashed.hexdigest() != self._ctx.generation.sha256:
            why = f"{size} bytes instead of {self.size}" if size != self.size else "other bytes than were accepted"
            raise Permanent(
                f"the stored bytes of {self.name!r} are damaged ({why}): submit the file again; `penstock check` shows "
                "whether other files are damaged",
                reason="raw_damaged",
            )

    async def password(self) -> str | None:
        document = self._ctx.document
        return await self._ledger.read(lambda c: documents.password(document.owner, c, document.id))

    def file(self) -> AbstractAsyncContextManager[Path]:
        return self._blobs.file(self._key)

    def waiting(self, on: str | None) -> None:
        self._ctx.presence.delegate(on)

    @property
    def providers(self) -> Providers:
        return self._ctx.providers_of(self._ctx.generation.sha256)

    def may_parse(self) -> None:
        limit = self._ctx.ports.limits.parser_s
        if self.parser_s >= limit:
            raise Permanent(
                f"parser processes have worked on it for {self.parser_s:,.0f} s; the limit is {limit:,g} s "
                f"(limits.parser_s): raise it, then `penstock retry {self._ctx.document.id}`",
                reason="parser_limit",
            )

    def parsed(self, seconds: float) -> None:
        self.parser_s += seconds
