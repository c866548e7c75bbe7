"""Typed pools: which steps a worker works on, and how many of them side by side. A step belongs to the pool that its
workflow names, else to the one of its kind: that word is its queue."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.errors import UsageError
from penstock.ledger.engine.claims import Waiting
from penstock.model.nouns import StepId
from penstock.workflows.read import is_pool_name

REST = "*"
"""The pool of every queue that no other pool names."""
MOST = 1000
SMALL_DOCUMENT = 512 << 10
"""Bytes of a document that probably is quick work."""
_EXAMPLE = "extract=2,embed=4,index=1,*=4"


def parse_pools(text: str, kinds: Iterable[str]) -> dict[str, int]:
    """`extract=2,*=4` → sizes by name. A size of 0: such steps are left to others. What is no kind is the name of
    a pool in somebody's workflow, unless it looks like a slip."""
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
    """The name of the pool that a queue belongs to, if it is worked on at all."""
    name = queue if queue in sizes else REST
    return name if sizes.get(name) else None


@dataclass(eq=False)
class Pool:
    name: str
    queues: tuple[str, ...]
    """Those it claims."""
    size: int
    held: int = 0
    left: int = 0
    """How many places were left so far."""

    @property
    def free(self) -> int:
        return self.size - self.held

    @property
    def beyond(self) -> int:
        """Places for newcomers, while all others are held: as many again."""
        return 2 * self.size - self.held

    def leave(self) -> None:
        self.held -= 1
        self.left += 1


class Pools:
    def __init__(self, sizes: Mapping[str, int], queues: Sequence[str]) -> None:
        """`queues`: all that a worker can claim, as far as it knows."""
        self._sizes = sizes
        self._by_name = {name: Pool(name, (), size) for name, size in sizes.items() if size}
        self.learn(queues)

    def learn(self, queues: Iterable[str]) -> None:
        """There are these queues as well."""
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

    def groups(self, kind: str) -> int:
        """How many groups at once, of a kind whose steps are claimed many at a time: one, where it has no own pool."""
        name = pool_of(kind, self._sizes)
        return 0 if name is None else self._sizes[name] if name == kind else 1


class Place:
    """What a claimed run holds in a pool. With a step that is claimed along it moves on to the next pool, if there is
    room."""

    def __init__(self, pools: Pools, queue: str) -> None:
        pool = pools.of(queue)
        assert pool is not None
        self._pools = pools
        self._pool = pool
        self._next: Pool | None = None
        self.refused = False
        """There was no room for the next step here."""

    def reach(self, queue: str) -> bool:
        """Take a place for the next step; False where there is none."""
        pool = self._pools.of(queue)
        if pool is not self._pool:
            if pool is None or pool.free <= 0:
                self.refused = True
                return False
            pool.held += 1
        self._next = pool
        return True

    def move(self, claimed: bool) -> bool:
        """The step has ended, and the next one was `claimed` along or not. Whether there is room now where was none."""
        before, following = self._pool, self._next
        self._next = None
        if following is None or following is before:
            return False
        if claimed:
            self._pool = following
        (before if claimed else following).leave()
        return True

    def leave(self) -> None:
        self._pool.leave()


def newcomers(waiting: Iterable[Waiting], owners: Collection[str], count: int) -> list[StepId]:
    """Which steps to let in where long runs hold all places: the first of each owner who has nothing in hand, then
    those of small documents."""
    steps = list(waiting)
    first = {step.owner: step.step for step in reversed(steps) if step.owner not in owners}
    small = [step.step for step in steps if step.size <= SMALL_DOCUMENT and step.step not in first.values()]
    return [*first.values(), *small][:count]
