"""Submit the documents that a step finds inside its document, through the same intake as files."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from penstock.extractors.base import Child
from penstock.intake import Intake, RunSpec
from penstock.intake_items import Receipt, SubmitItem
from penstock.sources.base import Found, Known

MEMBER = "!/"
"""Separates the source URI of a parent from the path of a child."""


class _Member:
    """One child as a source. Its bytes can be read once."""

    repeatable = False
    problems: Sequence[str] = ()

    def __init__(self, parent: str, child: Child) -> None:
        self._child = child
        self.found = Found(f"{parent}{MEMBER}{child.member}", child.name)

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        yield self.found

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        if self._child.data is not None:
            yield self._child.data
            return
        async for piece in self._child.pieces():
            yield piece

    def read_now(self, found: Found, most: int) -> bytes | None:
        return self._child.data


async def submit_children(
    intake: Intake, spec: RunSpec, source: str, children: Sequence[Child], metadata: dict[str, Any]
) -> list[Receipt]:
    """Submit documents found inside the document `source`. When this returns, they survive a power failure. Raises
    LeaseLost if the step that found them lost its lease: then none of them was accepted."""

    async def items() -> AsyncIterator[SubmitItem]:
        for child in children:
            member = _Member(source, child)
            yield SubmitItem(member, member.found, metadata=metadata)

    return [receipt async for receipts in intake.submit(spec, items()) for receipt in receipts]
