"""The pages of a document that were read by OCR. The record is kept in the cursor."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.extractors.ocr import CURSOR, NONE, OcrSettings, why_not
from penstock.model.items import Page

COUNT, SUM = "ocr_pages", "ocr_sum"
VERSION = "ocr_version"
"""The key in the result of the step: with what scanned pages were read, or `none` if they were not."""


class OcrPages:
    def __init__(self, cursor: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        self._params = params
        self._count: int = cursor.get(COUNT, 0)
        self._sum: int = cursor.get(SUM, 0)
        """The sum of the confidences, in tenths. A sum of floats would depend on its order."""
        self._version: str | None = cursor.get(CURSOR)

    def add(self, pages: Sequence[Page], cursor: Mapping[str, Any]) -> None:
        self._version = cursor.get(CURSOR, self._version)
        for page in pages:
            if page.ocr is not None:
                self._count += 1
                self._sum += round(page.ocr * 10)

    def cursor(self) -> dict[str, Any]:
        return {COUNT: self._count, SUM: self._sum} if self._count else {}

    def meta(self) -> dict[str, Any]:
        """What the step records. `metadata` becomes metadata of the document."""
        found: dict[str, Any] = {} if self._version is None else {VERSION: self._version}
        if self._version == NONE:
            found["note"] = (
                f"it has scanned pages, which were not read, because {why_not(OcrSettings.of(self._params))}"
            )
        if not self._count:
            return found
        confidence = round(self._sum / self._count / 10, 1)
        return {
            **found,
            COUNT: self._count,
            "metadata": {"ocr": True, "ocr_pages": self._count, "ocr_confidence": confidence},
        }


def version_used(meta: Mapping[str, Any], cursor: Mapping[str, Any]) -> str | None:
    """With what the scanned pages of an artifact were read; None: it has none so far."""
    found: str | None = meta.get(VERSION, cursor.get(CURSOR))
    return found
