"""In processes that tests start, pyarrow does not find pandas, as after a plain install: only Milvus's client needs it.
Where it is installed, pyarrow imports it, which takes as long as all the rest of a command."""

import sys
from typing import Any


def _by_pyarrow() -> bool:
    frame: Any = sys._getframe()
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("pyarrow"):
        frame = frame.f_back
    return frame is not None


class _Finder:
    """The finder of the path, but for this."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name == "pandas" and _by_pyarrow() else self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


sys.meta_path[:] = [
    _Finder(finder) if getattr(finder, "__name__", "") == "PathFinder" else finder for finder in sys.meta_path
]
