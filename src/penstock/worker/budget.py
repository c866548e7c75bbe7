"""Budgets: how long a batch of each kind takes and whether another one fits, and how much may be spent."""

from penstock.errors import CostSpent
from penstock.model.usage import NANO, cost
from penstock.runtime import Runtime

SMOOTHING = 0.3


class Budget:
    """A deadline, and the pace of each kind. The ledger stores the paces between processes."""

    def __init__(
        self,
        runtime: Runtime,
        seconds: float | None,
        paces: dict[str, float],
        began: float | None = None,
        max_cost: float | None = None,
    ) -> None:
        """`began` is the time from which `seconds` count. The default is now. `max_cost`: in US dollars."""
        self._runtime = runtime
        start = runtime.clock() if began is None else began
        self.deadline = None if seconds is None else start + seconds
        self.paces = dict(paces)
        self.measured: set[str] = set()
        self.max_cost = None if max_cost is None else round(max_cost * NANO)
        self.cost = 0
        """What this worker has bought, in billionths of a US dollar."""
        self.cost_spent = False
        """A call was not made because it would have cost more than is left."""
        self._reserved = 0
        self._estimated = self._used = 0

    def measure(self, kind: str, seconds: float) -> None:
        before = self.paces.get(kind)
        self.paces[kind] = seconds if before is None else before + SMOOTHING * (seconds - before)
        self.measured.add(kind)

    def fits(self, kind: str) -> bool:
        """Whether the next batch of this kind is expected to end before the deadline."""
        if self.cost_spent:
            return False
        if self.deadline is None:
            return True
        return self._runtime.clock() + self.paces.get(kind, 0.0) <= self.deadline

    @property
    def spent(self) -> bool:
        return self.cost_spent or (self.deadline is not None and self._runtime.clock() >= self.deadline)

    # the purse of the calls of providers

    def reserve(self, tokens: int, price: float | None) -> int:
        """See `Purse`. The estimate is corrected by what the provider has counted so far."""
        wanted = cost(round(tokens * (self._used / self._estimated)) if self._used else tokens, price)
        if self.max_cost is not None and self.cost + self._reserved + wanted > self.max_cost:
            self.cost_spent = True
            raise CostSpent(
                f"the next call would cost about {wanted / NANO:.6f} US dollars, which is more than is left"
            )
        self._reserved += wanted
        return wanted

    def settle(self, reserved: int, estimated: int, tokens: int, price: float | None) -> None:
        self._reserved -= reserved
        if tokens:
            self.cost += cost(tokens, price)
            self._estimated, self._used = self._estimated + estimated, self._used + tokens
