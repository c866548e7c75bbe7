"""The port of rerankers: models that read a query and a passage together. They are slow, so search shows them only the
best hits."""

from collections.abc import Sequence
from typing import Protocol


class Reranker(Protocol):
    @property
    def name(self) -> str:
        """Identifies the model, with its version."""

    async def warm_up(self) -> None:
        """Load the model. Raises ConfigError if it cannot rerank."""

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the query, as log-odds: 0 is a half, positive is more likely than not. The score
        of a text does not depend on the others."""
