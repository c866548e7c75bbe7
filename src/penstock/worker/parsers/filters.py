"""The system calls that a parser process may not make, as a program for the kernel's filter (seccomp).

The list contains what is refused, because C libraries differ in what they need. Calls that are newer than the list fail
as unknown, except for a few harmless ones: libraries can work without them.
"""

import errno
import os
import signal
import struct
from typing import NamedTuple

ALLOW, REFUSE = 0x7FFF0000, 0x00050000
INSTRUCTION = struct.Struct("=HBBI")

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""The offsets of the values that the kernel passes to the program."""


class Machine(NamedTuple):
    code: int
    column: int
    """The column of its numbers in `_REFUSED`, after the name."""
    seccomp: int
    foreign: int | None = None
    """Numbers from this one on belong to another interface, x32."""


MACHINES = {"x86_64": Machine(0xC000003E, 1, 317, 0x40000000), "aarch64": Machine(0xC00000B7, 2, 277)}

_REFUSED = {
    "network": (
        "socket 41 198, socketpair 53 199, connect 42 203, bind 49 200, listen 50 201, accept 43 202, "
        "accept4 288 242, sendto 44 206, sendmsg 46 211, sendmmsg 307 269, setsockopt 54 208"
    ),
    "processes": (
        "fork 57 -, vfork 58 -, clone 56 220, execve 59 221, execveat 322 281, ptrace 101 117, "
        "process_vm_readv 310 270, process_vm_writev 311 271, tkill 200 130, rt_sigqueueinfo 129 138, "
        "rt_tgsigqueueinfo 297 240, kcmp 312 272, unshare 272 97, setns 308 268, setsid 112 157, setpgid 109 154, "
        "setpriority 141 140, ioprio_set 251 30, sched_setscheduler 144 119, sched_setparam 142 118, "
        "sched_setattr 314 274, sched_setaffinity 203 122, migrate_pages 256 238, move_pages 279 239, "
        "personality 135 92, prctl 157 167"
    ),
    "files": (
        "creat 85 -, truncate 76 45, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, "
        "symlink 88 -, symlinkat 266 36, unlink 87 -, unlinkat 263 35, mkdir 83 -, mkdirat 258 34, rmdir 84 -, "
        "mknod 133 -, mknodat 259 33, chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -, lchown 94 -, "
        "fchown 93 55, fchownat 260 54, utime 132 -, utimes 235 -, utimensat 280 88, futimesat 261 -, "
        "setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, "
        "fremovexattr 199 16, name_to_handle_at 303 264, open_by_handle_at 304 265, inotify_init 253 -, "
        "inotify_init1 294 26, fanotify_init 300 262, memfd_create 319 279"
    ),
    "memory of others": (
        "shmget 29 194, shmat 30 196, shmctl 31 195, shmdt 67 197, msgget 68 186, msgsnd 69 189, msgrcv 70 188, "
        "msgctl 71 187, semget 64 190, semop 65 193, semctl 66 191, semtimedop 220 192, mq_open 240 180, "
        "mq_unlink 241 181, add_key 248 217, request_key 249 218, keyctl 250 219"
    ),
    "identity": (
        "setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143, setresuid 117 147, "
        "setresgid 119 149, setgroups 116 159, setfsuid 122 151, setfsgid 123 152, capset 126 91"
    ),
    "system": (
        "mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, swapon 167 224, swapoff 168 225, "
        "reboot 169 142, sethostname 170 161, setdomainname 171 162, init_module 175 105, finit_module 313 273, "
        "delete_module 176 106, kexec_load 246 104, kexec_file_load 320 294, bpf 321 280, "
        "perf_event_open 298 241, userfaultfd 323 282, io_setup 206 0, io_submit 209 2, quotactl 179 60, "
        "acct 163 89, syslog 103 116, settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, "
        "clock_adjtime 305 266, vhangup 153 58, iopl 172 -, ioperm 173 -, lookup_dcookie 212 18, uselib 134 -, "
        "_sysctl 156 -, modify_ldt 154 -"
    ),
}
"""Each call with its number on x86_64 and on aarch64. A dash means that it does not exist there."""

FIRST_NEW = 424
"""From this number on, a call has the same number on all machines. The first is pidfd_send_signal, the next
io_uring."""
_HARMLESS = (436, 439, 441, 449, 453, 454, 455, 456, 462)
"""close_range, faccessat2, epoll_pwait2, futex_waitv, map_shadow_stack, futex_wake, futex_wait, futex_requeue, mseal"""

_CLONE3 = 435

_SENDING = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: they make the kernel send signals on behalf of this process."""
_TYPING = (0x5412, 0x541C, 0x8901, 0x8902)
"""TIOCSTI, TIOCLINUX: they create input for the process that reads the terminal. FIOSETOWN, SIOCSPGRP: as above."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class _Rule(NamedTuple):
    """A call that is refused depending on 32 bits of one of its arguments."""

    x86_64: int | None
    aarch64: int | None
    argument: int
    only: int | None = None
    """The one value that is allowed."""
    never: tuple[int, ...] = ()
    bits: int = 0
    """The bits of which none may be set."""
    also: tuple[int, int] | None = None
    """Another argument, and the one value of it that is allowed."""


def _rules(pid: int) -> dict[str, _Rule]:
    return {
        "kill": _Rule(62, 129, 0, only=pid),
        "tgkill": _Rule(234, 131, 0, only=pid),
        "prlimit64": _Rule(302, 261, 0, only=0),
        "fcntl": _Rule(72, 25, 1, never=_SENDING),
        "ioctl": _Rule(16, 29, 1, never=_TYPING),
        "open": _Rule(2, None, 1, bits=_WRITING),
        "openat": _Rule(257, 56, 2, bits=_WRITING),
    }


_STARTING = ("fork", "vfork", "clone", "execve", "prctl")
"""The calls that are allowed to a process that executes another program. Landlock decides which one."""
_PR_SET_PDEATHSIG = 1
_NAMESPACES = 0x7E020000
"""The flags of clone that make new namespaces, as unshare does. In those a process would have rights of root."""


def refused(machine: str) -> dict[str, int]:
    """Return the numbers, by name, of the calls that are refused whatever their arguments."""
    calls = [call.split() for group in _REFUSED.values() for call in group.split(",")]
    column = MACHINES[machine].column
    return {call[0]: int(call[column]) for call in calls if call[column] != "-"}


def program(machine: str, pid: int, *, executes: bool = False) -> bytes:
    """Return the filter for the process `pid`, which may send signals only to itself. `executes`: it may start another
    program, which inherits the filter."""
    this = MACHINES[machine]
    no, unknown = (_RETURN, 0, 0, REFUSE | errno.EPERM), (_RETURN, 0, 0, REFUSE | errno.ENOSYS)
    code = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, this.code), no, (_LOAD, 0, 0, _NUMBER)]
    if this.foreign is not None:
        code += [(_AT_LEAST, 0, 1, this.foreign), no]
    calls = refused(machine)
    rules = list(_rules(pid).values())
    if executes:
        rules.append(_Rule(157, 167, 0, only=_PR_SET_PDEATHSIG, also=(1, signal.SIGKILL)))
        rules.append(_Rule(56, 220, 0, bits=_NAMESPACES))
        calls = {name: number for name, number in calls.items() if name not in _STARTING}
    for number in sorted(calls.values()):
        code += [(_EQUAL, 0, 1, number), no]
    for rule in rules:
        call = rule.x86_64 if machine == "x86_64" else rule.aarch64
        if call is not None:
            tests = _tests(rule, no)
            code += [(_EQUAL, 0, len(tests), call), *tests]
    for number in _HARMLESS:
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, ALLOW)]
    code += [(_AT_LEAST, 0, 1, FIRST_NEW), unknown, (_RETURN, 0, 0, ALLOW)]
    return b"".join(INSTRUCTION.pack(*instruction) for instruction in code)


def alone(machine: str) -> bytes:
    """Return the filter for a program that starts no process and no thread. It comes in addition to that of its
    parent, which checks the machine."""
    calls = refused(machine)
    code = [(_LOAD, 0, 0, _NUMBER), (_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, REFUSE | errno.ENOSYS)]
    for name in ("fork", "vfork", "clone"):
        if name in calls:
            code += [(_EQUAL, 0, 1, calls[name]), (_RETURN, 0, 0, REFUSE | errno.EPERM)]
    code.append((_RETURN, 0, 0, ALLOW))
    return b"".join(INSTRUCTION.pack(*instruction) for instruction in code)


def _tests(rule: _Rule, no: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    tests = [(_LOAD, 0, 0, _ARGUMENTS + 8 * rule.argument)]
    if rule.only is not None:
        tests += [(_EQUAL, 1, 0, rule.only), no]
    for value in rule.never:
        tests += [(_EQUAL, 0, 1, value), no]
    if rule.bits:
        tests += [(_ANY_BIT, 0, 1, rule.bits), no]
    if rule.also is not None:
        argument, value = rule.also
        tests += [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_EQUAL, 1, 0, value), no]
    return [*tests, (_RETURN, 0, 0, ALLOW)]
