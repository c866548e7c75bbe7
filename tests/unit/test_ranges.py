"""Reading ranges of pages with a provider."""

from typing import Any

from tests.kit.parsers import Listener

from penstock.extractors import ranges
from penstock.extractors.formats import PDF
from penstock.runtime import Runtime


class Impatient:
    """A provider that says "not ready, ask again at once"."""

    target, version, media_types = "impatient", "1", frozenset({PDF})

    def __init__(self) -> None:
        self.polls = 0

    async def poll(self, operation: str) -> ranges.Poll:
        self.polls += 1
        return ranges.Poll([[]] if self.polls == 4 else None, wait_s=0.0)


class Patient(Runtime):
    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_a_provider_is_not_polled_without_a_pause() -> None:
    runtime, provider = Patient(), Impatient()
    raw: Any = Listener()
    reading = ranges._Reading(provider, None, runtime, raw, PDF, {})  # type: ignore[arg-type]
    assert await reading._result("operation") == [[]]
    assert runtime.slept == [ranges.SHORTEST_S] * 3
    runtime.close()
