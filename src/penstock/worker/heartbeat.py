"""Heartbeats and the reaper. The heartbeat runs on its own thread and extends all leases of the worker with one
statement."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable

from penstock.errors import LedgerTooNew, PenstockError
from penstock.ledger.database import versions, workers
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.liveness import Liveness
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import leasing
from penstock.metrics.base import Metrics
from penstock.model.nouns import Lease, StepId, Token, WorkerId
from penstock.model.states import DocumentStatus
from penstock.worker.activity import StepActivity

BEAT_S = 0.5
REGISTERED_BEATS = 4
"""How many heartbeats lie between two checks that the worker is still registered."""
RETURN_S = 3.0
"""After a lost connection, other workers may have lost theirs. They have this long to reconnect before they are
reaped."""


class Heartbeat:
    """Sends heartbeats while the worker lives, and reports lost leases and hanging steps to the event loop."""

    def __init__(
        self,
        ledger: Ledger,
        liveness: Liveness,
        worker: WorkerId,
        lease_s: float,
        lost: Callable[[set[Lease]], None],
        hanging: Callable[[set[StepId]], None] = lambda steps: None,
        outdated: Callable[[LedgerTooNew], None] = lambda error: None,
    ) -> None:
        """`outdated` is called if the ledger was migrated and this version is too old for it."""
        self.leases: dict[StepId, Lease] = {}
        self.locks: dict[str, Token] = {}
        self.lost_locks: set[Token] = set()
        self.activities: dict[StepId, StepActivity] = {}
        self._ledger = ledger
        self._liveness = liveness
        self.worker = worker
        self._name = workers.Worker(worker, socket.gethostname(), os.getpid())
        self._lease_s = lease_s
        self._lost = lost
        self._hanging = hanging
        self._outdated = outdated
        self._loop_lives = True
        self._stop = threading.Event()
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        database = self._ledger.database
        await database.runtime.run_blocking("read", database.outage_wait.call, self._connect)
        try:
            await self._ledger.write(workers.REGISTER, self._name)
            # No migration starts from here on. One may have happened before.
            await self._ledger.still_ours()
        except BaseException:
            await self.stop()
            raise
        self._thread = threading.Thread(target=self._work, name="penstock-heart", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        try:
            await self._ledger.write(leasing.LEAVE, self.worker)
        except PenstockError:
            # The next reaper finds that the liveness lock of this worker is free.
            return
        finally:
            self._liveness.leave(self.worker)
            if self._connection is not None:
                self._connection.close()

    def _connect(self) -> Connection:
        if self._connection is None:
            connection = self._ledger.database.connect(hot=True)
            try:
                self._liveness.hold(self.worker, connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _work(self) -> None:
        beats = 0
        while not self._stop.wait(min(BEAT_S, self._lease_s / 4)):
            beats += 1
            try:
                if self.leases or self.locks:
                    self._beat(self._connect())
                if beats % REGISTERED_BEATS == 0:
                    self._stay_registered(self._connect())
                    versions.still_ours(self._connect(), self._ledger.database)
            except LedgerTooNew as error:
                # Heartbeats continue for the steps that are being released.
                self._call(self._outdated, error)
            except Exception as error:
                # A failed heartbeat counts as missed: the lease decides, and the next heartbeat reconnects. If the
                # database was only busy, keep the connection: closing it would release the lock that shows that this
                # worker lives.
                if self._connection is None or not self._connection.is_busy(error):
                    self._drop()

    def _stay_registered(self, connection: Connection) -> None:
        """Register again if another worker removed this one after a lost connection. It continues under the same id,
        and others must be able to notice when it dies."""
        if not workers.is_known(connection, self.worker):
            workers.REGISTER.function(connection, [self._name])

    def _beat(self, connection: Connection) -> None:
        leases = tuple(self.leases.values())
        activities = tuple(self.activities.items())
        loop_lives, self._loop_lives = self._loop_lives, False
        self._call(self._live)
        told = [(step, activity, *activity.sign(step, loop_lives)) for step, activity in activities]
        locks = tuple(self.locks.items())
        signs = tuple(sign for _, _, sign, _ in told if sign is not None)
        beat = leasing.Beat(self.worker, leases, locks, signs, self._lease_s)
        failpoints = self._ledger.database.runtime.failpoints
        connection.begin()
        try:
            [beaten] = leasing.HEARTBEAT.function(connection, [beat])
            if failpoints.armed:
                failpoints.hit("ledger.heartbeat.before")
            connection.commit()
            if failpoints.armed:
                failpoints.hit("ledger.heartbeat.after")
        except BaseException:
            connection.rollback()
            raise
        for step, activity, _, news in told:
            if step not in beaten.passed:
                activity.recorded(news)
        gone = {token for key, token in locks if key not in beaten.locks}
        self.lost_locks |= gone
        # A lock belongs to the lease with the same token: if the lock is lost, so is the lease.
        behind = {lease for lease in leases if lease.resource_key is not None and lease.token in gone}
        lost = behind | {lease for lease in leases if lease.step_id not in beaten.alive}
        if lost:
            self._call(self._lost, lost)
        if hanging := {step for step, activity in activities if activity.overdue}:
            self._call(self._hanging, hanging)

    def _live(self) -> None:
        self._loop_lives = True

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _drop(self) -> None:
        if self._connection is not None and self._ledger.database.dialect == "postgres":
            try:
                self._connection.close()
            finally:
                self._connection = None


async def reap(
    ledger: Ledger, liveness: Liveness, worker: WorkerId, held: frozenset[StepId], crashes: int, metrics: Metrics
) -> int:
    """Reap the steps and locks of other workers: immediately if their liveness lock is free, else when their leases
    expire. Return the number of steps."""

    def find_dead(connection: Connection) -> list[WorkerId]:
        names = [row.id for row in workers.everyone(connection) if row.id != worker]
        return liveness.dead(names, connection)

    dead = await ledger.read(find_dead)
    lost_at = ledger.database.outage_wait.lost_at
    if lost_at is not None and ledger.database.runtime.clock() - lost_at < RETURN_S:
        return 0
    reaped = await ledger.write(leasing.REAP, leasing.Reap(held, tuple(dead), crashes))
    for kind in reaped.reset:
        metrics.incr("step_reset_by_reaper", kind=kind)
    for kind in reaped.failed:
        metrics.incr("step_failed", kind=kind)
        metrics.incr("failure", reason="crash_loop")
        metrics.incr("document_ended", status=DocumentStatus.FAILED)
    metrics.incr("worker_reaped", reaped.workers)
    metrics.incr("resource_lock_swept", reaped.locks)
    return reaped.steps
