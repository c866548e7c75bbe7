"""Calls of a server: in threads, repeated while the server hardly answers, and with errors that say what to do."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from penstock.errors import Away, OutOfQuota, PenstockError, RateLimited, StorageError, Unauthorized
from penstock.redaction import MASK, masked
from penstock.runtime import Runtime, ThreadPool

T = TypeVar("T")

TRIES = 3
"""How often a call is made before its server counts as away. A changed row is identified by its id, so every call may
be repeated."""
PAUSE_S = 0.2
LONGEST_WAIT_S = 2.0
"""If the server asks for a longer wait, the steps wait, not the thread."""

NO_ANSWER = 0
"""The status of a call that got no answer."""


class Missing(Exception):
    """The collection of the server does not exist."""


class Fault(NamedTuple):
    """What an error of a client means."""

    status: int
    """As in HTTP, or NO_ANSWER."""
    message: str
    retry_after: float | None = None

    @property
    def is_brief(self) -> bool:
        """Whether the same call may succeed a moment later."""
        return self.status in (NO_ANSWER, 408, 429) or self.status >= 500


class Calls:
    def __init__(
        self,
        product: str,
        target: str,
        setting: str,
        secret: str,
        runtime: Runtime,
        explain: Callable[[Exception], Fault | None],
    ) -> None:
        """`target`: the name of the server, without secrets. `setting`: the environment variable with the `secret`.
        `explain`: what an error of the client means; None: it is no error of the server."""
        self._server = f"{product} at {target}"
        self.target = target
        self._setting = setting
        self._secret = secret
        self.runtime = runtime
        self._explain = explain

    async def run(self, pool: ThreadPool, function: Callable[..., T], *values: object) -> T:
        """Call in a thread."""
        return await self.runtime.run_blocking(pool, self.patiently, function, *values)

    async def once(self, pool: ThreadPool, function: Callable[..., T], *values: object) -> T:
        """Call in a thread, and do not repeat it."""
        return await self.runtime.run_blocking(pool, self._once, function, *values)

    def _once(self, function: Callable[..., T], *values: object) -> T:
        try:
            return function(*values)
        except (PenstockError, Missing):
            raise
        except Exception as error:
            raise self._meaning(error)[0] from None

    def patiently(self, function: Callable[..., T], *values: object, **keywords: object) -> T:
        """Call in this thread, and again if the server hardly answers."""
        for left in range(TRIES - 1, -1, -1):
            try:
                return function(*values, **keywords)
            except (PenstockError, Missing):
                raise
            except Exception as error:
                meant, fault = self._meaning(error)
                wait = PAUSE_S * (0.5 + self.runtime.random()) if fault is None else fault.retry_after or PAUSE_S
                if fault is None or not fault.is_brief or not left or wait > LONGEST_WAIT_S:
                    raise meant from None
                self.runtime.block(wait)
        raise AssertionError("the last call returns or raises")

    def _meaning(self, error: Exception) -> tuple[Exception, Fault | None]:
        fault = self._explain(error)
        if fault is None:
            return error, None
        said = masked(fault.message)
        # A token may be a name and a password.
        for secret in (self._secret, self._secret.partition(":")[2]):
            said = said.replace(secret, MASK) if secret else said
        lines = said.strip().splitlines() or [type(error).__name__]
        return self._error(fault, " ".join(lines)[:300]), fault

    def _error(self, fault: Fault, said: str) -> Exception:
        target = self.target
        match fault.status:
            case 404:
                return Missing(said)
            case 401 | 403:
                return Unauthorized(
                    f"{self._server} refuses the key: set {self._setting} ({said})",
                    setting=self._setting,
                    target=target,
                )
            case 402:
                return OutOfQuota(f"{self._server}: the quota is used up: {said}", target=target)
            case 429:
                sentence = f"{self._server} asks us to come back later: {said}"
                return RateLimited(sentence, target=target, retry_after=fault.retry_after)
            case 0:
                return Away(f"{self._server} does not answer: {said}", target=target)
            case status if status == 408 or status >= 500:
                return Away(f"{self._server} does not work: {said}", target=target, retry_after=fault.retry_after)
            case _:
                return StorageError(f"{self._server} refuses: {said}")
