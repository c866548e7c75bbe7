"""Dimensions that servers were asked for, kept in the home: each process would buy a text to ask again."""

import os
from contextlib import suppress
from pathlib import Path

import msgspec


class Probed:
    def __init__(self, home: Path) -> None:
        self._path = home / "dimensions.json"

    def find(self, name: str) -> int | None:
        """The dimensions of a model, by the names of its provider, server and model; None: not asked yet."""
        count = self._all().get(name)
        return count if count is not None and 1 <= count <= 65_536 else None

    def keep(self, name: str, count: int | None) -> None:
        """Keep the dimensions; None: forget them. A home that cannot be written keeps nothing."""
        found = {**self._all(), name: count}
        data = msgspec.json.encode({name: count for name, count in found.items() if count is not None})
        made = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            try:
                made.write_bytes(data)
                made.replace(self._path)
            finally:
                made.unlink(missing_ok=True)

    def _all(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}
