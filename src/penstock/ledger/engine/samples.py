"""Samples: what happened in each interval of time, and how the queue stood. There is a fixed number of them for each
owner, however long the history: some minutes, then coarser ones. A worker that is killed loses what it counted in its
last ten seconds; nothing but plots uses them."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import Owner
from penstock.model.states import WORKING, DocumentStatus

WIDTHS = {60: 60, 1_200: 72, 10_800: 56}
"""The seconds of an interval, and how many are shown: an hour, a day and a week."""
SPARE = 2
"""Older intervals that are kept."""
DOCUMENT = "document"
"""The kind of the samples of documents that ended."""


class StepSample(msgspec.Struct, frozen=True):
    """Steps of one kind that ended, or documents, and what they made."""

    owner: Owner
    kind: str
    completed: int
    failed: int
    items: int
    seconds: float
    """How long the completed steps took together."""
    slowest: float


class QueueSample(msgspec.Struct, frozen=True):
    """How the queue of an owner stands, and what it has spent and saved so far, in billionths of a US dollar."""

    owner: Owner
    waiting: int
    working: int
    spent: int
    saved: int


class Sampled(msgspec.Struct, frozen=True):
    at: float
    steps: tuple[StepSample, ...] = ()
    queues: tuple[QueueSample, ...] = ()


_STEPS = Statement(
    "INSERT INTO step_samples (owner, width, slot, kind, completed, failed, items, seconds, slowest) "
    "SELECT r.tenant, r.width, r.slot, r.kind, r.completed, r.failed, r.items, r.seconds, r.slowest "
    "FROM {rows} WHERE true ON CONFLICT (owner, width, slot, kind) DO UPDATE SET "
    "completed = step_samples.completed + excluded.completed, failed = step_samples.failed + excluded.failed, "
    "items = step_samples.items + excluded.items, seconds = step_samples.seconds + excluded.seconds, "
    "slowest = CASE WHEN excluded.slowest > step_samples.slowest THEN excluded.slowest ELSE step_samples.slowest END",
    rows="tenant text, width int, slot bigint, kind text, completed bigint, failed bigint, items bigint, "
    "seconds float, slowest float",
)
_QUEUES = Statement(
    "INSERT INTO queue_samples (owner, width, slot, waiting, working, most, spent, saved) "
    "SELECT r.tenant, r.width, r.slot, r.waiting, r.working, r.waiting + r.working, r.spent, r.saved "
    "FROM {rows} WHERE true ON CONFLICT (owner, width, slot) DO UPDATE SET "
    "waiting = excluded.waiting, working = excluded.working, spent = excluded.spent, saved = excluded.saved, "
    "most = CASE WHEN excluded.most > queue_samples.most THEN excluded.most ELSE queue_samples.most END",
    rows="tenant text, width int, slot bigint, waiting bigint, working bigint, spent bigint, saved bigint",
)
_OLD_STEPS = Statement("DELETE FROM step_samples WHERE owner = :owner AND width = :width AND slot < :first")
# The newest sample before an interval is how the queue stood at its beginning.
_OLD_QUEUES = Statement(
    "DELETE FROM queue_samples WHERE owner = :owner AND width = :width AND slot < (SELECT max(s.slot) FROM "
    "queue_samples s WHERE s.owner = :owner AND s.width = :width AND s.slot <= :first)"
)


def _keep(connection: Connection, requests: Sequence[Sampled]) -> list[None]:
    for r in requests:
        for width, shown in sorted(WIDTHS.items()):
            slot = int(r.at // width)
            first = slot - shown - SPARE
            if steps := sorted((s.owner, width, slot, *msgspec.structs.astuple(s)[1:]) for s in r.steps):
                connection.run(_STEPS, steps)
            if queues := sorted((q.owner, width, slot, *msgspec.structs.astuple(q)[1:]) for q in r.queues):
                connection.run(_QUEUES, queues)
            for owner in sorted({s.owner for s in r.steps}):
                connection.run(_OLD_STEPS, owner=owner, width=width, first=first)
            for owner in sorted({q.owner for q in r.queues}):
                connection.run(_OLD_QUEUES, owner=owner, width=width, first=first)
    return [None for _ in requests]


KEEP_SAMPLES = Verb("keep_samples", _keep)

_IN = ", ".join(f"'{status}'" for status in WORKING)
_STANDING = Statement(
    "SELECT c.owner, (SELECT count(*) FROM documents d WHERE d.owner = c.owner AND d.deleted_at IS NULL "
    f"AND d.status = '{DocumentStatus.PENDING}'), (SELECT count(*) FROM documents d WHERE d.owner = c.owner "
    f"AND d.deleted_at IS NULL AND d.status IN ({_IN})), "
    "coalesce((SELECT sum(u.cost) FROM usage u WHERE u.owner = c.owner AND u.kind IN ('bought', 'query')), 0), "
    "coalesce((SELECT sum(u.cost) FROM usage u WHERE u.owner = c.owner AND u.kind IN ('cached', 'resumed')), 0) "
    "FROM (SELECT DISTINCT owner FROM collections) AS c"
)


def standing(connection: Connection) -> list[QueueSample]:
    """How the queues of all owners stand now."""
    rows = connection.run(_STANDING)
    return [QueueSample(Owner(row[0]), row[1], row[2], int(row[3]), int(row[4])) for row in rows]


class StepSlot(msgspec.Struct, frozen=True):
    """Steps of one kind in one interval."""

    slot: int
    kind: str
    completed: int
    failed: int
    items: int
    seconds: float
    slowest: float


class QueueSlot(msgspec.Struct, frozen=True):
    """The queue at the end of an interval."""

    slot: int
    waiting: int
    working: int
    most: int
    """The most documents that waited or were worked on at a time in it."""
    spent: int
    saved: int


_STEP_SLOTS = Statement(
    "SELECT slot, kind, completed, failed, items, seconds, slowest FROM step_samples "
    "WHERE owner = :owner AND width = :width AND slot > :first ORDER BY slot, kind"
)
_QUEUE_SLOTS = Statement(
    "SELECT slot, waiting, working, most, spent, saved FROM queue_samples "
    "WHERE owner = :owner AND width = :width AND slot >= coalesce((SELECT max(s.slot) FROM queue_samples s "
    "WHERE s.owner = :owner AND s.width = :width AND s.slot <= :first), 0) ORDER BY slot"
)


def steps(owner: Owner, connection: Connection, width: int, first: int) -> list[StepSlot]:
    """The samples of steps behind the interval `first`."""
    return [StepSlot(*row) for row in connection.run(_STEP_SLOTS, owner=owner, width=width, first=first)]


def queues(owner: Owner, connection: Connection, width: int, first: int) -> list[QueueSlot]:
    """The samples of the queue behind the interval `first`, and the one before them."""
    return [QueueSlot(*row) for row in connection.run(_QUEUE_SLOTS, owner=owner, width=width, first=first)]
