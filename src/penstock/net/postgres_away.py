"""A PostgreSQL server that is not available: how its errors differ from those of a statement, how a connection that
hangs is detected, and the network settings of a connection."""

import os
import re
import socket
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from penstock.runtime import Runtime

HANG_S = 10.0
"""If a statement takes longer than this, the watchdog checks whether the server still answers."""
LOOK_S = 1.0
PROBE_S = 5

# The URL and libpq's environment variables override these.
_DEFAULTS = {
    "connect_timeout": ("10", "PGCONNECT_TIMEOUT"),
    "application_name": ("penstock", "PGAPPNAME"),
    "keepalives_idle": ("10", ""),
    "keepalives_interval": ("5", ""),
    "keepalives_count": ("3", ""),
    "tcp_user_timeout": ("20000", ""),
}

_AWAY_CLASSES = ("080", "53", "57P", "58")
"""Connection lost; disk, memory or connections used up; shutting down or starting; the server's own disk fails."""
_AWAY_CODES = (
    "25006",  # read only: a server that was demoted
    "25P03",  # idle in transaction: we were stopped, and the server ended it
    "57014",  # cancelled: statement_timeout
)
_OURS = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|"
    r'(database|role) ".*" does not exist|invalid (connection option|integer value|port)|permission denied for database'
)


def is_away(sqlstate: str | None) -> bool:
    """Whether the error means that the server refuses every statement for now."""
    return sqlstate is not None and (sqlstate in _AWAY_CODES or sqlstate.startswith(_AWAY_CLASSES))


def is_misconfigured(sentence: str) -> bool:
    """Whether a refused connection means that the URL is wrong. libpq gives no error code for that, so this goes by the
    message. An unknown message counts as an outage."""
    return bool(_OURS.search(sentence))


def with_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Connection parameters, with our defaults for what is not given."""
    ours = {name: value for name, (value, variable) in _DEFAULTS.items() if variable not in os.environ}
    return {**ours, **given}


class Watched(Protocol):
    busy_since: float | None

    def cut(self) -> None: ...


class Watchdog:
    """Ends statements that wait for a server that hangs. TCP detects a machine that is gone, but a server that is
    stopped keeps its connections open, and a statement would wait for ever."""

    def __init__(self, parameters: Mapping[str, Any], runtime: Runtime) -> None:
        self._runtime = runtime
        self._parameters = {**parameters, "connect_timeout": PROBE_S}
        self._lock = threading.Lock()
        self._connections: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, connection: Watched) -> None:
        with self._lock:
            self._connections.add(connection)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="penstock-watch", daemon=True)
                self._thread.start()

    def remove(self, connection: Watched) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _work(self) -> None:
        clock = self._runtime.clock
        next_probe = clock()
        while True:
            self._runtime.block(LOOK_S)
            with self._lock:
                connections = list(self._connections)
                if not connections:
                    self._thread = None
                    return
            hung = [c for c in connections if c.busy_since is not None and clock() - c.busy_since > HANG_S]
            if hung and clock() >= next_probe:
                next_probe = clock() + HANG_S
                if not self._answers():
                    for connection in hung:
                        connection.cut()

    def _answers(self) -> bool:
        """Whether the server accepts a new connection, or refuses it with a reason."""
        import psycopg

        try:
            psycopg.connect(**self._parameters).close()
        except psycopg.errors.ConnectionTimeout:
            return False
        except psycopg.Error:
            pass
        return True


def cut(descriptor: int, how: int = socket.SHUT_RDWR) -> None:
    """Called from another thread: shut the socket down, so that its reader gets the end of the stream."""
    with socket.socket(fileno=os.dup(descriptor)) as ours:
        try:
            ours.shutdown(how)
        except OSError:
            return
