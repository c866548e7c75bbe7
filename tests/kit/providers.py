"""Providers for adapters that are tested without a worker."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from penstock.model.usage import Booking
from penstock.net.providers import FoundAnswer, Paid, Providers

T = TypeVar("T")


class DirectCalls:
    """Calls at once, without limits."""

    async def call(
        self, target: str, function: Callable[[], Awaitable[T]], *, tokens: int = 0, paid: bool = False
    ) -> T:
        return await function()

    def accepted(self, target: str) -> None:
        pass

    async def stated(
        self, target: str, *, requests_per_minute: float | None = None, tokens_per_minute: float | None = None
    ) -> None:
        pass


class MemoryAnswers:
    """Bought answers in memory."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.operations: dict[str, str] = {}
        self.bookings: list[Booking] = []
        self.place = "memory"

    async def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        return {key: self.stored[key] for key in keys if key in self.stored}

    async def look(self, keys: Sequence[str]) -> dict[str, FoundAnswer]:
        return {key: FoundAnswer(data, 0) for key, data in (await self.find(keys)).items()}

    async def pay(self, bought: Mapping[str, Paid], usage: Sequence[Booking]) -> None:
        await self.keep({key: paid.data for key, paid in bought.items()})
        self.bookings += usage

    def reserve(self, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        return list(keys), []

    def free(self, keys: Sequence[str]) -> None:
        pass

    def held(self, keys: Sequence[str]) -> AbstractContextManager[None]:
        return nullcontext()

    async def settled(self, keys: Sequence[str]) -> None:
        pass

    async def keep(self, bought: Mapping[str, bytes]) -> None:
        self.stored.update(bought)
        for key in bought:
            self.operations.pop(key, None)

    async def start(self, key: str, begin: Callable[[], Awaitable[str]]) -> str:
        if key not in self.operations:
            self.operations[key] = await begin()
        return self.operations[key]

    async def forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.stored.pop(key, None)
            self.operations.pop(key, None)


DIRECT = Providers(DirectCalls(), MemoryAnswers())


def direct(owner: str) -> Providers:
    return DIRECT
