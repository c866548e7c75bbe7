"""PORT: texts in, vectors out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.model.items import Vector, Vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Model:
    """What callers must know about the model behind an embedder."""

    fingerprint: str
    """Names the model and everything that changes its vectors: two embedders with one fingerprint agree."""
    dimensions: int
    former_names: tuple[str, ...] = ()
    """Fingerprints that earlier versions of Penstock gave to an embedder with the same vectors."""
    max_texts: int = 4096
    """Texts in one call of `embed_documents`."""
    max_tokens: int | None = None
    """Tokens in one call, of all its texts together; None: no limit."""
    remote: bool = False
    """Each call goes over a network: texts of several documents are sent in one call."""
    paid: bool = False
    """Each call costs money: its answer is kept durably before anything else happens."""
    price: float = 0.0
    """US dollars for a million tokens."""


class Embedder(Protocol):
    @property
    def model(self) -> Model: ...

    @property
    def target(self) -> str:
        """What is called, by the name that outages and limits are counted under: two embedders that use one server
        with one key have one target."""

    async def warm_up(self) -> None:
        """Load what the first call would load."""

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One unit vector for each text, in order: float32, (len(texts), dimensions). At most `model.max_texts` texts;
        a text without a token has the zero vector."""

    async def embed_query(self, text: str) -> Vector:
        """The unit vector to search with: float32, (dimensions,). Some models embed questions and documents in
        different ways."""


def unit(vectors: "NDArray[Any]") -> Vectors:
    """Vectors scaled to length one; a zero vector stays zero."""
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)
