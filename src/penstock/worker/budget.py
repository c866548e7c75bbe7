"""Time budgets: how long a batch of each kind takes, and whether another one fits."""

from penstock.runtime import Runtime

SMOOTHING = 0.3


class Budget:
    """A deadline, and the pace of each kind. The ledger stores the paces between processes."""

    def __init__(
        self, runtime: Runtime, seconds: float | None, paces: dict[str, float], began: float | None = None
    ) -> None:
        """`began` is the time from which `seconds` count. The default is now."""
        self._runtime = runtime
        start = runtime.clock() if began is None else began
        self.deadline = None if seconds is None else start + seconds
        self.paces = dict(paces)
        self.measured: set[str] = set()

    def measure(self, kind: str, seconds: float) -> None:
        before = self.paces.get(kind)
        self.paces[kind] = seconds if before is None else before + SMOOTHING * (seconds - before)
        self.measured.add(kind)

    def fits(self, kind: str) -> bool:
        """Whether the next batch of this kind is expected to end before the deadline."""
        if self.deadline is None:
            return True
        return self._runtime.clock() + self.paces.get(kind, 0.0) <= self.deadline

    @property
    def spent(self) -> bool:
        return self.deadline is not None and self._runtime.clock() >= self.deadline
