"""What an adapter needs to call a provider."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from penstock.model.usage import Booking

T = TypeVar("T")


class FoundAnswer(NamedTuple):
    data: bytes
    tokens: int


class Paid(NamedTuple):
    """An answer that was bought, and the tokens that it cost."""

    data: bytes
    tokens: int


class Calls(Protocol):
    """Calls of providers within their limits, which all workers share."""

    async def call(
        self, target: str, function: Callable[[], Awaitable[T]], *, tokens: int = 0, paid: bool = False
    ) -> T:
        """Call the function when the limits of the target allow it, and return its result. `tokens`: how many the call
        uses. `paid`: once begun, it is finished even if the step is cancelled, so that it can store its answer. If the
        function raises `RateLimited`, all workers wait as long as the target asks, and it is called again; the error is
        raised only if that takes long."""

    def accepted(self, target: str) -> None:
        """Report within a call that the target has accepted the request, and the rest of the call only waits for the
        result. Otherwise the end of the call counts."""

    async def stated(
        self, target: str, *, requests_per_minute: float | None = None, tokens_per_minute: float | None = None
    ) -> None:
        """Record the limits that an answer of the target states (see `net.headers.stated_limits`)."""


class Answers(Protocol):
    """Answers of paid calls, by what was asked (`key`, any text). They belong to one owner. An answer is stored durably
    and never asked for again, also if the step was cancelled or has lost its lease meanwhile."""

    @property
    def place(self) -> str:
        """Whose answers these are: two owners with the same place share them."""

    async def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The answers that are stored, by key."""

    async def look(self, keys: Sequence[str]) -> dict[str, FoundAnswer]:
        """As `find`, with the tokens that each answer cost."""

    async def pay(self, bought: Mapping[str, Paid], usage: Sequence[Booking]) -> None:
        """As `keep`, and book what was paid in the same transaction."""

    def reserve(self, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        """Say that a step buys these. Returns the keys that are reserved now, and those that another step of this
        worker buys already. The caller frees the first ones, whatever happens."""

    def free(self, keys: Sequence[str]) -> None: ...

    def held(self, keys: Sequence[str]) -> AbstractContextManager[None]:
        """Keep keys reserved during the block, also if their step frees them: it may have been cancelled."""

    async def settled(self, keys: Sequence[str]) -> None:
        """Wait until no step of this worker buys these any more."""

    async def keep(self, bought: Mapping[str, bytes]) -> None:
        """Store answers. Call this before anything else is done with them."""

    async def start(self, key: str, begin: Callable[[], Awaitable[str]]) -> str:
        """Begin an operation whose answer the provider keeps ready, and store its id durably; or return the one that
        was begun before. Storing the answer ends it."""

    async def forget(self, keys: Sequence[str]) -> None:
        """Remove answers and operations: they are stored elsewhere, or of no use."""


class Purse(Protocol):
    """The money that a call of `ingest` or `run` may spend."""

    def reserve(self, tokens: int, price: float | None) -> int:
        """Reserve the cost of about so many tokens, and return it. Raises CostSpent if that is more than is left."""

    def settle(self, reserved: int, estimated: int, tokens: int, price: float | None) -> None:
        """Replace what was reserved for the estimated tokens by the cost of the tokens that were used."""


class FullPurse:
    """Without a limit."""

    def reserve(self, tokens: int, price: float | None) -> int:
        return 0

    def settle(self, reserved: int, estimated: int, tokens: int, price: float | None) -> None: ...


FULL = FullPurse()


@dataclass(frozen=True)
class Providers:
    """What an adapter needs to call a provider."""

    calls: Calls
    answers: Answers
    purse: Purse = FULL


ProvidersOf = Callable[[str], Providers]
"""Returns the providers for an owner, for a call that serves steps of several owners."""
