"""What an adapter needs to call a provider."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")


class Calls(Protocol):
    """Calls of providers within their limits, which all workers share."""

    async def call(self, target: str, function: Callable[[], Awaitable[T]], *, tokens: int = 0) -> T:
        """Call the function when the limits of the target allow it, and return its result. `tokens`: how many the call
        uses. If the function raises `RateLimited`, all workers wait as long as the target asks, and it is called again;
        the error is raised only if that takes long."""

    async def stated(
        self, target: str, *, requests_per_minute: float | None = None, tokens_per_minute: float | None = None
    ) -> None:
        """Record the limits that an answer of the target states (see `net.headers.stated_limits`)."""


@dataclass(frozen=True)
class Providers:
    """What an adapter needs to call a provider."""

    calls: Calls
