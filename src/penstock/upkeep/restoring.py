"""A restore that is under way, or was interrupted: a file in the home says so."""

import os
from pathlib import Path

from penstock.errors import UsageError

UNDER_WAY = "restoring"


def refuse_half_restored(home: Path) -> None:
    # Not Path.exists, which raises where the home belongs to somebody else: opening it says what is wrong.
    if os.path.exists(home / UNDER_WAY):
        raise UsageError(f"a restore into {home} was interrupted: run it once more, with --force")
