"""Install the packages of requirements.lock with pip, and show how far it is. pip itself shows nothing with --quiet,
and hundreds of lines without it.

usage: python scripts/install.py PIP LOCK"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

EVERY = 10
"""Where lines cannot be redrawn, every tenth package is shown."""
_PACKAGE = re.compile(r"^[A-Za-z0-9][\w.-]*(?===)", re.M)
_COLLECTING = re.compile(r"\s*Collecting ([\w.-]+)")
_FETCHING = re.compile(r"\s*Downloading \S+ \(([^)]+)\)")


def progress(lines: Iterable[str], of: int) -> Iterator[str]:
    """What to show for the output of pip."""
    number, name = 0, ""
    for line in lines:
        if found := _COLLECTING.match(line):
            number, name = number + 1, found[1]
            yield f"{number} of {of}  {name}"
        elif found := _FETCHING.match(line):
            yield f"{number} of {of}  {name}  ({found[1]})"
        elif line.startswith("Installing collected packages"):
            yield f"unpacking {number} packages"


def main() -> int:
    pip, lock = sys.argv[1:]
    of = len(set(_PACKAGE.findall(Path(lock).read_text(encoding="utf-8"))))
    terminal = sys.stdout.isatty()
    print(f"Installing up to {of} packages (the first time this takes a few minutes)", flush=True)
    command = [pip, "install", "--no-compile", "--require-hashes", "--progress-bar=off", "-r", lock]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = 0
        for number, text in enumerate(progress(process.stdout, of)):
            if terminal:
                print(f"\r\x1b[K  {text}", end="", flush=True)
            elif number >= shown or text.startswith("unpacking"):
                shown = number + EVERY
                print(f"  {text}", flush=True)
    if terminal:
        print("\r\x1b[K", end="", flush=True)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
