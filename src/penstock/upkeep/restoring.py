"""A restore that is under way, or was interrupted: a file in the home says so."""

from pathlib import Path

from penstock.errors import UsageError

UNDER_WAY = "restoring"


def refuse_half_restored(home: Path) -> None:
    if (home / UNDER_WAY).exists():
        raise UsageError(f"a restore into {home} was interrupted: run it once more")
