"""How busy the machine is: what must be quick takes longer where many processes share the cores."""

import time

WORK_S = 0.05


def slowness() -> float:
    """How many times as long as alone a process takes at present, at least 1."""
    began, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < WORK_S:
        pass
    return max(1.0, (time.perf_counter() - began) / WORK_S)


class Stopwatch:
    """The seconds since it was made, as they would be on a machine without other work."""

    def __init__(self) -> None:
        self._slowness = slowness()
        self._began = time.perf_counter()

    def seconds(self) -> float:
        passed = time.perf_counter() - self._began
        return passed / max(self._slowness, slowness())
