"""A parser process in the hands of the file that it reads: it tries to get at everything and tells what it got."""

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, BinaryIO

from penstock.worker.parsers import child, isolation

REFUSED = {errno.EPERM, errno.EACCES, errno.ENOSYS}
_LIBC = ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: Any) -> int:
    answer: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if answer < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return answer


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(100)


def connect(family: int, kind: int, address: Any) -> str:
    with socket.socket(family, kind) as made:
        made.connect(address)
        made.send(b"secret")
        return "sent"


def forked() -> int:
    pid = os.fork()
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def started_thread() -> str:
    thread = threading.Thread(target=bool)
    thread.start()
    thread.join()
    return "ran"


def set_owner(parent: int) -> int:
    ends = os.pipe()
    return fcntl.fcntl(ends[0], fcntl.F_SETOWN, parent)


def attempts(home: str, port: int, numbers: dict[str, int]) -> dict[str, Callable[[], Any]]:
    parent, ledger = os.getppid(), f"{home}/ledger.db"
    loopback = ("127.0.0.1", port)
    return {
        "read the ledger": lambda: content(ledger),
        "read it through a link": lambda: content(f"/proc/self/root{ledger}"),
        "read a file of the system": lambda: content("/etc/passwd"),
        "read the parent's environment": lambda: content(f"/proc/{parent}/environ"),
        "read our own environment": lambda: content("/proc/self/environ"),
        "read the parent's memory": lambda: content(f"/proc/{parent}/mem"),
        "list the home": lambda: os.listdir(home),
        "list the parent's files": lambda: os.listdir(f"/proc/{parent}/fd"),
        "see where the parent's files lead": lambda: os.readlink(f"/proc/{parent}/fd/1"),
        "read by ptrace": lambda: syscall(numbers["ptrace"], 16, parent, 0, 0),
        "read by process_vm_readv": lambda: syscall(numbers["process_vm_readv"], parent, None, 0, None, 0, 0),
        "write a new file": lambda: open(f"{home}/new", "wb").close(),
        "write to the ledger": lambda: open(ledger, "r+b").close(),
        "write without a name": lambda: os.open(home, os.O_TMPFILE | os.O_WRONLY),
        "truncate the ledger": lambda: os.truncate(ledger, 0),
        "remove the ledger": lambda: os.unlink(ledger),
        "move the ledger": lambda: os.rename(ledger, f"{home}/moved"),
        "link the ledger": lambda: os.link(ledger, f"{home}/linked"),
        "make a folder": lambda: os.mkdir(f"{home}/folder"),
        "make a link": lambda: os.symlink(ledger, f"{home}/symlink"),
        "open up the ledger": lambda: os.chmod(ledger, 0o666),
        "date the ledger": lambda: os.utime(ledger),
        "mark the ledger": lambda: os.setxattr(ledger, "user.mark", b"x"),
        "fork": forked,
        "start a thread": started_thread,
        "run a program": lambda: os.execv("/bin/true", ["true"]),
        "start a program": lambda: subprocess.run(["/bin/true"]).returncode,
        "signal the parent": lambda: os.kill(parent, 0),
        "stop the parent": lambda: os.kill(parent, signal.SIGCONT),
        "signal its group": lambda: os.kill(0, 0),
        "signal everybody": lambda: os.kill(-1, 0),
        "signal a thread of it": lambda: syscall(numbers["tgkill"], parent, parent, 0),
        "signal by a descriptor": lambda: os.pidfd_open(parent),
        "signal by a file": lambda: set_owner(parent),
        "limit the parent": lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE),
        "slow the parent": lambda: os.setpriority(os.PRIO_PROCESS, parent, os.getpriority(os.PRIO_PROCESS, parent)),
        "connect by TCP": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, loopback),
        "send by UDP": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, loopback),
        "connect to a file": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, f"{home}/listening"),
        "connect to a name": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, f"\0penstock-{port}"),
        "listen": lambda: socket.create_server(("127.0.0.1", 0)),
        "talk to the kernel": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "use io_uring": lambda: syscall(425, 1, ctypes.create_string_buffer(120)),
        "outlive the parent": lambda: _LIBC.prctl(1, 0) and syscall(numbers["prctl"], 1, 0),
        "share memory": lambda: syscall(numbers["shmget"], 0, 4096, 0o1600),
    }


def hostile(document: BinaryIO, **where: Any) -> dict[str, Any]:
    outcome: dict[str, Any] = {"document": document.read()}
    for name, attempt in attempts(**where).items():
        try:
            outcome[name] = repr(attempt())
        except OSError as error:
            outcome[name] = None if error.errno in REFUSED else repr(error)
        except RuntimeError as error:
            outcome[name] = None if "start new thread" in str(error) else repr(error)
    outcome["descriptors"] = [
        os.readlink(f"/proc/self/fd/{number}") for number in range(256) if os.path.lexists(f"/proc/self/fd/{number}")
    ]
    return outcome


def busy() -> None:
    while True:
        pass


if __name__ == "__main__":
    without = os.environ.get("PYTHON_WITHOUT")
    if without == "landlock":
        isolation._landlock_version = lambda: 0
    if without == "seccomp":
        isolation._filter = lambda **_: None
    if without == "code":
        isolation.code_folders = lambda: None
    sys.modules["hostile"] = SimpleNamespace(read=hostile)  # type: ignore[assignment]
    sys.modules["busy"] = SimpleNamespace(read=busy)  # type: ignore[assignment]
    child.READERS |= {"hostile": "hostile", "busy": "busy"}
    child.main()
