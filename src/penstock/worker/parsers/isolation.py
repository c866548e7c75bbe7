"""Removes all rights from a parser process that reading a document does not need. A file that exploits a parser then
cannot read or write other files, use the network or reach another process.

Landlock refuses files by path, seccomp refuses system calls. Neither needs a privilege, and neither can be undone. If
the system lacks one or both, `gap` says so.
"""

import ctypes
import logging
import os
import resource
import struct
import sys
from collections.abc import Callable, Collection, Iterable
from functools import cache

import msgspec

from penstock import errors
from penstock.worker.parsers import filters

FONTS = ("/usr/share/fonts", "/usr/share/X11/fonts/Type1", "/usr/share/X11/fonts/TTF", "/usr/local/share/fonts")
"""Where PDFium looks for fonts that a document names but does not contain. Widths, and therefore spaces, depend on
them."""

_LIBRARIES, _PACKAGES = ("lib", "lib64"), ("site-packages", "dist-packages")
_SHARED = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache")
_OPEN_FILES = 64

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 38, 22
_SECCOMP_FILTER, _SECCOMP_ACTION_AVAILABLE = 2, 2
_SECCOMP_SET_FILTER = 1

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_PATH_BENEATH = 1


class IsolationError(Exception):
    """A protection that the system offers could not be enabled."""


def gap() -> str | None:
    """Return a sentence about the protections that this system lacks, or None if it has all."""
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
    """Log the gap once for each process."""
    if sentence := gap():
        logging.getLogger("penstock").warning(sentence)


def code_folders() -> list[str] | None:
    """Return the folders from which Python loads modules later, such as codecs. They contain only code. Return None if
    there are no such folders."""
    library = os.path.dirname(os.path.dirname(os.__file__))
    packages = os.path.dirname(os.path.dirname(msgspec.__file__))
    if os.path.basename(library) not in _LIBRARIES or os.path.basename(packages) not in _PACKAGES:
        return None
    return [library, packages, os.path.dirname(errors.__file__), *_SHARED]


def isolate(readable: Iterable[str], executable: Collection[str] = ()) -> None:
    """Isolate this process. From now on it can read the files that it receives, the paths below `readable`, Python's
    library and the fonts, and it can write its answers. It can execute the files in `executable`, and no others; these
    inherit the isolation."""
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):
        if executable and limit == resource.RLIMIT_NPROC:
            continue  # It counts all processes of the user. `alone` is the limit of the program.
        _, hard = resource.getrlimit(limit)
        lower = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (lower, lower))
    if sys.platform != "linux":
        return
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if version := _landlock_version():
        _restrict_files(version, (os.path.dirname(os.__file__), *FONTS, *readable), executable)
    if program := _filter(executes=bool(executable)):
        _restrict_calls(program)


def _restrict_files(version: int, readable: Iterable[str], executable: Iterable[str]) -> None:
    """Refuse everything that this version of Landlock can refuse, except reading below `readable`, and executing the
    files in `executable`."""
    files = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    network = 0b11 if version >= 4 else 0
    other_processes = 0b11 if version >= 6 else 0
    length = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _checked(_CREATE_RULESET, struct.pack("=QQQ", files, network, other_processes)[:length], length, 0)
    try:
        places = [(place, _READ_FILE | _READ_FOLDER) for place in readable]
        places += [(place, _READ_FILE | _EXECUTE) for place in executable]
        for place, rights in places:
            try:
                opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                rights = rights if os.path.isdir(place) else rights & ~_READ_FOLDER
                _checked(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, opened), 0)
            finally:
                os.close(opened)
        _checked(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _restrict_calls(program: bytes) -> None:
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, and a pointer to them.
    pointer = struct.pack("@HP", len(program) // filters.INSTRUCTION.size, ctypes.addressof(instructions))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, pointer)


def alone() -> Callable[[], None]:
    """Return a function for the moment between fork and exec: the program that is executed can start no other process
    and no thread. Everything that allocates is done now."""
    if _filter() is None:
        return lambda: None
    machine = os.uname().machine
    program = filters.alone(machine)
    instructions = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("@HP", len(program) // filters.INSTRUCTION.size, ctypes.addressof(instructions))
    number, words = filters.MACHINES[machine].seccomp, [_word(value) for value in (_SECCOMP_SET_FILTER, 0, pointer)]
    library = ctypes.CDLL(None, use_errno=True)

    def restrict() -> None:
        # `instructions` must exist until here.
        if library.syscall(ctypes.c_long(number), *words) != 0 or not instructions:
            raise IsolationError("the filter for the program could not be enabled")

    return restrict


def _landlock_version() -> int:
    """Return the version, or 0 if the kernel has no Landlock or it is disabled."""
    return max(_syscall(_CREATE_RULESET, None, 0, 1), 0) if sys.platform == "linux" else 0


def _filter(*, executes: bool = False) -> bytes | None:
    """Return the filter for this machine, or None if there is none or the kernel does not support it."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or sys.byteorder != "little":
        return None
    machine = os.uname().machine
    if machine not in filters.MACHINES:
        return None
    refusing = struct.pack("=I", filters.REFUSE)
    if _syscall(filters.MACHINES[machine].seccomp, _SECCOMP_ACTION_AVAILABLE, 0, refusing) != 0:
        return None
    return filters.program(machine, os.getpid(), executes=executes)


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
