"""Who may read what is kept, and what is never said: modes of files, and a mask for passwords in messages."""

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

MASK = "…"

_OTHERS = 0o077

_SECRET = r"\w*(?:password|passwd|secret|token)|api_?key|scram_\w+_key"
_USER_INFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/?#@'\"]*):[^\s'\"]*@", re.IGNORECASE)
_WHOLE = re.compile(r"\A([a-z][a-z0-9+.-]*://[^\s:/?#@'\"]*):.*@", re.IGNORECASE | re.DOTALL)
"""The same where nothing stands before the URL: then it may hold spaces and quotes, by mistake."""
_PORT = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/?#@'\"]*:)(?!\d+(?:[/?#\s'\"]|$))[^\s/?#@'\"]+(?!@)", re.IGNORECASE)
"""A password in the wrong place: before a host that was forgotten."""
_PARAMETER = re.compile(rf"([?&](?:{_SECRET})=)[^&\s'\"]*", re.IGNORECASE)
_KEYWORD = re.compile(rf"(?<![?&\w])((?:{_SECRET})\s?=\s?)(?:'(?:[^'\\]|\\.)*'|[^\s'\"]+)", re.IGNORECASE)
_QUOTED = re.compile(r'"([^"]*)"?')
_NAME = re.compile(_SECRET, re.IGNORECASE)


def masked(text: str) -> str:
    """A message or a URL without the passwords in it."""
    if "=" not in text and "://" not in text:
        return text
    text = _WHOLE.sub(rf"\1:{MASK}@", text)
    text = _USER_INFO.sub(rf"\1:{MASK}@", text)
    text = _PORT.sub(rf"\1{MASK}", text)
    text = _PARAMETER.sub(rf"\1{MASK}", text)
    return _KEYWORD.sub(rf"\1{MASK}", text)


def masked_for(url: str, text: str) -> str:
    """What somebody said about this URL, without its passwords: also where they stand alone."""
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return masked(_QUOTED.sub(lambda found: found[0] if _may_be_said(url, found[1]) else f'"{MASK}"', text))


def _may_be_said(url: str, quoted: str) -> bool:
    """A name that is no part of the URL, or is known as a harmless part. What could not be taken apart is not known."""
    if quoted not in url and quoted not in unquote(url):
        return True
    try:
        parts = urlsplit(url)
        return quoted in (parts.hostname, parts.username, str(parts.port), parts.path.lstrip("/"))
    except ValueError:
        return False


def _secrets(url: str) -> set[str]:
    found: set[str] = set()
    with suppress(ValueError):
        parts = urlsplit(url)
        found |= {parts.password or "", unquote(parts.password or "")}
        found |= {value for name, value in parse_qsl(parts.query) if _NAME.fullmatch(name)}
    return found - {""}


def is_shared(folder: Path) -> bool:
    """The owner has given it to a group: the set-group-ID bit says so."""
    try:
        return bool(folder.stat().st_mode & stat.S_ISGID)
    except OSError:
        return False


def file_mode(folder: Path) -> int:
    """For new files below `folder`, as far as the umask allows."""
    return 0o660 if is_shared(folder) else 0o600


def make_folder(folder: Path, root: Path) -> list[Path]:
    """Make a folder and those above it that are missing; these, the innermost first. From `root` on they
    are for us alone."""
    chain = [folder, *folder.parents]
    missing = chain[: next(i for i, one in enumerate(chain) if one.exists())]
    for made in reversed(missing):
        ours = made.is_relative_to(root) and not is_shared(made.parent)
        with suppress(FileExistsError):
            made.mkdir(0o700 if ours else 0o777)
    # A file of that name is an error.
    folder.mkdir(exist_ok=True)
    return missing


def tighten(places: Iterable[Path]) -> None:
    """What is ours is for nobody else to read. Others' places, shared ones and read-only ones stay as they are."""
    for place in places:
        with suppress(OSError):
            found = place.stat()
            shared = is_shared(place if stat.S_ISDIR(found.st_mode) else place.parent)
            if found.st_uid == os.geteuid() and found.st_mode & _OTHERS and not shared:
                place.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def make_private_file(path: Path) -> None:
    """Before SQLite makes it, readable for all. Its -wal and -shm take its mode."""
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, file_mode(path.parent)))
