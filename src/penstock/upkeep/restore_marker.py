"""The marker file of a restore that is in progress or was interrupted."""

import os
from pathlib import Path

from penstock.errors import UsageError

UNDER_WAY = "restoring"


def refuse_half_restored(home: Path) -> None:
    # Not Path.exists, which raises if the home belongs to another user. Opening the home reports that error.
    if os.path.exists(home / UNDER_WAY):
        raise UsageError(f"a restore into {home} was interrupted: repeat it with --force")
