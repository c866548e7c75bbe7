"""Claims: which queues a worker claims from, how many steps, and the locks that come with them."""

import asyncio
from collections.abc import Awaitable, Hashable, Sequence
from typing import TypeVar

from penstock import user_code
from penstock.errors import TableFailed
from penstock.ledger.database import notifier
from penstock.ledger.engine import claims, locks, resource_keys, targets, work
from penstock.ledger.engine.documents import Live
from penstock.model.nouns import Lease, Step, StepId, Token
from penstock.runtime import shielded
from penstock.worker.pools import BRIEF_DOCUMENT, Pool, Pools
from penstock.worker.running import Running
from penstock.worker.services import WorkerServices
from penstock.workflows.load import decode

T = TypeVar("T")

LINGER_S = 0.003
LOOKS_AT_ALL = 30
"""One in this many reads of the workflow snapshots reads all of them, not only the new ones."""
GROUP = 64
"""How many steps of a group are claimed at once."""

Found = dict[StepId, Live | None]
"""The documents that were read together with the claims of their first steps."""


class Claiming:
    def __init__(self, services: WorkerServices, running: Running, pools: Pools) -> None:
        self.pools = pools
        self.claimed_once = False
        """Whether this worker has claimed a step. Each call claims at least once, whatever its budget."""
        self._services = services
        self._running = running
        self._keyed_queues = set(services.grouped)
        """Queues whose steps may have resource keys."""
        self._learned_until, self._looks = 0.0, 0
        self._learned: set[str] = set()
        """The workflow snapshots whose pools and resource keys are known."""

    @property
    def queues(self) -> tuple[str, ...]:
        """All queues that this worker can claim from."""
        return tuple(queue for pool in self.pools.claiming for queue in pool.queues)

    @property
    def open_queues(self) -> tuple[str, ...]:
        """The queues among `queues` in which not every step waits for a target."""
        return self._services.targets.open(self.queues)

    async def learn(self) -> bool:
        """Read which pools and resource keys the workflows of the ledger name. Return whether there is anything new for
        this worker."""
        before = (self.queues, len(self._keyed_queues))
        # If a clock was set back, new snapshots look old. Therefore all are read from time to time.
        since = self._learned_until if self._looks % LOOKS_AT_ALL else 0.0
        self._looks += 1
        found, self._learned_until = await self._services.ledger.read(work.snapshots, since)
        new = [body for digest, body in found.items() if digest not in self._learned]
        self._learned |= set(found)
        for body in new:
            for step in decode(body).steps:
                self._services.targets.learn(step)
                if step.pool is not None:
                    self.pools.learn([step.queue])
                if step.resource_key is not None or step.kind in self._services.grouped:
                    self._keyed_queues.add(step.queue)
        return before != (self.queues, len(self._keyed_queues))

    async def claim(self) -> tuple[list[list[Step]], Found]:
        """Fill the pools. The steps of a group are claimed together and occupy one place. The places of all claimed
        steps are counted."""
        pools = self.pools.claiming
        single = [pool for pool in pools if not pool.grouped]
        free, size = (sum(pool.claimable for pool in single), sum(pool.size - pool.reserved for pool in single))
        if free and free < size // 2:
            # Several documents often end together: one claim for all of them is cheaper than one for each.
            await self._services.runtime.sleep(LINGER_S)
        if self._services.pools is not None:
            # A claim that finds nothing would briefly occupy places that the next steps of running runs could use.
            waiting = await self._services.ledger.read(notifier.claimable, self.open_queues)
            pools = [pool for pool in pools if waiting.intersection(pool.queues)]
        found: Found = {}
        if self._running.stopping:
            return [], found
        asking = [self._claim_for(pool, found) for pool in pools if pool.claimable > 0]
        answers = [await asking[0]] if len(asking) == 1 else await asyncio.gather(*asking)
        groups = [group for answer in answers for group in answer]
        self.claimed_once = self.claimed_once or bool(groups)
        return groups, found

    async def _claim_for(self, pool: Pool, found: Found) -> list[list[Step]]:
        """Fill one pool, beginning with steps that have a resource key. Its free places count as occupied during the
        claim, so that nothing else takes them."""
        services = self._services
        open_queues = services.targets.open(pool.queues)
        queues = tuple(queue for queue in open_queues if not self.claimed_once or services.budget.fits(queue))
        if not queues:
            return []
        groups: list[list[Step]] = []
        free = pool.claimable
        pool.held += free
        try:
            for queue in sorted(self._keyed_queues.intersection(queues)):
                while len(groups) < free and (group := await self.claim_keyed(queue, pool.name)):
                    groups.append(group)
            unlocked = tuple(queue for queue in queues if self._may_lack_lock(queue))
            if len(groups) < free and unlocked:
                count = GROUP if pool.grouped else free - len(groups)
                token = Token(services.runtime.token())
                request = claims.ClaimRequest(services.worker, unlocked, count, token, services.lease_s)
                claimed = await self._measured(pool.name, services.ledger.write(claims.CLAIM, request))
                if pool.reserved and len(claimed) == count:
                    brief = await self._claim_brief(pool, unlocked, pool.reserved - count)
                    pool.held -= len(brief)  # They are counted with the others below.
                    claimed = [*claimed, *brief]
                groups += self.grouped(claimed)
                found |= {one.step.lease.step_id: one.document for one in claimed}
        finally:
            # Steps without a lock may form more groups than there are free places. All of them begin.
            pool.held -= free - len(groups)
        return groups

    async def _claim_brief(self, pool: Pool, queues: Sequence[str], count: int) -> list[claims.Claimed]:
        """Claim steps of small documents for the reserved places: an interrupted worker left more of them than there
        are other places, and they should share full calls."""
        waiting = await self._services.ledger.read(claims.waiting, queues, max(0, count))
        brief = [step.step for step in waiting if step.size <= BRIEF_DOCUMENT][: max(0, min(count, pool.free))]
        return await self.claim_these(pool, brief) if brief else []

    def _may_lack_lock(self, queue: str) -> bool:
        """Whether steps of this queue may be claimed without a lock."""
        stage = self._services.grouped.get(queue)
        return stage is None or stage.shared(self._services.ports)

    def grouped(self, claimed: Sequence[claims.Claimed]) -> list[list[Step]]:
        """Return the steps that are executed together: those of one kind, owner and group key. Steps of kinds without
        groups, and steps whose document was deleted, are alone."""
        groups: dict[Hashable, list[Step]] = {}
        for one in claimed:
            step, stage = one.step, self._services.grouped.get(one.step.kind)
            key: Hashable = step.lease.step_id
            if stage is not None and one.document is not None:
                key = (step.kind, step.owner, stage.group_key(*one.document))
            groups.setdefault(key, []).append(step)
        return list(groups.values())

    async def claim_these(self, pool: Pool, steps: list[StepId]) -> list[claims.Claimed]:
        """Claim steps by their ids. The places of the claimed steps are counted."""
        services = self._services
        pool.held += len(steps)
        claimed: list[claims.Claimed] = []
        try:
            request = claims.ClaimThese(
                services.worker, tuple(steps), Token(services.runtime.token()), services.lease_s
            )
            claimed = await self._measured(pool.name, services.ledger.write(claims.CLAIM_THESE, request))
        finally:
            pool.held -= len(steps) - len(claimed)
        return claimed

    async def claim_keyed(self, queue: str, pool: str) -> list[Step]:
        """Claim a free lock and the steps behind it: those of one group, or one step with a workflow's own key."""
        services = self._services
        token = Token(services.runtime.token())
        claim = claims.KeyedClaim(services.worker, queue, GROUP, token, services.lease_s)
        steps = await self._measured(pool, services.ledger.write(claims.CLAIM_KEYED, claim))
        for step in steps:
            assert step.lease.resource_key is not None
            self._running.heartbeat.locks[step.lease.resource_key] = token
        return steps

    async def release_lock(self, lease: Lease, failed: TableFailed | None = None) -> None:
        """Release the lock that came with the claim, if any. If `failed` is given, hold the table for a while."""
        if lease.resource_key is not None:
            self._running.heartbeat.locks.pop(lease.resource_key, None)
            if failed is not None:
                await shielded(self._pause(lease.resource_key, lease.token, failed))
                return
            self._services.targets.forget(lease.resource_key)
            await shielded(self._services.ledger.write(locks.RELEASE, (lease.resource_key, lease.token)))
            if lease.resource_key.startswith(resource_keys.OWN_KEYS):
                self._running.wake()
                self._services.ledger.notify_others()

    async def _pause(self, key: str, token: Token, error: TableFailed) -> None:
        services = self._services
        pause = targets.Pause(key, token, user_code.sentence(error), services.runtime.random(), error.retry_after)
        hold = await services.ledger.write(targets.PAUSE, pause)
        if hold is not None:
            services.metrics.incr("index_failed")
            services.targets.record(hold)
            services.notices.fails(key, error, "Its documents wait")

    async def _measured(self, pool: str, claim: Awaitable[list[T]]) -> list[T]:
        metrics, clock = self._services.metrics, self._services.runtime.clock
        began = clock()
        metrics.incr("claim_attempts", pool=pool)
        try:
            steps = await claim
        except Exception:
            metrics.incr("claim_error", pool=pool)
            raise
        finally:
            metrics.observe("claim_duration", clock() - began, pool=pool)
        if steps:
            metrics.incr("claim_success", len(steps), pool=pool)
        else:
            metrics.incr("claim_idle", pool=pool)
        return steps
