"""The real queue, on both databases, beside the model: random verbs of several workers and owners, and after each of
them the two must look the same and every invariant must hold."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.kit.cuts import CutDatabase
from tests.kit.ledger import ANNA, BERT, EXPIRED_S, KEY, Bench, Desk, output, segment
from tests.simulation import model
from tests.simulation.model import CRASHES, Model
from tests.simulation.picture import TICK, Picture, differences, expected, keep_invariants, picture

from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import (
    cancellations,
    checkpoints,
    claims,
    completions,
    deletions,
    failures,
    flips,
    generations,
    groups,
    leasing,
    locks,
    releases,
    restarts,
    runs,
    submissions,
    submits,
)
from penstock.ledger.upkeep import repairs
from penstock.model.events import EventKind
from penstock.model.nouns import DocumentId, GenerationId, Owner, Step, Token, WorkerId
from penstock.model.states import ENDS, DocumentStatus

LONG = os.environ.get("PENSTOCK_LONG") == "1"
WORKERS = ("w1", "w2", "w3")
KEYED = ("enrich", "index")
VERBS = ("complete", "flip", "error", "fail", "release", "checkpoint", "alone", "rewind", "write", "drop", "heartbeat")
T = TypeVar("T")

owners = st.sampled_from((ANNA, BERT))
workers = st.sampled_from(WORKERS)
reapers = st.sampled_from(("w4", *WORKERS))
own = st.sampled_from((True, True, True, False))
picks = st.integers(0, 11)
leases = st.integers(0, 2)
kinds = st.sampled_from((("extract", "chunk"), ("chunk", "extract"), ("extract",), ("chunk",)))
settings_names = st.sampled_from(("today", "today", "tomorrow"))


def lease_s(ticks: int) -> float:
    return (ticks + 0.5) * TICK


def resource_key(owner: Owner, kind: str) -> str | None:
    return locks.index_key(owner, "default", 1) if kind == "index" else f"{kind}:{owner}" if kind in KEYED else None


class Move(NamedTuple):
    do: Callable[..., None]
    when: Callable[["LedgerMachine"], object]
    arguments: st.SearchStrategy[dict[str, Any]]

    def __repr__(self) -> str:
        return self.do.__name__


MOVES: list[Move] = []
Function = TypeVar("Function", bound=Callable[..., None])


def move(
    when: Callable[["LedgerMachine"], object], weight: int = 1, **arguments: st.SearchStrategy[Any]
) -> Callable[[Function], Function]:
    def keep(function: Function) -> Function:
        # What comes first is chosen most: that is to be the last ones below, which do most.
        MOVES[:0] = [Move(function, when, st.fixed_dictionaries(arguments))] * weight
        return function

    return keep


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        bench.wipe()
        self.services, self.desk = bench, bench.desk
        self.model = Model()
        self.issued: list[Step] = []
        """Every lease that was ever given, newest last."""
        self.lock_tokens: list[tuple[str, Token]] = []
        self.seen = self.read()

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One rule for all moves: of many rules, each example would do without half, and without claims there is
        nothing to see."""
        possible = st.sampled_from([one for one in MOVES if one.when(self)])
        chosen, arguments = data.draw(possible.flatmap(lambda one: st.tuples(st.just(one), one.arguments)))
        chosen.do(self, **arguments)

    # -- the two worlds

    def write(self, verb: Verb[Any, T], *items: Any) -> list[T]:
        """All of them in one group."""

        async def together() -> list[T]:
            return list(await asyncio.gather(*(self.services.ledger.write(verb, item) for item in items)))

        return self.services.run(together())

    def read(self) -> Picture:
        return self.services.run(self.services.ledger.read(picture))

    def agree(self) -> None:
        before, self.seen = self.seen, self.read()
        keep_invariants(before, self.seen)
        for name, wanted in expected(self.model).items():
            found = self.seen[name]
            if name == "runs":
                found = {run: row[:-1] for run, row in found.items()}
                wanted = {run: (*row[:-1], int(row[-1])) for run, row in wanted.items()}
            if name == "documents":
                found = {document: (*row[:-1], bool(row[-1])) for document, row in found.items()}
            if found != wanted:
                raise AssertionError(f"{name}: {differences(found, wanted)}")

    def held(self, step: Step) -> model.Step | None:
        return self.model.find(step.run_id, step.position, step.lease.token)

    def live(self, *kinds: str) -> list[Step]:
        return [step for step in self.issued if self.held(step) and (not kinds or step.kind in kinds)]

    def one(self, pick: int, *kinds: str) -> tuple[Step, model.Step]:
        live = self.live(*kinds)
        step = live[pick % len(live)]
        held = self.held(step)
        assert held is not None
        return step, held

    def stale(self) -> list[Step]:
        return [step for step in self.issued[-12:] if not self.held(step)]

    def ended(self) -> list[model.Document]:
        """Those that a retry could mean; now and then one that it could not."""
        ended = [d for d in self.model.documents.values() if d.status in ENDS]
        return [d for d in ended if d.status != DocumentStatus.COMPLETED and not d.deleted] + ended[:1]

    def document(self, pick: int) -> model.Document:
        return list(self.model.documents.values())[pick % len(self.model.documents)]

    def owner(self, document: model.Document, mine: bool) -> Owner:
        """I10: whoever else asks for it gets nothing."""
        return Owner(document.owner) if mine else BERT if document.owner == ANNA else ANNA

    def given(
        self, steps: Sequence[Step], candidates: Sequence[model.Step], token: Token, worker: str, lease: int
    ) -> None:
        """A claim was answered: is it what came first, and does each step know its own?"""
        for step in steps:
            [mine] = [s for s in candidates if (s.run.id, s.position) == (step.run_id, step.position)]
            self.model.take(mine, token, worker, lease)
            assert (step.lease.token, step.lease.epoch) == (token, mine.epoch)
            assert (step.attempts, step.crashes, step.errors) == (mine.attempts, mine.crashes, mine.errors)
            self.issued.append(step)

    # -- runs

    @initialize(content=st.sampled_from("ab"))
    def first(self, content: str) -> None:
        for owner, source, priority in ((ANNA, "/one", 0), (ANNA, "/two", 5), (BERT, "/one", 0), (ANNA, "/three", 0)):
            self.submit(owner, source, content, "today", priority, False)

    @move(
        lambda self: len(self.model.steps("PENDING")) < 6,
        weight=2,
        owner=owners,
        source=st.sampled_from(("/one", "/two", "/three")),
        content=st.sampled_from("ab"),
        chosen=settings_names,
        priority=st.sampled_from((0, 5)),
        retry=st.booleans(),
        group=st.sampled_from(("g1", "g2", "g3")),
        seal=st.booleans(),
    )
    def submit(
        self,
        owner: Owner,
        source: str,
        content: str,
        chosen: str,
        priority: int,
        retry: bool,
        group: str = "g1",
        seal: bool = True,
    ) -> None:
        new = self.desk.document(source, content)
        start = groups.GroupStart(group, "flow", None, seal)
        [[answer]] = self.write(
            submits.SUBMIT, self.order(new, owner=owner, settings=chosen, priority=priority, retry=retry, group=start)
        )
        ids = (new.id, new.run_id)
        wanted = self.model.submit(owner, source, content, ids, chosen, priority, retry, group, seal)
        assert (answer.document_id, answer.outcome) == wanted
        self.agree()

    def order(self, new: submissions.NewDocument, **values: Any) -> submissions.Submission:
        """Everything about it is told."""
        told = {event.lower(): [{"name": "h", "method": "m.h"}] for event in EventKind}
        body = msgspec.json.encode({"lifecycle_events": told}).decode()
        return msgspec.structs.replace(self.desk.submission(new, **values), snapshot="all is told", body=body)

    @move(lambda self: any(not group.sealed for group in self.model.groups.values()), pick=picks)
    def seal(self, pick: int) -> None:
        group = list(self.model.groups)[pick % len(self.model.groups)]
        assert self.write(groups.SEAL, group) == [self.model.seal(group)]
        self.agree()

    @move(lambda self: self.live(), pick=picks)
    def cancel_group(self, pick: int) -> None:
        run = list(self.model.runs.values())[pick % len(self.model.runs)]
        owner, name = Owner(run.document.owner), run.group
        still = [x for x in self.model.runs.values() if (x.group, x.document.owner, x.status) == (name, owner, "OPEN")]
        [count] = self.write(cancellations.CANCEL_GROUP, cancellations.CancelGroup(owner, name, 100))
        assert count == sum(self.model.cancel(x.document) for x in still)
        self.agree()

    @move(lambda self: self.live(), pick=picks, mine=own)
    def cancel(self, pick: int, mine: bool) -> None:
        document = self.document(pick)
        owner = self.owner(document, mine)
        [answer] = self.write(cancellations.CANCEL, runs.Selected(owner, (DocumentId(document.id),)))
        assert bool(answer) == (mine and self.model.cancel(document))
        self.agree()

    @move(lambda self: len(self.model.documents) > 4, pick=picks, mine=own)
    def delete(self, pick: int, mine: bool) -> None:
        document = self.document(pick)
        owner = self.owner(document, mine)
        [answer] = self.write(deletions.DELETE, runs.Selected(owner, (DocumentId(document.id),)))
        assert bool(answer) == (mine and self.model.delete(document))
        self.agree()

    @move(
        lambda self: self.ended(),
        weight=3,
        pick=picks,
        mine=own,
        chosen=settings_names,
    )
    def retry(self, pick: int, mine: bool, chosen: str) -> None:
        document = self.ended()[pick % len(self.ended())]
        owner = self.owner(document, mine)
        new = self.desk.document("/unused", stored=False)
        named = submissions.NewDocument(DocumentId(document.id), new.run_id, "", "", "", 0, None, {})
        [answer] = self.write(restarts.RETRY, restarts.Retry(self.order(named, owner=owner, settings=chosen)))
        assert bool(answer) == (mine and self.model.retry(document, new.run_id, chosen))
        self.agree()

    # -- the queue

    @move(
        lambda self: self.model.claimable(("extract", "chunk")),
        weight=3,
        worker=workers,
        wanted=kinds,
        count=st.integers(1, 3),
        lease=leases,
    )
    def claim(self, worker: str, wanted: tuple[str, ...], count: int, lease: int) -> None:
        token = self.desk.token()
        request = claims.ClaimRequest(WorkerId(worker), wanted, count, token, lease_s(lease))
        [claimed] = self.write(claims.CLAIM, request)
        steps = [one.step for one in claimed]
        candidates = self.model.claimable(wanted)
        assert [(-s.priority, s.rank) for s in steps] == [s.order for s in candidates[:count]], "priority, then rank"
        self.given(steps, candidates, token, worker, lease)
        self.agree()

    @move(
        lambda self: any(lock.ready and not lock.token for lock in self.model.locks.values()),
        weight=3,
        worker=workers,
        kind=st.sampled_from(("enrich", "index", "index")),
        count=st.integers(1, 3),
        lease=leases,
    )
    def claim_keyed(self, worker: str, kind: str, count: int, lease: int) -> None:
        token = self.desk.token()
        [steps] = self.write(
            claims.CLAIM_KEYED, claims.KeyedClaim(WorkerId(worker), kind, count, token, lease_s(lease))
        )
        free = {k: lock for k, lock in self.model.locks.items() if lock.kind == kind and lock.ready and not lock.token}
        if steps:
            key = steps[0].lease.resource_key
            assert key in free
            candidates = self.model.claimable((kind,), key)
            assert [(-s.priority, s.rank) for s in steps] == [s.order for s in candidates[:count]]
            lock = free[key]
            lock.token, lock.worker, lock.until = token, worker, self.model.now + lease
            self.lock_tokens.append((key, token))
            self.given(steps, candidates, token, worker, lease)
        elif free:
            # One of them was looked at for nothing; which one is the ledger's choice.
            looked_at = [key for key in free if not self.read()["locks"][key][0]]
            assert len(looked_at) == 1
            assert not self.model.claimable((kind,), looked_at[0])
            free[looked_at[0]].ready = False
        self.agree()

    @move(
        lambda self: self.live("extract", "chunk", "enrich"),
        weight=3,
        pick=picks,
        kind=st.sampled_from(("chunk", "enrich", "index")),
        chain=st.booleans(),
        flushed=st.booleans(),
    )
    def complete(self, pick: int, kind: str, chain: bool, flushed: bool) -> None:
        step, held = self.one(pick, "extract", "chunk", "enrich")
        if flushed:
            self.flushed(step, held, 1)
        if step.position >= 2:
            kind = "index"
        completion = self.completion(step, kind, chain)
        following, may_chain = self.model.complete(held, completion.next.name, kind, completion.next.resource_key)
        [answer] = self.write(completions.COMPLETE, completion)
        assert answer.took
        assert (answer.next is not None) == (completion.next.token is not None and may_chain)
        if answer.next is not None:
            assert completion.next.token is not None
            self.given([answer.next], [following], completion.next.token, held.worker, 1)
        self.agree()

    def completion(self, step: Step, kind: str, chain: bool) -> completions.Completion:
        key = resource_key(step.owner, kind)
        token = self.desk.token() if chain and key is None else None
        position = step.position + 1
        following = completions.NextStep(position, f"step{position}", kind, key, token)
        worker = (
            WorkerId(self.model.runs[step.run_id].steps[step.position].worker) if self.held(step) else WorkerId("w1")
        )
        return completions.Completion(step, worker, lease_s(1), "{}", following, self.last_flush(step))

    def last_flush(self, step: Step) -> checkpoints.Output | None:
        artifact = self.artifact(step)
        held = self.held(step)
        if artifact is None or held is None or artifact[1].built_by is not held:
            return None
        return output(artifact[0], artifact[1].segments + 1)

    @move(lambda self: self.live(), weight=2, pick=picks, text=st.sampled_from((True, True, False)))
    def flip(self, pick: int, text: bool) -> None:
        step, held = self.one(pick, *(["index"] if self.live("index") else []))
        status, chunks = (DocumentStatus.COMPLETED, 3) if text else (DocumentStatus.NOT_INDEXABLE, 0)
        [took] = self.write(flips.FLIP, flips.Flip(step, status, 2, chunks, "{}", self.last_flush(step)))
        assert took == self.model.flip(held, status, chunks)
        self.agree()

    @move(lambda self: self.live(), weight=2, pick=picks, again=st.sampled_from((None, 0, None, 1, 2)))
    def error(self, pick: int, again: int | None) -> None:
        step, held = self.one(pick)
        [took] = self.write(failures.ERROR, self.failure(step, again))
        assert took
        self.model.error(held, again)
        self.agree()

    def failure(self, step: Step, again: int | None) -> failures.StepFailure:
        return failures.StepFailure(step, "bad", "it broke", retry_in=None if again is None else (again - 0.5) * TICK)

    @move(lambda self: self.live(), weight=3, some=st.lists(picks, min_size=1, max_size=4), give_back=st.booleans())
    def release(self, some: list[int], give_back: bool) -> None:
        """A few are given back at once, by every lease that they ever had: only the last one may count."""
        live = self.live()
        wanted = {live[pick % len(live)].lease.step_id for pick in some}
        steps = [step for step in self.issued[-12:] if step.lease.step_id in wanted]
        answers = self.write(releases.RELEASE, *(releases.Release(step, give_back) for step in steps))
        for step, took in zip(steps, answers, strict=True):
            held = self.held(step)
            assert took == (held is not None)
            if held is not None:
                self.model.release(held, give_back)
        self.agree()

    @move(lambda self: self.issued, worker=workers, with_locks=st.booleans(), lease=leases)
    def heartbeat(self, worker: str, with_locks: bool, lease: int) -> None:
        mine = {step.lease.step_id: step for step in self.issued}
        held = {i: held for i, step in mine.items() if (held := self.held(step)) is None or held.worker == worker}
        pairs = tuple(self.lock_tokens) if with_locks else ()
        beat = leasing.Beat(WorkerId(worker), tuple(mine[i].lease for i in held), pairs, (), lease_s(lease))
        [answer] = self.write(leasing.HEARTBEAT, beat)
        kept = {i: step for i, step in held.items() if step is not None}
        assert answer.alive == set(kept)
        for step in kept.values():
            step.until = self.model.now + lease
        locked = {key for key, token in pairs if self.model.locks[key].token == token}
        assert answer.locks == locked
        for key in locked:
            self.model.locks[key].until = self.model.now + lease
        self.agree()

    @move(lambda self: self.live(), pick=picks)
    def go_alone(self, pick: int) -> None:
        step, held = self.one(pick)
        assert self.write(leasing.GO_ALONE, step.lease) == [True]
        held.alone = True
        self.agree()

    @move(lambda self: self.issued, ticks=st.integers(1, 3))
    def time_passes(self, ticks: int) -> None:
        """Every deadline comes nearer by as much."""
        s = ticks * TICK
        for text in (
            f"UPDATE steps SET lease_until = lease_until - {s}, not_before = not_before - {s}",
            f"UPDATE locks SET lease_until = lease_until - {s}",
            f"UPDATE purges SET not_before = not_before - {s}",
            f"UPDATE artifacts SET updated_at = updated_at - {s}",
        ):
            self.services.run(self.desk.rows(text))
        self.model.now += ticks

    @move(lambda self: self.live(), weight=2, pick=picks, died=st.booleans(), reaper=reapers)
    def reap(self, pick: int, died: bool, reaper: str) -> None:
        dead = (self.one(pick)[1].worker,) if died else ()
        held = [(step, own) for step in self.live() if (own := self.held(step)) and own.worker == reaper]
        mine = frozenset(step.lease.step_id for step, _ in held)
        [reaped] = self.write(leasing.REAP, leasing.Reap(mine, tuple(WorkerId(worker) for worker in dead), CRASHES))
        assert reaped.steps == self.model.reap(dead, [step for _, step in held])
        self.agree()

    @move(lambda self: len(self.live()) > 1, worker=workers)
    def leave(self, worker: str) -> None:
        self.write(leasing.LEAVE, WorkerId(worker))
        self.model.leave(worker)
        self.agree()

    @move(lambda self: self.model.steps("ERROR"))
    def due(self) -> None:
        [moved] = self.write(leasing.DUE, 100)
        assert moved == self.model.due()
        self.agree()

    # -- locks of upkeep

    @move(lambda self: self.model.locks, worker=workers, owner=owners, lease=leases)
    def acquire(self, worker: str, owner: Owner, lease: int) -> None:
        key, token = locks.index_key(owner, "default", 1), self.desk.token()
        [took] = self.write(locks.ACQUIRE, locks.Acquire(key, token, WorkerId(worker), "purge", lease_s(lease)))
        lock = self.model.locks.get(key, model.Lock())
        assert took == (lock.token is None or lock.until < self.model.now)
        if took:
            lock.token, lock.worker, lock.until = token, worker, self.model.now + lease
            self.model.locks[key] = lock
            self.lock_tokens.append((key, token))
        self.agree()

    @move(lambda self: self.lock_tokens, pick=picks)
    def release_lock(self, pick: int) -> None:
        key, token = self.lock_tokens[-1 - pick % min(3, len(self.lock_tokens))]
        lock = self.model.locks[key]
        held = self.services.run(self.services.ledger.read(locks.held, key, token))
        assert held == (lock.token == token and lock.until >= self.model.now)
        assert self.write(locks.RELEASE, (key, token)) == [lock.token == token]
        if lock.token == token:
            lock.token, lock.worker = None, ""
        self.agree()

    # -- artifacts

    def artifact(self, step: Step | model.Step) -> tuple[Any, model.Artifact] | None:
        """The one that this step opened, with its id."""
        run = step.run.id if isinstance(step, model.Step) else step.run_id
        fingerprint = self.model.refs.get((run, step.name))
        if fingerprint is None:
            return None
        found = f"SELECT id FROM artifacts WHERE owner = '{fingerprint[0]}' AND fingerprint = '{fingerprint[1]}'"
        return self.services.run(self.desk.one(found)), self.model.artifacts[fingerprint]

    @move(lambda self: self.live(), weight=4, pick=picks, lease=leases, twin=st.booleans())
    def checkpoint(self, pick: int, lease: int, twin: bool) -> None:
        """The first one opens the artifact; a twin, at work on the same bytes, finds it taken."""
        self.flushed(*self.one(pick), lease)
        if twin:
            self.flushed(*self.one(pick + 1), lease)

    def flushed(self, step: Step, held: model.Step, lease: int) -> None:
        fingerprint = f"{held.run.content}/{step.position}/{step.kind}"
        [opened] = self.write(checkpoints.OPEN, checkpoints.Open(step, fingerprint))
        artifact = self.model.open(held, (step.owner, fingerprint))
        assert opened.mine == (artifact.built_by is held)
        assert (opened.artifact.complete, opened.artifact.segments) == (artifact.complete, artifact.segments)
        if opened.mine:
            assert self.write(checkpoints.CHECKPOINT, self.flush(step, opened.artifact.id, lease)) == [True]
            self.model.checkpoint(held, artifact, lease)
        self.agree()

    def flush(self, step: Step, artifact: Any, lease: int) -> checkpoints.Progress:
        [_, known] = self.artifact(step) or (None, model.Artifact())
        segments = (segment(artifact, known.segments),)
        return checkpoints.Progress(step, artifact, '{"page":1}', 2, segments, lease_s(lease))

    @move(lambda self: any(self.made(step) for step in self.live()), weight=4, pick=picks, ordinal=st.integers(0, 2))
    def rewind(self, pick: int, ordinal: int) -> None:
        later = [step for step in self.live() if self.made(step)]
        step = later[pick % len(later)]
        producer = self.made(step)[pick % len(self.made(step))]
        found = self.artifact(producer)
        assert found is not None
        assert self.write(checkpoints.REWIND, checkpoints.Rewind(step, found[0], ordinal)) == [True]
        self.model.rewind(producer, found[1], ordinal)
        self.agree()

    def made(self, step: Step) -> list[model.Step]:
        """The steps before it that made something."""
        run = self.model.runs[step.run_id]
        return [s for s in run.steps[: step.position] if (run.id, s.name) in self.model.refs]

    @move(lambda self: self.live(), pick=picks)
    def write_rows(self, pick: int) -> None:
        step, held = self.one(pick)
        assert self.write(generations.WRITE, self.writing(step)) == [held.run.written]
        held.run.written = True
        self.agree()

    def writing(self, step: Step) -> generations.Writing:
        return generations.Writing(step.lease.step_id, step.lease.token, step.generation_id)

    @move(lambda self: any(run.purge_due is not None for run in self.model.runs.values()))
    def purge(self) -> None:
        by_id = {row[9]: run for run, row in self.seen["runs"].items()}
        rows = self.services.run(self.services.ledger.read(generations.due_purges, 100, -TICK / 2))
        assert {by_id[row.generation] for row in rows} == self.model.purgeable()
        self.write(generations.PURGED, generations.Removed(1, tuple(GenerationId(row.generation) for row in rows)))
        for row in rows:
            self.model.purged(self.model.runs[by_id[row.generation]])
        self.agree()

    @move(lambda self: self.model.artifacts)
    def prune(self) -> None:
        unused = self.services.run(self.services.ledger.read(repairs.forgettable, 0, 1 << 31, TICK / 2))
        [forgotten] = self.write(repairs.FORGET, repairs.Forget(tuple(unused), TICK / 2))
        assert forgotten.artifacts == self.model.forget()
        self.agree()

    # -- zombies, and whole stretches of work

    @move(lambda self: self.stale(), pick=picks, verb=st.sampled_from(VERBS))
    def zombie(self, pick: int, verb: str) -> None:
        """I3: whatever a lost lease asks for, nothing happens."""
        stale = self.stale()
        step = stale[pick % len(stale)]
        before = self.services.run(self.desk.everything())
        [(artifact, _)] = self.services.run(self.desk.rows("SELECT coalesce(max(id), 1), 1 FROM artifacts"))
        attempts: dict[str, tuple[Verb[Any, Any], Any]] = {
            "complete": (completions.COMPLETE, self.completion(step, "chunk", True)),
            "flip": (flips.FLIP, flips.Flip(step, DocumentStatus.COMPLETED, 2, 3, "{}")),
            "error": (failures.ERROR, self.failure(step, 0)),
            "fail": (failures.ERROR, self.failure(step, None)),
            "release": (releases.RELEASE, releases.Release(step, True)),
            "checkpoint": (checkpoints.CHECKPOINT, self.flush(step, artifact, 2)),
            "alone": (leasing.GO_ALONE, step.lease),
            "rewind": (checkpoints.REWIND, checkpoints.Rewind(step, artifact, 0)),
            "write": (generations.WRITE, self.writing(step)),
            "drop": (leasing.DROP, step.lease),
            "heartbeat": (leasing.HEARTBEAT, leasing.Beat(WorkerId("w1"), (step.lease,), (), (), lease_s(2))),
        }
        [answer] = self.write(*attempts[verb])
        took = answer.took if verb == "complete" else answer.alive if verb == "heartbeat" else answer
        assert not took
        assert self.services.run(self.desk.everything()) == before

    @move(lambda self: self.live("index"), weight=5, pick=picks, taken=st.booleans())
    def lose_the_lock(self, pick: int, taken: bool) -> None:
        """A worker keeps its steps and loses the lock that came with them, to nobody or to somebody."""
        step, held = self.one(pick, "index")
        self.time_passes(3)
        self.heartbeat(held.worker, False, 2)
        if taken:
            self.acquire("w3", step.owner, 2)
        self.flip(pick, True)
        if taken:
            self.release_lock(0)
            self.claim_keyed("w2", "index", 1, 0)

    @move(lambda self: self.live(), pick=picks, times=st.integers(1, 3), alone=st.booleans(), reaper=reapers)
    def crash(self, pick: int, times: int, alone: bool, reaper: str) -> None:
        """What runs takes its worker down, again and again."""
        for _ in range(times):
            if self.live():
                if alone:
                    self.go_alone(pick)
                self.time_passes(3)
                self.reap(pick, False, reaper)
            self.claim("w3", ("extract", "chunk"), 3, 2)

    @move(lambda self: self.searchable(), weight=3, pick=picks, worker=workers)
    def new_version(self, pick: int, worker: str) -> None:
        """Changed bytes of what is searchable, and some work on them."""
        document = self.searchable()[pick % len(self.searchable())]
        content = "b" if document.content == "a" else "a"
        self.submit(Owner(document.owner), document.source, content, "today", 5, False)
        self.work(worker, 6, 0)

    def searchable(self) -> list[model.Document]:
        return [d for d in self.model.documents.values() if d.active]

    @move(lambda self: True, worker=workers, moves=st.integers(2, 5), pick=picks)
    def work(self, worker: str, moves: int, pick: int) -> None:
        """A worker does what comes next: far more documents come to an end than by chance alone."""
        for i in range(moves):
            if i and i == pick and self.lock_tokens:
                self.release_lock(0)
            elif self.live("index"):
                self.flip(pick, True)
            elif self.live():
                self.complete(pick, ("index", "chunk", "enrich")[pick % 3], pick % 2 == 0, pick % 4 > 0)
            elif kinds := [lock.kind for lock in self.model.locks.values() if lock.ready and not lock.token]:
                self.claim_keyed(worker, str(kinds[0]), 3, 2)
            else:
                self.claim(worker, ("extract", "chunk"), 2, 2)


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    bench = Bench(database_url)
    yield bench
    bench.close()


def test_the_ledger_does_what_the_model_does(bench: Bench) -> None:
    quick = (25, 50) if bench.ledger.database.dialect == "sqlite" else (12, 40)
    _compare(bench, quick)


def test_i6_cut_connections_change_nothing(postgres: str) -> None:
    """Every third commit loses its connection, before, while or after it is made."""
    bench = Bench(postgres, CutDatabase)
    database = bench.ledger.database
    assert isinstance(database, CutDatabase)
    database.chance = 0.3
    database.outage_wait.limit_s = 30.0
    _compare(bench, (6, 40))
    bench.close()
    assert database.made > 30


def _compare(bench: Bench, quick: tuple[int, int]) -> None:
    examples, steps = (200, 60) if LONG else quick
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=not LONG,
        database=None,
        # To make a failure smaller takes minutes: only where there is time.
        phases=[Phase.generate, *([Phase.shrink] if LONG else [])],
        suppress_health_check=list(HealthCheck),
    )

    class Here(LedgerMachine):
        def __init__(self) -> None:
            super().__init__(bench)

    run_state_machine_as_test(Here, settings=profile)


async def test_a_keyed_step_that_is_rewound_is_claimed_again(desk: Desk) -> None:
    """The last claim behind the lock found nothing, so the next one would not look there."""
    maker = await desk.indexing()
    made = (await desk.open(maker)).artifact.id
    [reader] = [(await desk.complete(maker, "chunk", chain=True, output=output(made, 1))).next]
    assert reader is not None
    assert await desk.ledger.write(locks.RELEASE, (KEY, maker.lease.token))
    assert await desk.claim_keyed() == []
    assert await desk.ledger.write(checkpoints.REWIND, checkpoints.Rewind(reader, made, 0))
    [again] = await desk.claim_keyed()
    assert again.lease.step_id == maker.lease.step_id


async def test_i3_two_leases_of_one_step_in_one_group_are_told_apart(desk: Desk) -> None:
    """Or else the lost one is told that its write took, and its segments are named."""
    lost = await desk.started(lease_s=EXPIRED_S)
    assert await desk.reap() == 1
    [step] = await desk.claim()
    made = (await desk.open(step)).artifact.id
    flushes = (desk.flush(lost, made, 1), desk.flush(step, made, 0))
    took = await asyncio.gather(*(desk.ledger.write(checkpoints.CHECKPOINT, flush) for flush in flushes))
    assert took == [False, True]
    assert await desk.rows("SELECT ordinal FROM segments") == [(0,)]
    both = (releases.Release(lost, True), releases.Release(step, True))
    assert await asyncio.gather(*(desk.ledger.write(releases.RELEASE, one) for one in both)) == [False, True]
