"""Typed pools: which steps a worker executes, and how many of them at the same time. The queue of a step is the pool
that its workflow names, or else its kind."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.errors import UsageError
from penstock.ledger.engine.claims import Waiting
from penstock.model.nouns import StepId
from penstock.workflows.read import is_pool_name

REST = "*"
"""The pool of all queues that no other pool names."""
MOST = 1000
SMALL_DOCUMENT = 512 << 10
"""A document of at most this many bytes counts as small."""
BRIEF_DOCUMENT = 16 << 10
"""A document of at most this many bytes may wait for others in an additional place."""
_EXAMPLE = "extract=2,embed=4,index=1,*=4"


def parse_pools(text: str, kinds: Iterable[str]) -> dict[str, int]:
    """Parse `extract=2,*=4` into sizes by name. Size 0 means that this worker leaves such steps to others. A name that
    is not a kind is a pool that a workflow names, unless it resembles a kind so much that it is probably a typing
    error. Raises `UsageError`."""
    known = tuple(kinds)
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        if not name or not (number.isascii() and number.isdecimal() and int(number) <= MOST):
            raise UsageError(f"pools {text!r}: {part.strip()!r} is not NAME=NUMBER (0 to {MOST}), as in {_EXAMPLE}")
        if name != REST and name not in known and (not is_pool_name(name) or get_close_matches(name, known, 1, 0.75)):
            raise UsageError(
                f"pools {text!r}: there is no kind of step {name!r}. Use {', '.join(known)}, * for the rest, "
                "or a pool that a workflow names"
            )
        if name in sizes:
            raise UsageError(f"pools {text!r}: {name} is named twice")
        sizes[name] = int(number)
    if not any(sizes.values()):
        raise UsageError(f"pools {text!r}: all pools have size 0")
    return sizes


def pool_of(queue: str, sizes: Mapping[str, int]) -> str | None:
    """Return the name of the pool that a queue belongs to, or None if this worker does not execute its steps."""
    name = queue if queue in sizes else REST
    return name if sizes.get(name) else None


@dataclass(eq=False)
class Pool:
    name: str
    queues: tuple[str, ...]
    """The queues that the pool claims from."""
    size: int
    grouped: bool = False
    """Its steps are claimed in groups. A group occupies one place."""
    reserved: int = 0
    """How many of the places are for runs of small documents whose next step is claimed with a completion."""
    held: int = 0
    left: int = 0
    """How often a place of this pool became free."""

    @property
    def free(self) -> int:
        return self.size - self.held

    @property
    def claimable(self) -> int:
        """How many steps may be claimed from the queues."""
        return max(0, self.free - self.reserved)

    @property
    def additional(self) -> int:
        """How many additional steps may be claimed while all places are occupied: as many as the pool has places."""
        return 2 * self.size - self.held

    def admits(self, size: int) -> bool:
        """Whether there is a place for the next step of a document of this size."""
        return self.free > (self.reserved if size > BRIEF_DOCUMENT else 0)

    def leave(self) -> None:
        self.held -= 1
        self.left += 1


class Pools:
    def __init__(
        self,
        sizes: Mapping[str, int],
        queues: Sequence[str],
        grouped: Collection[str] = (),
        small: Mapping[str, int] | None = None,
    ) -> None:
        """`queues` are the queues that the worker knows now. Those that are `grouped` have a pool of their own: of the
        given size, or else with one place, so that long runs in the pool of the rest do not block them. `small`:
        additional places for small documents, by pool."""
        self._sizes = {**sizes, **{kind: 1 for kind in grouped if pool_of(kind, sizes) == REST}}
        self._by_name = {name: Pool(name, (), size, name in grouped) for name, size in self._sizes.items() if size}
        for name, more in (small or {}).items():
            self._by_name[name].size += more
            self._by_name[name].reserved = more
        self.learn((*queues, *grouped))

    def learn(self, queues: Iterable[str]) -> None:
        """Add queues to their pools."""
        for queue in queues:
            pool = self.of(queue)
            if pool is not None and queue not in pool.queues:
                pool.queues += (queue,)

    @property
    def claiming(self) -> list[Pool]:
        return [pool for pool in self._by_name.values() if pool.queues]

    def of(self, queue: str) -> Pool | None:
        name = pool_of(queue, self._sizes)
        return self._by_name[name] if name is not None else None

    def name(self, queue: str) -> str:
        return pool_of(queue, self._sizes) or REST


class Place:
    """What a claimed run occupies in a pool. When the next step is claimed together with a completion, the run moves to
    the pool of that step, if it has a free place."""

    def __init__(self, pools: Pools, queue: str) -> None:
        pool = pools.of(queue)
        assert pool is not None
        self._pools = pools
        self._pool = pool
        self._next: Pool | None = None
        self.refused = False
        """The pool of the next step had no free place."""
        self._left_to_group = False

    def reach(self, queue: str, size: int) -> bool:
        """Reserve a place for the next step of a document of this size. Return False if there is none, or the step is
        claimed with its group."""
        pool = self._pools.of(queue)
        if pool is not None and pool.grouped:
            self._left_to_group = True
            return False
        if pool is not self._pool:
            if pool is None or not pool.admits(size):
                self.refused = True
                return False
            pool.held += 1
        self._next = pool
        return True

    def move(self, claimed: bool) -> bool:
        """Move to the reserved place if the next step was `claimed`, or else give the reservation back. Return whether
        a place became free, or a step waits to be claimed with its group."""
        before, following = self._pool, self._next
        left_to_group, self._left_to_group = self._left_to_group, False
        self._next = None
        if following is None or following is before:
            return left_to_group
        if claimed:
            self._pool = following
        (before if claimed else following).leave()
        return True

    def leave(self) -> None:
        self._pool.leave()


def additional_steps(waiting: Iterable[Waiting], owners: Collection[str], count: int) -> list[StepId]:
    """Choose the steps to claim in addition while long runs occupy all places: first one step of each owner without a
    running step, then steps of small documents."""
    steps = list(waiting)
    first = {step.owner: step.step for step in reversed(steps) if step.owner not in owners}
    small = [step.step for step in steps if step.size <= SMALL_DOCUMENT and step.step not in first.values()]
    return [*first.values(), *small][:count]
