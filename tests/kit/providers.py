"""Providers for adapters that are tested without a worker."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.net.providers import Providers

T = TypeVar("T")


class DirectCalls:
    """Calls at once, without limits."""

    async def call(self, target: str, function: Callable[[], Awaitable[T]], *, tokens: int = 0) -> T:
        return await function()

    async def stated(
        self, target: str, *, requests_per_minute: float | None = None, tokens_per_minute: float | None = None
    ) -> None:
        pass


DIRECT = Providers(DirectCalls())
