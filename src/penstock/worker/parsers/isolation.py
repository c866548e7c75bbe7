"""Takes from a parser process what reading a document does not need. A file that exploits a parser then finds no other
file to read, no place to write to, no network and no other process.

Landlock refuses files by their place, seccomp refuses system calls. Neither needs a privilege, and neither can be
undone. Where the system has only one of them, or none, `gap` says so.
"""

import ctypes
import logging
import os
import resource
import struct
import sys
from collections.abc import Iterable
from functools import cache

import msgspec

from penstock import errors
from penstock.worker.parsers import filters

FONTS = ("/usr/share/fonts", "/usr/share/X11/fonts/Type1", "/usr/share/X11/fonts/TTF", "/usr/local/share/fonts")
"""Where PDFium looks for fonts that a document names but does not hold: widths, and so spaces, depend on them."""

_LIBRARIES, _PACKAGES = ("lib", "lib64"), ("site-packages", "dist-packages")
_SHARED = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache")
_OPEN_FILES = 64

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 38, 22
_SECCOMP_FILTER, _SECCOMP_ACTION_AVAILABLE = 2, 2

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_PATH_BENEATH = 1


class IsolationError(Exception):
    """What the system offers could not be had all the same."""


def gap() -> str | None:
    """What this system cannot keep from a parser process, as a sentence; None: nothing."""
    missing = []
    if not _landlock_version():
        missing.append("Landlock (files)")
    if _filter() is None:
        missing.append("seccomp filter for this machine (network, processes)")
    if not missing:
        return None
    return (
        f"parser processes are not fully isolated, because this system has no {' and no '.join(missing)}: "
        "a file that exploits a parser could reach what this user can reach"
    )


@cache
def warn_of_gap() -> None:
    """Said once, by whoever first starts parser processes."""
    if sentence := gap():
        logging.getLogger("penstock").warning(sentence)


def code_folders() -> list[str] | None:
    """Where Python finds what it loads late, codecs among it: folders that hold code alone. None: there are no such."""
    library = os.path.dirname(os.path.dirname(os.__file__))
    packages = os.path.dirname(os.path.dirname(msgspec.__file__))
    if os.path.basename(library) not in _LIBRARIES or os.path.basename(packages) not in _PACKAGES:
        return None
    return [library, packages, os.path.dirname(errors.__file__), *_SHARED]


def isolate(readable: Iterable[str]) -> None:
    """From now on this process reads what it is handed, what stands below `readable`, Python's own library and the
    fonts; and it answers."""
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):
        _, hard = resource.getrlimit(limit)
        lower = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (lower, lower))
    if sys.platform != "linux":
        return
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if version := _landlock_version():
        _restrict_files(version, (os.path.dirname(os.__file__), *FONTS, *readable))
    if program := _filter():
        _restrict_calls(program)


def _restrict_files(version: int, readable: Iterable[str]) -> None:
    """Everything that this version of Landlock can refuse is refused, but for reading below `readable`."""
    files = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    network = 0b11 if version >= 4 else 0
    other_processes = 0b11 if version >= 6 else 0
    length = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _checked(_CREATE_RULESET, struct.pack("=QQQ", files, network, other_processes)[:length], length, 0)
    try:
        for place in readable:
            try:
                opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                rights = _READ_FILE | _READ_FOLDER if os.path.isdir(place) else _READ_FILE
                _checked(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, opened), 0)
            finally:
                os.close(opened)
        _checked(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _restrict_calls(program: bytes) -> None:
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a count, and where the instructions are.
    pointer = struct.pack("@HP", len(program) // filters.INSTRUCTION.size, ctypes.addressof(instructions))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, pointer)


def _landlock_version() -> int:
    """0: the kernel has no Landlock, or it is switched off."""
    return max(_syscall(_CREATE_RULESET, None, 0, 1), 0) if sys.platform == "linux" else 0


def _filter() -> bytes | None:
    """The filter for this machine, if there is one and the kernel takes it."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or sys.byteorder != "little":
        return None
    machine = os.uname().machine
    if machine not in filters.MACHINES:
        return None
    refusing = struct.pack("=I", filters.REFUSE)
    if _syscall(filters.MACHINES[machine].seccomp, _SECCOMP_ACTION_AVAILABLE, 0, refusing) != 0:
        return None
    return filters.program(machine, os.getpid())


def _prctl(option: int, *arguments: int | bytes) -> None:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *map(_word, padded)) != 0:
        raise IsolationError(f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def _checked(number: int, *arguments: int | bytes | None) -> int:
    answer = _syscall(number, *arguments)
    if answer < 0:
        raise IsolationError(f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return answer


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    answer: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *map(_word, arguments))
    return answer


def _word(value: int | bytes | None) -> ctypes.c_char_p | ctypes.c_ulong:
    return ctypes.c_ulong(value) if isinstance(value, int) else ctypes.c_char_p(value)
