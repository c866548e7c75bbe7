"""submit: new, again, changed, with idempotency keys, and the fair rank."""

import asyncio
import json
from typing import Any

import pytest
from tests.kit.ledger import ANNA, BERT, Desk, sha

from penstock.errors import UsageError
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import submissions, submits
from penstock.ledger.engine.submits import Submitted
from penstock.model.nouns import DocumentId, Step
from penstock.model.states import DocumentStatus
from penstock.runtime import Runtime


async def test_a_new_document_has_a_run_a_generation_and_its_first_step(desk: Desk) -> None:
    answer: Submitted = await desk.submit("/a")
    assert (answer.outcome, answer.status) == ("submitted", "PENDING")
    assert await desk.status(answer.document_id) == "PENDING"
    assert await desk.one("SELECT status, priority FROM runs") == ("OPEN", 0)
    assert await desk.one("SELECT state, written, sha256 FROM generations") == ("BUILDING", 0, sha("v1"))
    assert await desk.one("SELECT status, kind, position, epoch, attempts FROM steps") == (
        "PENDING", "extract", 0, 0, 0,
    )  # fmt: skip


async def test_many_documents_are_answered_in_order(desk: Desk) -> None:
    sources = [f"/{i}" for i in range(300)]
    answers = await desk.submit(*sources)
    stored: dict[str, str] = dict(await desk.rows("SELECT id, source FROM documents"))
    assert [stored[answer.document_id] for answer in answers] == sources


async def test_unfinished_documents_are_worked_on_when_submitted_again(desk: Desk) -> None:
    first = await desk.submit("/a")
    before = await desk.everything()
    again = await desk.submit("/a")
    assert (again.outcome, again.document_id) == ("resumed", first.document_id)
    assert await desk.everything() == before


async def test_a_completed_document_with_the_same_bytes_is_skipped(desk: Desk) -> None:
    step = await desk.flipped()
    again = await desk.submit("/a")
    assert (again.outcome, again.status, again.stale_settings) == ("skipped", "COMPLETED", False)
    other = await desk.submit("/a", settings="tomorrow")
    assert (other.outcome, other.stale_settings) == ("skipped", True)
    assert await desk.one("SELECT count(*) FROM generations") == 1
    assert await desk.status(step.document_id) == "COMPLETED"


async def test_i5_changed_bytes_supersede_the_unfinished_build(desk: Desk) -> None:
    step = await desk.started()
    changed = await desk.submit("/a", content="v2")
    assert (changed.outcome, changed.document_id) == ("submitted", step.document_id)
    assert await desk.rows("SELECT state, sha256 FROM generations ORDER BY id") == [
        ("SUPERSEDED", sha("v1")),
        ("BUILDING", sha("v2")),
    ]
    assert await desk.rows("SELECT status FROM runs ORDER BY generation_id") == [("CANCELLED",), ("OPEN",)]
    assert await desk.rows("SELECT status FROM steps ORDER BY generation_id") == [("CANCELLED",), ("PENDING",)]
    assert await desk.one("SELECT generation_id FROM purges") == step.generation_id
    assert not (await desk.complete(step)).took


async def test_i5_changed_bytes_leave_the_active_generation_searchable(desk: Desk) -> None:
    step = await desk.flipped()
    await desk.submit("/a", content="v2")
    assert await desk.rows("SELECT state FROM generations ORDER BY id") == [("ACTIVE",), ("BUILDING",)]
    assert await desk.status(step.document_id) == "PENDING"
    assert await desk.rows("SELECT * FROM purges") == []


async def test_a_failed_submission_changes_nothing_at_all(desk: Desk) -> None:
    await desk.started()
    before = await desk.everything()
    good, clash = desk.document("/a", "v2"), desk.document("/b")
    bad = desk.submission(good, submissions.NewDocument(clash.id, good.run_id, "/b", "b", sha("v1"), 2, "k", {}))
    with pytest.raises(Exception, match="refused submit"):
        await desk.ledger.write(submits.SUBMIT, bad)
    assert await desk.everything() == before


@pytest.mark.parametrize("end", [DocumentStatus.NOT_INDEXABLE, "FAILED", "CANCELLED"])
async def test_what_ended_badly_is_skipped_unless_something_changed(desk: Desk, end: str) -> None:
    step = await _ended(desk, end)
    assert (await desk.submit("/a")).outcome == "skipped"
    assert await desk.status(step.document_id) == end
    with_settings = await desk.submit("/a", settings="tomorrow")
    assert with_settings.outcome == ("skipped" if end == "CANCELLED" else "submitted")
    assert await desk.one("SELECT count(*) FROM generations") == (1 if end == "CANCELLED" else 2)


@pytest.mark.parametrize("end", [DocumentStatus.NOT_INDEXABLE, "FAILED", "CANCELLED"])
async def test_what_ended_badly_is_tried_again_on_request(desk: Desk, end: str) -> None:
    step = await _ended(desk, end)
    answer = await desk.submit("/a", retry=True)
    assert answer.outcome == ("submitted" if end == "NOT_INDEXABLE" else "resumed")
    assert await desk.status(step.document_id) == "PENDING"
    # NOT_INDEXABLE ran to its end, so it takes a new run; the others go on with theirs.
    assert await desk.one("SELECT count(*) FROM runs") == (2 if end == "NOT_INDEXABLE" else 1)
    assert len(await desk.claim()) == 1


async def _ended(desk: Desk, end: str) -> Step:
    step = await desk.started()
    if end == "FAILED":
        assert await desk.fail(step)
    elif end == "CANCELLED":
        assert await desk.cancel(step.document_id)
    else:
        assert await desk.flip(step, DocumentStatus.NOT_INDEXABLE)
    return step


async def test_an_unchanged_file_that_changed_under_our_feet_wants_its_bytes(desk: Desk) -> None:
    await desk.submit("/a")
    before = await desk.everything()
    [answer] = await desk.ledger.write(submits.SUBMIT, desk.submission(desk.document("/a", "v2", stored=False)))
    assert answer.needs_bytes
    assert await desk.everything() == before


async def test_an_idempotency_key_gives_the_first_answer_again(desk: Desk) -> None:
    first, second = desk.document("/a", key="k"), desk.document("/elsewhere", key="k")
    [one] = await desk.ledger.write(submits.SUBMIT, desk.submission(first))
    [two] = await desk.ledger.write(submits.SUBMIT, desk.submission(second))
    assert (two.document_id, two.outcome) == (one.document_id, "skipped")
    assert await desk.one("SELECT count(*) FROM documents") == 1


async def test_an_idempotency_key_with_other_bytes_is_refused(desk: Desk) -> None:
    await desk.ledger.write(submits.SUBMIT, desk.submission(desk.document("/a", key="k")))
    before = await desk.everything()
    with pytest.raises(UsageError, match="'k' was used before with other bytes"):
        await desk.ledger.write(submits.SUBMIT, desk.submission(desk.document("/a", "v2", key="k")))
    assert await desk.everything() == before


async def test_an_idempotency_key_belongs_to_one_owner(desk: Desk) -> None:
    [one] = await desk.ledger.write(submits.SUBMIT, desk.submission(desk.document("/a", key="k")))
    [two] = await desk.ledger.write(submits.SUBMIT, desk.submission(desk.document("/a", "v2", key="k"), owner=BERT))
    assert two.outcome == "submitted"
    assert one.document_id != two.document_id


async def test_a_changed_document_that_comes_alone_changes_as_a_whole(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one is a single statement on PostgreSQL, and needs no transaction; this one does."""
    await desk.submit("/a")
    before = await desk.everything()

    def refuse(*args: Any, **more: Any) -> None:
        raise UsageError("on purpose")

    monkeypatch.setattr(submissions, "begin", refuse)
    with pytest.raises(UsageError, match="on purpose"):
        await desk.submit("/a", content="v2")
    assert await desk.everything() == before


async def test_i6_a_key_used_by_two_processes_at_once_makes_one_document(desk: Desk, second: Desk) -> None:
    # With the collection there, nothing else keeps them apart.
    await desk.submit("/first")
    desks = [desk, second] * 8
    orders = [d.submission(d.document(f"/{i}", key="k")) for i, d in enumerate(desks)]
    answers = await asyncio.gather(*(d.ledger.write(submits.SUBMIT, o) for d, o in zip(desks, orders, strict=True)))
    assert len({answer.document_id for [answer] in answers}) == 1
    assert await desk.one("SELECT count(*) FROM documents") == 2


async def test_i6_one_source_submitted_by_two_processes_at_once_is_one_document(desk: Desk, second: Desk) -> None:
    await desk.submit("/first")
    for round_ in range(20):
        pair = (f"/{round_}a", f"/{round_}b")
        answers = await asyncio.gather(*(d.submit(*pair) for d in [desk, second] * (1 + round_ % 3)))
        assert len({tuple(x.document_id for x in both) for both in answers}) == 1
    assert await desk.one("SELECT count(*) FROM documents") == 41
    assert await desk.one("SELECT count(*) FROM steps") == 41


@pytest.mark.parametrize("known", [False, True])
async def test_i6_a_submit_that_meets_another_s_unfinished_one_waits_for_it(
    postgres: str, runtime: Runtime, known: bool
) -> None:
    """On SQLite there is one writer at a time; on PostgreSQL two may be in the middle of the same document."""
    database = Database(postgres, runtime)
    desk = Desk(Ledger(database))
    await desk.submit("/a" if known else "/other")
    connection = database.connect(hot=True)
    connection.begin()
    [[first]] = submits.SUBMIT.function(connection, [desk.submission(desk.document("/a", "v2"))])
    waiting = asyncio.create_task(desk.submit("/a", content="v3"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    connection.commit()
    connection.close()
    second: Submitted = await waiting
    assert (second.document_id, second.outcome) == (first.document_id, "submitted")
    assert await desk.one("SELECT sha256 FROM documents WHERE source = '/a'") == sha("v3")
    assert await desk.one("SELECT count(*) FROM runs WHERE status = 'OPEN'") == (1 if known else 2)
    await desk.ledger.close()


async def test_i6_two_processes_that_change_one_document_leave_one_build(desk: Desk, second: Desk) -> None:
    await desk.submit("/a")
    await asyncio.gather(*(d.submit("/a", content=f"v{i}") for i, d in enumerate([desk, second] * 8)))
    assert await desk.one("SELECT count(*) FROM documents") == 1
    assert await desk.one("SELECT count(*) FROM generations WHERE state = 'BUILDING'") == 1
    assert await desk.one("SELECT count(*) FROM runs WHERE status = 'OPEN'") == 1
    newest = await desk.one("SELECT sha256 FROM generations ORDER BY id DESC LIMIT 1")
    assert await desk.one("SELECT sha256 FROM documents") == newest


async def test_metadata_survives_any_letters(desk: Desk) -> None:
    odd = {"title": 'quote " backslash \\ braces {} newline \n 日本 %s :name', "n": [1, None]}
    document = submissions.NewDocument(
        DocumentId("D" * 26), desk.document("/x").run_id, '/a"{},\\', 'a"{},\\NULL', sha("x"), 1, "k", odd
    )
    await desk.ledger.write(submits.SUBMIT, desk.submission(document))
    source, name, metadata = await desk.one("SELECT source, name, metadata FROM documents")
    assert (source, name, json.loads(metadata)) == ('/a"{},\\', 'a"{},\\NULL', odd)


@pytest.mark.parametrize("count", [1000])
async def test_an_owner_with_many_files_does_not_starve_one_with_three(desk: Desk, count: int) -> None:
    await desk.submit(*(f"/a{i}" for i in range(count)))
    first = await desk.claim(50)
    assert {step.owner for step in first} == {ANNA}
    await desk.submit("/b1", "/b2", "/b3", owner=BERT)
    following = await desk.claim(12)
    assert [step.owner for step in following].count(BERT) == 3


async def test_an_owner_who_was_idle_gains_no_credit(desk: Desk) -> None:
    await desk.submit("/b0", owner=BERT)
    await desk.claim(1)
    await desk.submit(*(f"/a{i}" for i in range(100)))
    await desk.claim(100)
    await desk.submit(*(f"/a{i}" for i in range(100, 200)))
    await desk.submit(*(f"/b{i}" for i in range(1, 101)), owner=BERT)
    owners = [step.owner for step in await desk.claim(40)]
    assert 15 <= owners.count(BERT) <= 25
