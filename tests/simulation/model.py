"""The ledger in plain Python: what the real one must hold after each verb. Time is counted in whole ticks. A run stands
for its generation too, for each has one of the other."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.model.states import ENDS, SHOWN_AS, DocumentStatus

D = DocumentStatus
SUSPECT = 2
CRASHES = 3


@dataclass(eq=False)
class Document:
    id: str
    owner: str
    source: str
    content: str
    status: DocumentStatus = D.PENDING
    deleted: bool = False
    runs: list["Run"] = field(default_factory=list)

    @property
    def active(self) -> "Run | None":
        return next((run for run in self.runs if run.state == "ACTIVE"), None)


@dataclass(eq=False)
class Run:
    id: str
    document: Document
    content: str
    settings: str
    priority: int
    rank: int
    status: str = "OPEN"
    state: str = "BUILDING"
    written: bool = False
    chunks: int | None = None
    purge_due: int | None = None
    letter: bool = False
    group: str = ""
    ends: int = 0
    """How often it has ended: a retry lets it end again."""
    steps: list["Step"] = field(default_factory=list)


@dataclass(eq=False)
class Step:
    run: Run
    position: int
    name: str
    kind: str
    key: str | None = None
    status: str = "PENDING"
    attempts: int = 0
    crashes: int = 0
    errors: int = 0
    alone: bool = False
    epoch: int = 0
    token: str | None = None
    until: int = 0
    worker: str = ""
    due: int = 0

    @property
    def order(self) -> tuple[int, int]:
        return -self.run.priority, self.run.rank

    def end(self, status: str) -> None:
        self.status, self.token, self.alone = status, None, False


@dataclass
class Lock:
    kind: str | None = None
    ready: bool = False
    token: str | None = None
    until: int = 0
    worker: str = ""


@dataclass(eq=False)
class Artifact:
    builder: Step | None = None
    token: str | None = None
    complete: bool = False
    segments: int = 0
    touched: int = 0

    @property
    def built_by(self) -> Step | None:
        step = self.builder
        return step if step and step in step.run.steps and self.token and step.token == self.token else None


@dataclass
class Group:
    open: int = 0
    sealed: bool = False
    completions: int = 0

    def settle(self) -> None:
        """It has ended just now, if it has."""
        if self.sealed and self.open == 0:
            self.completions += 1


Fingerprint = tuple[str, str]


class Model:
    def __init__(self) -> None:
        self.now = 0
        self.documents: dict[str, Document] = {}
        self.runs: dict[str, Run] = {}
        self.ranks: dict[tuple[int, str], int] = {}
        self.locks: dict[str, Lock] = {}
        self.artifacts: dict[Fingerprint, Artifact] = {}
        self.refs: dict[tuple[str, str], Fingerprint] = {}
        self.groups: dict[str, Group] = {}

    def steps(self, *statuses: str) -> list[Step]:
        return [s for run in self.runs.values() for s in run.steps if not statuses or s.status in statuses]

    def find(self, run: str, position: int, token: str) -> Step | None:
        """The step, if this is its lease."""
        steps = self.runs[run].steps[position : position + 1]
        return steps[0] if steps and steps[0].token == token else None

    # -- runs

    def submit(
        self, owner: str, source: str, content: str, ids: tuple[str, str], settings: str, priority: int, retry: bool,
        group: str, seal: bool,
    ) -> tuple[str, str]:  # fmt: skip
        answer = self._submit(owner, source, content, ids, settings, priority, retry, group)
        if seal:
            self.seal(group)
        return answer

    def seal(self, group: str) -> bool:
        found = self.groups.get(group)
        if found is None or found.sealed:
            return False
        found.sealed = True
        found.settle()
        return True

    def _submit(
        self, owner: str, source: str, content: str, ids: tuple[str, str], settings: str, priority: int, retry: bool,
        group: str,
    ) -> tuple[str, str]:  # fmt: skip
        there = (d for d in self.documents.values() if (d.owner, d.source) == (owner, source) and not d.deleted)
        old = next(there, None)
        if old and old.content == content:
            if old.status not in ENDS:
                return old.id, "resumed"
            changed = old.runs[-1].settings != settings
            if old.status == D.COMPLETED or not (retry or (changed and old.status != D.CANCELLED)):
                return old.id, "skipped"
            if not changed and old.status != D.NOT_INDEXABLE:
                self._replay(old)
                return old.id, "resumed"
        document = old or self.documents.setdefault(ids[0], Document(ids[0], owner, source, content))
        self._start(document, content, ids[1], settings, priority, group)
        self.groups[group].sealed = False
        return document.id, "submitted"

    def _start(self, document: Document, content: str, run_id: str, settings: str, priority: int, group: str) -> None:
        self._stop(document)
        self._retire(document, "BUILDING")
        self._close(document)
        document.content = content
        if document.status in ENDS:
            document.status = D.PENDING
        run = Run(run_id, document, content, settings, priority, self._rank(document.owner, priority))
        run.group = group
        self.groups.setdefault(group, Group()).open += 1
        run.steps.append(Step(run, 0, "one", "extract"))
        document.runs.append(run)
        self.runs[run_id] = run

    def _rank(self, owner: str, priority: int) -> int:
        waiting = [s.run.rank for s in self.steps("PENDING") if s.epoch == 0 and s.run.priority == priority]
        last = [rank for (at, _), rank in self.ranks.items() if at == priority]
        front = min(waiting) if waiting else max(last, default=0)
        self.ranks[priority, owner] = max(front, self.ranks.get((priority, owner), 0)) + 1
        return self.ranks[priority, owner]

    def _stop(self, document: Document) -> bool:
        stopped = [run for run in document.runs if run.status == "OPEN"]
        for run in stopped:
            self._end(run, "CANCELLED")
            for step in run.steps:
                if step.status in ("PENDING", "RUNNING", "ERROR"):
                    step.end("CANCELLED")
        return bool(stopped)

    def _end(self, run: Run, status: str) -> None:
        run.status = status
        run.ends += 1
        self.groups[run.group].open -= 1
        self.groups[run.group].settle()

    def _retire(self, document: Document, *states: str) -> None:
        for run in document.runs:
            if run.state in states:
                run.state, run.purge_due = "SUPERSEDED", self.now + 1

    def _close(self, document: Document) -> None:
        for run in document.runs:
            run.letter = False

    def _replay(self, document: Document) -> None:
        document.status = D.PENDING
        document.runs[-1].status = "OPEN"
        self.groups[document.runs[-1].group].open += 1
        self._close(document)
        for step in document.runs[-1].steps:
            if step.status in ("FAILED", "CANCELLED"):
                step.attempts = step.crashes = step.errors = 0
                self._wait(step)

    def _wait(self, step: Step) -> None:
        step.end("PENDING")
        if step.key is not None:
            lock = self.locks.setdefault(step.key, Lock())
            lock.kind, lock.ready = step.kind, True

    def cancel(self, document: Document) -> bool:
        stopped = not document.deleted and self._stop(document)
        if stopped:
            document.status = D.CANCELLED
        return stopped

    def delete(self, document: Document) -> bool:
        if document.deleted:
            return False
        self.cancel(document)
        self._retire(document, "BUILDING", "ACTIVE")
        self._close(document)
        document.deleted = True
        return True

    def retry(self, document: Document, run_id: str, settings: str) -> bool:
        if document.deleted or document.status not in (D.FAILED, D.CANCELLED, D.NOT_INDEXABLE):
            return False
        if document.runs[-1].settings != settings or document.status == D.NOT_INDEXABLE:
            self._start(document, document.content, run_id, settings, 0, document.runs[-1].group)
        else:
            self._replay(document)
        return True

    def purgeable(self) -> set[str]:
        return {run.id for run in self.runs.values() if run.purge_due is not None and run.purge_due <= self.now}

    def purged(self, run: Run) -> None:
        run.purge_due = None
        if run.state == "SUPERSEDED":
            run.state, run.written = "PURGED", False
        self.refs = {by: fingerprint for by, fingerprint in self.refs.items() if by[0] != run.id}

    # -- the queue

    def claimable(self, kinds: Iterable[str], key: str | None = None) -> list[Step]:
        return sorted((s for s in self.steps("PENDING") if s.key == key and s.kind in kinds), key=lambda s: s.order)

    def take(self, step: Step, token: str, worker: str, lease: int) -> None:
        step.status, step.token, step.worker, step.until = "RUNNING", token, worker, self.now + lease
        step.epoch += 1
        step.attempts += 1
        document = step.run.document
        if step.kind in SHOWN_AS and document.status not in ENDS:
            document.status = SHOWN_AS[step.kind]

    def complete(self, step: Step, name: str, kind: str, key: str | None) -> tuple[Step, bool]:
        """The next step, and whether it may be claimed along."""
        self._finish(step)
        urgent = max((s.run.priority for s in self.steps("PENDING") if s.epoch == 0), default=step.run.priority)
        following = Step(step.run, step.position + 1, name, kind, key)
        step.run.steps.append(following)
        self._wait(following)
        return following, step.run.priority >= urgent

    def _finish(self, step: Step) -> None:
        for artifact in self.artifacts.values():
            if artifact.built_by is step:
                artifact.complete, artifact.token, artifact.touched = True, None, self.now
                artifact.segments += 1
        step.end("COMPLETED")

    def flip(self, step: Step, status: DocumentStatus, chunks: int) -> bool:
        if step.key is not None:
            lock = self.locks[step.key]
            if lock.token != step.token or lock.until < self.now:
                return False
        run = step.run
        self._finish(step)
        self._retire(run.document, "ACTIVE")
        self._end(run, "COMPLETED")
        run.state, run.chunks, run.document.status = "ACTIVE", chunks, status
        return True

    def error(self, step: Step, again: int | None) -> None:
        step.errors += 1
        if again is None:
            self._fail(step)
        else:
            step.due = self.now + again
            step.end("ERROR")

    def _fail(self, step: Step) -> None:
        step.end("FAILED")
        self._end(step.run, "FAILED")
        step.run.letter, step.run.document.status = True, D.FAILED

    def release(self, step: Step, give_back: bool) -> None:
        step.attempts = max(0, step.attempts - give_back)
        self._wait(step)

    def reap(self, dead: tuple[str, ...], held: Iterable[Step]) -> int:
        lapsed = [s for s in self.steps("RUNNING") if (s.until < self.now or s.worker in dead) and s not in held]
        for step in lapsed:
            step.crashes += step.alone or step.crashes < SUSPECT
            if step.alone and step.crashes >= CRASHES:
                self._fail(step)
            else:
                self._wait(step)
        for lock in self.locks.values():
            if lock.until < self.now or lock.worker in dead:
                lock.token, lock.worker = None, ""
        return len(lapsed)

    def leave(self, worker: str) -> None:
        for step in self.steps("RUNNING"):
            if step.worker == worker:
                self._wait(step)
        for lock in self.locks.values():
            if lock.worker == worker:
                lock.token, lock.worker = None, ""

    def due(self) -> int:
        ripe = [s for s in self.steps("ERROR") if s.due <= self.now]
        for step in ripe:
            self._wait(step)
        return len(ripe)

    # -- artifacts

    def open(self, step: Step, fingerprint: Fingerprint) -> Artifact:
        """It goes to whoever asks while nobody builds it."""
        artifact = self.artifacts.setdefault(fingerprint, Artifact())
        if not artifact.complete and artifact.built_by is None:
            artifact.builder, artifact.token = step, step.token
        artifact.touched = self.now
        self.refs[step.run.id, step.name] = fingerprint
        return artifact

    def checkpoint(self, step: Step, artifact: Artifact, lease: int) -> None:
        step.attempts = step.crashes = step.errors = 0
        step.alone, step.until = False, self.now + lease
        artifact.segments += 1
        artifact.touched = self.now

    def rewind(self, producer: Step, artifact: Artifact, ordinal: int) -> None:
        if artifact.complete:
            artifact.complete, artifact.builder, artifact.touched = False, None, self.now
            artifact.segments = min(ordinal, max(0, artifact.segments - 1))
        del producer.run.steps[producer.position + 1 :]
        producer.attempts = 0
        self._wait(producer)

    def forget(self) -> int:
        used = set(self.refs.values())
        old = [f for f, a in self.artifacts.items() if f not in used and not a.built_by and a.touched < self.now]
        for fingerprint in old:
            del self.artifacts[fingerprint]
        return len(old)
