"""Steps of a user's own that call a service."""

from collections.abc import Callable
from typing import Any, ClassVar

from penstock import Away, RateLimited, StepContext, Unauthorized


class Service:
    error: ClassVar[Callable[[], BaseException] | None] = None
    calls: ClassVar[int] = 0


async def call(ctx: StepContext) -> None:
    Service.calls += 1
    if Service.error is not None:
        raise Service.error()


async def note(ctx: StepContext) -> None:
    """It needs nobody."""


class Unborn(Away):
    """It forgot what its class needs."""

    def __init__(self) -> None:
        pass


class Trap(Away):
    @property
    def target(self) -> str:
        raise RuntimeError("no target")

    @target.setter
    def target(self, value: str | None) -> None:
        pass


def _with(error: Away, **values: Any) -> Callable[[], BaseException]:
    for name, value in values.items():
        setattr(error, name, value)
    return lambda: error


RUBBISH: dict[str, Callable[[], BaseException]] = {
    "unborn": Unborn,
    "trap": lambda: Trap("x"),
    "target_number": _with(Away("x"), target=7),
    "target_long": _with(Away("x"), target="t" * 100_000),
    "target_odd": _with(Away("x"), target="a\0b\udce9"),
    "target_empty": _with(Away("x"), target=""),
    "target_ours": lambda: Away("x", target="fake"),
    "target_table": lambda: Away("x", target="index:default/default/1"),
    "target_blobs": lambda: Away("x", target="blobs:s3"),
    "wait_text": _with(RateLimited("x"), retry_after="soon"),
    "wait_nan": _with(RateLimited("x"), retry_after=float("nan")),
    "wait_negative": _with(RateLimited("x"), retry_after=-9.0),
    "setting_object": _with(Unauthorized("x", setting="s"), setting=object()),
    "long": lambda: Away("x" * 1_000_000),
}
