"""File permissions, and masking of passwords in messages."""

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
"""The same for a text that begins with a URL, which may then contain spaces and quotes by mistake."""
_HOST = r"(?:\[[0-9a-f:.]+\]|(?!\[[0-9a-f:.]+\])[^\s:/?#@'\"]*)"
_PORT = re.compile(rf"(\b[a-z][a-z0-9+.-]*://{_HOST}:)(?!\d+(?:[/?#\s'\"]|$))[^\s/?#@'\"]+(?!@)", re.IGNORECASE)
"""A password in the place of the port, because the host is missing."""
_SIGNATURE = r"sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token)|access_?key(?:_?id)?|auth"
"""Parameters of signed URLs. As keywords outside of a URL they are ordinary words."""
_PARAMETER = re.compile(rf"([?&](?:{_SECRET}|{_SIGNATURE})=)[^&\s'\"]*", re.IGNORECASE)
_KEYWORD = re.compile(rf"(?<![?&\w])((?:{_SECRET})\s?=\s?)(?:'(?:[^'\\]|\\.)*'|[^\s'\"]+)", re.IGNORECASE)
_QUOTED = re.compile(r'"([^"]*)"?')
_NAME = re.compile(rf"{_SECRET}|{_SIGNATURE}", re.IGNORECASE)


def masked(text: str) -> str:
    """The text with all passwords masked."""
    if "=" not in text and "://" not in text:
        return text
    text = _WHOLE.sub(rf"\1:{MASK}@", text)
    text = _USER_INFO.sub(rf"\1:{MASK}@", text)
    text = _PORT.sub(rf"\1{MASK}", text)
    text = _PARAMETER.sub(rf"\1{MASK}", text)
    return _KEYWORD.sub(rf"\1{MASK}", text)


def is_secret_parameter(name: str) -> bool:
    """Whether the value of a URL parameter with this name is masked."""
    return _NAME.fullmatch(name) is not None


def masked_for(url: str, text: str) -> str:
    """A message about this URL with its passwords masked, also where they appear outside of the URL."""
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return masked(_QUOTED.sub(lambda found: found[0] if _may_be_said(url, found[1]) else f'"{MASK}"', text))


def _may_be_said(url: str, quoted: str) -> bool:
    """Return whether a quoted text is not part of the URL, or is a part without secrets. Return False if the URL cannot
    be parsed."""
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
    """Whether the folder is shared with a group, which its set-group-ID bit indicates."""
    try:
        return bool(folder.stat().st_mode & stat.S_ISGID)
    except OSError:
        return False


def file_mode(folder: Path) -> int:
    """The mode of new files below `folder`, before the umask."""
    return 0o660 if is_shared(folder) else 0o600


def make_folder(folder: Path, root: Path) -> list[Path]:
    """Create a folder and its missing parents, and return the created ones, innermost first. From `root` on they are
    private."""
    chain = [folder, *folder.parents]
    missing = chain[: next(i for i, one in enumerate(chain) if one.exists())]
    for made in reversed(missing):
        ours = made.is_relative_to(root) and not is_shared(made.parent)
        with suppress(FileExistsError):
            made.mkdir(0o700 if ours else 0o777)
    # Raises if a file has this name.
    folder.mkdir(exist_ok=True)
    return missing


def tighten(places: Iterable[Path]) -> None:
    """Remove permissions of other users from our own files and folders. Shared folders, folders of other users and
    read-only ones are not changed."""
    for place in places:
        with suppress(OSError):
            found = place.stat()
            shared = is_shared(place if stat.S_ISDIR(found.st_mode) else place.parent)
            if found.st_uid == os.geteuid() and found.st_mode & _OTHERS and not shared:
                place.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def make_private_file(path: Path) -> None:
    """Create the file privately before SQLite creates it with default permissions. SQLite uses its mode for -wal and
    -shm too."""
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, file_mode(path.parent)))
