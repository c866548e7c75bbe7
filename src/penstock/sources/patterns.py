"""Patterns that choose among many documents: `--include '*.pdf' --exclude drafts`."""

import fnmatch
from collections.abc import Sequence
from pathlib import PurePath


def is_wanted(path: PurePath, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether the patterns choose a path, which is relative to the folder or prefix that is searched."""
    if include and not any(_matches(path, pattern) for pattern in include):
        return False
    return not any(_matches(path, pattern) for pattern in exclude)


def _matches(path: PurePath, pattern: str) -> bool:
    """Whether a pattern matches the name, the path, or a parent folder within it."""
    text = path.as_posix()
    bare = pattern.rstrip("/")
    return (
        fnmatch.fnmatchcase(path.name, pattern)
        or fnmatch.fnmatchcase(text, pattern)
        or any(fnmatch.fnmatchcase(parent.as_posix(), bare) for parent in path.parents if parent.name)
        or any(fnmatch.fnmatchcase(parent.name, bare) for parent in path.parents if parent.name)
    )
