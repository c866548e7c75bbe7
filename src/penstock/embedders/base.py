"""PORT: compute vectors of texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from penstock.model.items import Vector, Vectors
from penstock.net.headers import StatedLimits

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Model:
    """The properties of an embedder's model that callers need."""

    fingerprint: str
    """Identifies the model and everything that affects its vectors. Embedders with equal fingerprints give equal
    vectors."""
    dimensions: int
    former_names: tuple[str, ...] = ()
    """Fingerprints that earlier versions of Penstock gave to an embedder with the same vectors."""
    max_texts: int = 4096
    """Maximum number of texts in one call of `embed_documents`."""
    max_tokens: int | None = None
    """Maximum number of tokens of all texts in one call; None: no limit."""
    static: bool = False
    """Whether a vector is the mean of the vectors of its tokens. Such vectors say less than those of a language model,
    and search gives them less weight."""
    remote: bool = False
    """Whether calls use a network. If so, texts of several documents are sent in one call."""
    paid: bool = False
    """Whether each call costs money. If so, its result is stored durably before anything else happens."""
    price: float | None = 0.0
    """US dollars per million tokens; None: unknown."""
    name: str = ""
    """The provider and model, as in the settings, for people."""


class Embedder(Protocol):
    @property
    def model(self) -> Model: ...

    @property
    def target(self) -> str:
        """The name of the target, under which outages and limits are counted. Two embedders that use the same server
        with the same key have the same target."""

    async def warm_up(self) -> None:
        """Load now what the first call would load."""

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One unit vector for each text, in order: float32, (len(texts), dimensions). Accepts at most `model.max_texts`
        texts. A text without tokens gets the zero vector."""

    async def embed_query(self, text: str) -> Vector:
        """The unit vector of a search query: float32, (dimensions,). Some models embed queries and documents
        differently."""


class Answered(NamedTuple):
    vectors: Vectors
    tokens: int | None
    """How many tokens the provider has counted; None: it does not say."""


@runtime_checkable
class Remote(Protocol):
    """An embedder that calls a server."""

    @property
    def outline(self) -> Model:
        """The model as far as it is known without a call: its dimensions are 0 if they are not known."""

    async def embed_counted(self, texts: Sequence[str], *, query: bool = False) -> Answered:
        """As `embed_documents`, or for queries as `embed_query`, with the number of tokens. One call: Permanent if the
        server refuses any of several texts."""

    @property
    def stated(self) -> StatedLimits | None:
        """The limits that the last answer stated."""

    async def close(self) -> None:
        """Close the connections, in the event loop that used them."""


def outline(embedder: Embedder) -> Model:
    """The model as far as it is known without a call."""
    return embedder.outline if isinstance(embedder, Remote) else embedder.model


class Relevance(Protocol):
    """Compares the tokens of texts with those of a query."""

    async def density(self, query: str) -> float:
        """Characters for each token."""

    async def relevance(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text covers the tokens of the query, from 0 to 1."""


def unit(vectors: "NDArray[Any]") -> Vectors:
    """The vectors scaled to length one. A zero vector stays zero."""
    import numpy as np

    # Squares of large numbers do not fit into four bytes.
    lengths = np.linalg.norm(vectors.astype(np.float64, copy=False), axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)
