"""Scanned pages: several are drawn and read at a time, and returned in order."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from itertools import takewhile

import msgspec

from penstock.errors import Permanent
from penstock.extractors.bad_parts import is_of_a_part, skipped, twice
from penstock.extractors.base import Raw
from penstock.extractors.ocr import Ocr, OcrSettings, Read
from penstock.model.items import Block, Page

Draw = Callable[[int, int], Awaitable[tuple[bytes, int | None]]]
"""Takes the number of a page and a resolution; returns an image and its resolution, if it is known."""


class ScannedPages:
    def __init__(self, ocr: Ocr, settings: OcrSettings, source: Raw, draw: Draw) -> None:
        self._ocr = ocr
        self._settings = settings
        self._source = source
        self._draw = draw

    async def read(
        self, pages: Sequence[Page], scans: Collection[int], optional: Collection[int] = ()
    ) -> AsyncGenerator[list[Page], None]:
        """Yield all pages in order; the text of those in `scans` is read by OCR. Those in `optional` have a text of
        their own, which they keep if OCR fails. One page more than there are processes is in work, so that none is
        idle. A crash loses no more than these."""
        slots = asyncio.Semaphore(self._ocr.width + 1)
        chosen = [(page, page.number in scans, page.number in optional) for page in pages]
        tasks = [asyncio.create_task(self._within(slots, *one)) for one in chosen]
        try:
            at = 0
            while at < len(tasks):
                await tasks[at]
                # A task that raised is handled after the pages before it are stored.
                ready = [task.result() for task in takewhile(_succeeded, tasks[at:])]
                at += len(ready)
                yield ready
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _within(self, slots: asyncio.Semaphore, page: Page, scanned: bool, optional: bool) -> Page:
        if not scanned or page.skipped is not None:
            return page
        async with slots:
            return await self._page(page, optional)

    async def _page(self, page: Page, optional: bool) -> Page:
        try:
            found = await twice(lambda: self._read(page.number))
        except Permanent as error:
            if not is_of_a_part(error) and error.reason != "damaged":
                raise
            return page if optional else skipped(page.number, error, page.label)
        if _letters(found.text) < 2 * _letters(page.text):
            # The text of the page was not just a stamp.
            return page
        # The headings of the outline refer to the text of the page, which was replaced.
        headings = tuple(Block("heading", 0, 0, block.level, block.title) for block in page.blocks)
        return msgspec.structs.replace(page, text=found.text, blocks=headings, ocr=found.confidence)

    async def _read(self, number: int) -> Read:
        image, dpi = await self._draw(number, self._settings.dpi)
        return await self._ocr.read(image, dpi, self._settings, self._source)


def _succeeded(task: "asyncio.Task[Page]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _letters(text: str) -> int:
    return sum(map(str.isalnum, text))
