"""The free space of the disks that hold ledger, blobs and index."""

import os
from collections.abc import Iterator
from pathlib import Path

from penstock.config import Config
from penstock.metrics.registry import Gauge

MEGABYTE = 1 << 20


def gauges(config: Config, ledger: Path | None) -> list[Gauge]:
    """`ledger`: the file of an embedded ledger. What is stored elsewhere has no gauge here."""
    folders = {
        "ledger": None if ledger is None else ledger.parent,
        "blobs": config.blobs_path,
        "index": config.index_path,
    }
    return [*_free(folders), Gauge("disk_reserve_bytes", config.serve.reserve_megabytes * MEGABYTE)]


def _free(folders: dict[str, Path | None]) -> Iterator[Gauge]:
    for place, folder in folders.items():
        if folder is not None and (free := free_bytes(folder)) is not None:
            yield Gauge("disk_free_bytes", free, {"place": place})


def free_bytes(folder: Path) -> int | None:
    """The free space where a folder is, or will be. None: the system does not say."""
    while True:
        try:
            found = os.statvfs(folder)
        except FileNotFoundError:
            if folder == folder.parent:
                return None
            folder = folder.parent
            continue
        except OSError:
            return None
        return found.f_bavail * found.f_frsize
