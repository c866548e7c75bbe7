"""Samples: what happened in each interval of time, in a fixed number of rows."""

from functools import partial

from tests.kit.ledger import ANNA, Desk

from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import samples
from penstock.ledger.engine.samples import WIDTHS, QueueSample, Sampled, StepSample
from penstock.model.nouns import Owner

AT = 1_800_000_000.0
BOB = Owner("bob")


def step(owner: Owner = ANNA, kind: str = "extract", seconds: float = 2.0) -> StepSample:
    return StepSample(owner, kind, 1, 0, 5, seconds, seconds)


async def test_samples_of_one_interval_are_added(ledger: Ledger) -> None:
    for seconds in (2.0, 4.0):
        await ledger.write(samples.KEEP_SAMPLES, Sampled(AT + seconds, (step(seconds=seconds), step(BOB))))
    for width in WIDTHS:
        slot = int(AT // width)
        [found] = await ledger.read(partial(samples.steps, ANNA), width, slot - 1)
        assert found == samples.StepSlot(slot, "extract", 2, 0, 10, 6.0, 4.0)


async def test_the_queue_is_as_it_was_until_it_is_sampled_again(ledger: Ledger) -> None:
    for at, waiting in ((AT, 9), (AT + 20, 3), (AT + 600, 1)):
        await ledger.write(samples.KEEP_SAMPLES, Sampled(at, (), (QueueSample(ANNA, waiting, 1, 50, 7),)))
    first = int(AT // 60)

    async def read(after: int) -> list[samples.QueueSlot]:
        return await ledger.read(lambda c: samples.queues(ANNA, c, 60, after))

    both = await read(first - 1)
    assert [(one.slot - first, one.waiting, one.most) for one in both] == [(0, 3, 10), (10, 1, 2)]
    later = await read(first + 5)
    assert [one.slot - first for one in later] == [0, 10]


async def test_there_is_a_fixed_number_of_samples(ledger: Ledger, desk: Desk) -> None:
    for minute in range(0, 400, 2):
        at = AT + 60 * minute
        await ledger.write(
            samples.KEEP_SAMPLES, Sampled(at, (step(), step(BOB)), (QueueSample(ANNA, minute, 1, 0, 0),))
        )
    for table in ("step_samples", "queue_samples"):
        for width, shown in WIDTHS.items():
            [[count]] = await desk.rows(f"SELECT count(*) FROM {table} WHERE owner = 'anna' AND width = {width}")
            assert 0 < count <= shown + samples.SPARE + 1
    [[count]] = await desk.rows("SELECT count(*) FROM queue_samples WHERE owner = 'anna' AND width = 60")
    assert count >= WIDTHS[60] // 2


async def test_the_queues_of_all_owners_are_counted(desk: Desk, ledger: Ledger) -> None:
    await desk.submit("/a", "/b", "/c")
    await desk.submit("/theirs", owner=BOB)
    await desk.claim(1)
    await desk.rows(
        "INSERT INTO usage (owner, model, day, kind, texts, characters, tokens, cost, unpriced) VALUES "
        "('anna', 'm', '2026-01-01', 'bought', 1, 1, 1, 40, 0), ('anna', 'm', '2026-01-01', 'cached', 1, 1, 1, 2, 0)"
    )
    found = {one.owner: one for one in await ledger.read(samples.standing)}
    assert found[ANNA].waiting + found[ANNA].working == 3
    assert (found[ANNA].spent, found[ANNA].saved) == (40, 2)
    assert found[BOB] == QueueSample(BOB, 1, 0, 0, 0) or found[BOB].working == 1
