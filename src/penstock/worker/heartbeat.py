"""Keeping leases: a heartbeat on a thread of its own, one statement for all steps of the worker, and the reaper."""

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
KNOWN_BEATS = 4
"""Beats between two looks whether others still know us."""
RETURN_S = 3.0
"""After a connection was lost, others may have lost theirs: they have so long to come back before they are reaped."""


class Heartbeat:
    """Beats while the worker lives. What it finds lost, or hanging, it tells the loop."""

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
        """`outdated`: somebody has migrated the ledger, and we are too old for it."""
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
            # From here on nobody migrates; until here somebody may have.
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
            # Whoever comes next finds that nobody holds our lock.
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
                if beats % KNOWN_BEATS == 0:
                    self._stay_known(self._connect())
                    versions.still_ours(self._connect(), self._ledger.database)
            except LedgerTooNew as error:
                # It beats on, for what is handed over now.
                self._call(self._outdated, error)
            except Exception as error:
                # A beat that fails is a beat missed: the lease tells, and the next beat connects anew. Not where others
                # were in the way: with the connection goes the lock that tells that we live.
                if self._connection is None or not self._connection.is_busy(error):
                    self._drop()

    def _stay_known(self, connection: Connection) -> None:
        """Others bury who loses his connection; he lives on under his old name, and they must notice when he dies."""
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
                activity.tell(news)
        gone = {token for key, token in locks if key not in beaten.locks}
        self.lost_locks |= gone
        # The lock came with the lease, and goes with it.
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
    """Take back what the dead held: at once where their lock can be taken, else when their lease runs out."""

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
        metrics.incr("document_ended", status=DocumentStatus.FAILED)
    metrics.incr("worker_reaped", reaped.workers)
    metrics.incr("resource_lock_swept", reaped.locks)
    return reaped.steps
