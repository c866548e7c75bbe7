"""One line of `make bench`: what was measured, the figure, and what it is held against."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    what: str
    figure: float
    unit: str = ""
    digits: int = 0
    least: float | None = None
    most: float | None = None

    @property
    def reached(self) -> bool:
        return (self.least is None or self.figure >= self.least) and (self.most is None or self.figure <= self.most)

    def line(self) -> str:
        figure = f"{self.figure:,.{self.digits}f} {self.unit}".rstrip()
        wanted = f"≥ {self.least} {self.unit}" if self.least is not None else ""
        wanted = f"≤ {self.most} {self.unit}" if self.most is not None else wanted
        return f"{self.what:<80} {figure:>12}   {wanted.rstrip():<10}{'' if self.reached else '  missed'}".rstrip()

    def data(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}
