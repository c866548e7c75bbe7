"""PORT: texts in, vectors out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.model.items import Vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Embedder(Protocol):
    @property
    def fingerprint(self) -> str:
        """Names the model and everything that changes its vectors: two embedders with one fingerprint agree."""

    @property
    def former_names(self) -> tuple[str, ...]:
        """What earlier versions of Penstock called an embedder that makes the very same vectors."""

    @property
    def dimensions(self) -> int: ...

    async def warm_up(self) -> None:
        """Load what the first call would load."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """One unit vector a text, in order: float32, (len(texts), dimensions)."""


def unit(vectors: "NDArray[Any]") -> Vectors:
    """Vectors scaled to length one; a zero vector stays zero."""
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)
