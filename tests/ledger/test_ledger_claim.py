"""claim and complete: one owner per step, in order, and chained in one transaction."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.kit.ledger import ANNA, BERT, Desk, output

from penstock.ledger.database import notifier
from penstock.ledger.database.statements import NOW
from penstock.ledger.engine import claims, completions, documents, leasing, releases, submissions
from penstock.model.nouns import Lease, Step, StepId, Token, WorkerId


async def test_i2_a_claim_sets_a_fresh_token_and_a_higher_epoch(desk: Desk) -> None:
    step = await desk.started()
    assert step.lease.epoch == step.attempts == 1
    assert await desk.step(step, "status, lease_token, worker_id, epoch, attempts") == (
        "RUNNING", step.lease.token, "w1", 1, 1,
    )  # fmt: skip
    assert await desk.reap("w1") == 1
    [again] = await desk.claim(worker="w2")
    assert again.lease.step_id == step.lease.step_id
    assert again.lease.epoch == 2
    assert again.lease.token != step.lease.token
    assert (again.attempts, again.crashes) == (2, 1)


async def test_i2_two_claimers_never_get_the_same_step(desk: Desk, second: Desk) -> None:
    await desk.submit(*(f"/{i}" for i in range(200)))
    claims = await asyncio.gather(*(d.claim(7) for d in [desk, second] * 20))
    ids = [step.lease.step_id for steps in claims for step in steps]
    assert len(ids) == len(set(ids)) == 200
    assert len({step.lease.token for steps in claims for step in steps}) == len([steps for steps in claims if steps])


async def test_i2_a_lease_uses_the_clock_of_the_database(desk: Desk) -> None:
    step = await desk.started(lease_s=30.0)
    left = await desk.step(step, f"lease_until - {NOW[desk.ledger.database.dialect]}")
    assert 29.0 < left <= 30.0


async def test_a_running_step_is_not_claimed_again(desk: Desk) -> None:
    await desk.started()
    assert await desk.claim(10) == []


async def test_a_claim_takes_only_its_kinds(desk: Desk) -> None:
    await desk.submit("/a")
    assert await desk.claim(10, "chunk", "embed") == []
    assert len(await desk.claim(10, "chunk", "extract", "embed")) == 1


async def test_higher_priority_goes_first_then_rank(desk: Desk) -> None:
    await desk.submit("/1", "/2")
    await desk.submit("/urgent", priority=5)
    await desk.submit("/later", priority=-5)
    await desk.submit("/3")
    documents: dict[str, str] = dict(await desk.rows("SELECT id, source FROM documents"))
    claimed = [documents[step.document_id] for step in await desk.claim(10)]
    assert claimed == ["/urgent", "/1", "/2", "/3", "/later"]


async def test_priority_holds_over_several_kinds(desk: Desk) -> None:
    for step in [await desk.started("/1"), await desk.started("/2")]:
        await desk.complete(step, "chunk")
    await desk.submit("/3", priority=1)
    await desk.submit("/4", priority=-1)
    steps = await desk.claim(3, "extract", "chunk", "embed")
    assert [(step.priority, step.kind) for step in steps] == [(1, "extract"), (0, "chunk"), (0, "chunk")]


async def test_a_claim_shows_the_document_at_work(desk: Desk) -> None:
    step = await desk.started()
    assert await desk.status(step.document_id) == "EXTRACTING"


async def test_a_claim_comes_with_its_documents_as_they_are_from_then_on(desk: Desk) -> None:
    await desk.submit("/a", "/b", "/c")
    ids: dict[str, Any] = dict(await desk.rows("SELECT source, id FROM documents"))
    await desk.rows(f"UPDATE documents SET deleted_at = 1 WHERE id = '{ids['/b']}'")
    request = claims.ClaimRequest(WorkerId("w1"), ("extract",), 9, desk.token(), 60.0)
    claimed = await desk.ledger.write(claims.CLAIM, request)
    assert [one.document is not None for one in claimed] == [True, False, True]
    steps = [(one.step.document_id, one.step.generation_id) for one in claimed]
    looked_up = await desk.ledger.read(documents.live, steps)
    came_along = {one.step.generation_id: one.document for one in claimed if one.document}
    # But for the moment of the change itself.
    for found in (came_along, looked_up):
        found |= {i: (msgspec.structs.replace(d, updated_at=0.0), g) for i, (d, g) in found.items()}
    assert came_along == looked_up
    assert {document.status for document, _ in looked_up.values()} == {"EXTRACTING"}


async def test_a_custom_kind_does_not_change_what_the_document_shows(desk: Desk) -> None:
    answer = await desk.submit("/a", first=submissions.FirstStep("mine", "custom"))
    [step] = await desk.claim(1, "custom")
    assert await desk.status(answer.document_id) == "PENDING"
    await desk.complete(step, "embed", chain=True)
    assert await desk.status(answer.document_id) == "EMBEDDING"


async def test_a_chain_completes_and_claims_the_next_step(desk: Desk) -> None:
    step = await desk.started()
    done = await desk.complete(step, "chunk", chain=True, media_type="text/plain")
    assert done.took
    assert done.next is not None
    assert await desk.step(step, "status, lease_token, meta") == ("COMPLETED", None, '{"n":1}')
    stored = await desk.step(done.next, "status, lease_token, epoch, attempts, kind, position, rank, priority")
    following = done.next
    assert stored == ("RUNNING", following.lease.token, 1, 1, "chunk", 1, step.rank, step.priority)
    assert (following.lease.epoch, following.attempts, following.kind, following.position) == (1, 1, "chunk", 1)
    assert (following.run_id, following.document_id, following.owner) == (step.run_id, step.document_id, ANNA)
    assert await desk.one("SELECT status, media_type FROM documents") == ("CHUNKING", "text/plain")


async def test_a_chain_without_room_leaves_the_next_step_pending(desk: Desk) -> None:
    step = await desk.started()
    done = await desk.complete(step, "chunk")
    assert done.took
    assert done.next is None
    assert await desk.one("SELECT status, epoch, attempts FROM steps WHERE position = 1") == ("PENDING", 0, 0)
    assert await desk.status(step.document_id) == "EXTRACTING"


async def test_a_chain_yields_to_a_higher_priority(desk: Desk) -> None:
    step = await desk.started()
    await desk.submit("/urgent", priority=1)
    done = await desk.complete(step, "chunk", chain=True, fingerprint="fp")
    assert done.took
    assert (done.next, done.opened) == (None, None)
    assert await desk.one("SELECT status FROM steps WHERE position = 1") == "PENDING"
    [urgent, chained] = await desk.claim(2, "extract", "chunk")
    assert (urgent.priority, chained.position) == (1, 1)


async def test_a_chain_does_not_yield_to_the_same_or_a_lower_priority(desk: Desk) -> None:
    step = await desk.started()
    await desk.submit("/same")
    await desk.submit("/lower", priority=-1)
    assert (await desk.complete(step, "chunk", chain=True)).next is not None


async def test_i3_a_completion_that_did_not_take_inserts_nothing(desk: Desk) -> None:
    step = await desk.started(lease_s=-1.0)
    await desk.reap()
    before = await desk.everything()
    done = await desk.complete(step, "chunk", chain=True, media_type="text/plain", fingerprint="fp")
    assert done == completions.Completed(False, None)
    assert await desk.everything() == before


async def test_a_completion_completes_its_artifact_and_names_its_segments(desk: Desk) -> None:
    step = await desk.started()
    artifact = (await desk.open(step)).artifact
    await desk.progress(step, artifact.id, 0)
    done = await desk.complete(step, "chunk", chain=True, output=output(artifact.id, 2), fingerprint="next")
    made = await desk.one("SELECT state, token, cursor, items, segments, meta FROM artifacts WHERE fingerprint = 'fp'")
    assert made == (
        "COMPLETE", None, '{"end":true}', 4, 2, '{"pages":9}',
    )  # fmt: skip
    assert await desk.rows("SELECT ordinal, first FROM segments ORDER BY ordinal") == [(0, 0), (1, 2)]
    assert done.opened is not None
    assert done.opened.mine
    assert done.next is not None
    assert await desk.one("SELECT builder, token FROM artifacts WHERE fingerprint = 'next'") == (
        done.next.lease.step_id,
        done.next.lease.token,
    )


async def test_a_group_of_completions_answers_each(desk: Desk) -> None:
    await desk.submit(*(f"/{i}" for i in range(10)))
    steps = await desk.claim(10)
    stale = {step.lease.step_id for step in steps[::3]}
    given = [_stale(step) if step.lease.step_id in stale else step for step in steps]
    answers = await asyncio.gather(*(desk.complete(step, "chunk", chain=True) for step in given))
    assert [answer.took for answer in answers] == [step.lease.step_id not in stale for step in steps]
    for step, answer in zip(steps, answers, strict=True):
        assert (answer.next is None) == (step.lease.step_id in stale)
        assert answer.next is None or answer.next.document_id == step.document_id


def _stale(step: Step) -> Step:
    return msgspec.structs.replace(step, lease=msgspec.structs.replace(step.lease, token=Token("stale")))


async def test_a_heartbeat_extends_what_is_ours_and_tells_what_is_lost(desk: Desk) -> None:
    kept, lost = await desk.started("/a", lease_s=0.5), await desk.started("/b", lease_s=-1.0)
    await desk.reap()
    leases = (kept.lease, lost.lease, Lease(StepId(10**9), Token("x"), 1))
    signs = (leasing.StepSignal(kept.lease.step_id, "artifact", moved=False),)
    beat = leasing.Beat(WorkerId("w1"), leases, (), signs, 100.0)
    beaten = await desk.ledger.write(leasing.HEARTBEAT, beat)
    assert beaten.alive == {kept.lease.step_id}
    assert await desk.step(kept, "waiting_on") == "artifact"
    assert await desk.reap() == 0


@pytest.mark.parametrize("owner", [ANNA, BERT])
async def test_a_claim_crosses_owners(desk: Desk, owner: str) -> None:
    await desk.submit("/a", owner=ANNA)
    await desk.submit("/a", owner=BERT)
    assert owner in {step.owner for step in await desk.claim(2)}


async def test_a_step_with_a_pool_is_claimed_by_that_name_only(desk: Desk) -> None:
    await desk.submit("/a", first=submissions.FirstStep("one", "extract", "gpu"))
    await desk.submit("/b")
    [plain] = await desk.claim(9, "extract")
    assert plain.pool is None
    [step] = await desk.claim(9, "gpu")
    assert (step.kind, step.pool, step.queue) == ("extract", "gpu", "gpu")
    done = desk.completion(step, "embed", chain=True)
    done = msgspec.structs.replace(done, next=msgspec.structs.replace(done.next, pool="cheap"))
    following = (await desk.ledger.write(completions.COMPLETE, done)).next
    assert following is not None
    assert following.pool == "cheap"
    assert await desk.ledger.write(releases.RELEASE, releases.Release(following, give_back=True))
    assert await desk.ledger.read(notifier.claimable, ("embed", "gpu", "cheap")) == {"cheap"}
    assert [s.queue for s in await desk.claim(9, "embed", "gpu", "cheap")] == ["cheap"]


async def test_what_waits_is_told_in_order_and_claimed_by_number_only_while_it_waits(desk: Desk) -> None:
    await desk.submit("/a", "/b", "/c")
    await desk.submit("/d", owner=BERT)
    await desk.submit("/e", owner=BERT, priority=1)
    waiting = await desk.ledger.read(claims.waiting, ["extract", "chunk"], 10)
    assert [entry.owner for entry in waiting][:1] == [BERT], "the urgent one first"
    assert len(waiting) == 5
    assert len(await desk.ledger.read(claims.waiting, ["extract"], 2)) == 2
    [taken] = await desk.claim(1)
    wanted = tuple(entry.step for entry in waiting)
    request = claims.ClaimThese(WorkerId("w2"), wanted, desk.token(), 10.0)
    claimed = [one.step for one in await desk.ledger.write(claims.CLAIM_THESE, request)]
    assert {step.lease.step_id for step in claimed} == set(wanted) - {taken.lease.step_id}
    assert {(step.lease.epoch, step.lease.token) for step in claimed} == {(1, request.token)}
    assert await desk.ledger.write(claims.CLAIM_THESE, request) == []
    assert await desk.claim(5) == []
