"""A ledger with the few words that its tests need."""

import asyncio
import hashlib
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import (
    cancellations,
    checkpoints,
    claims,
    completions,
    deletions,
    failures,
    flips,
    generations,
    leasing,
    locks,
    restarts,
    runs,
    submissions,
    submits,
)
from penstock.model.nouns import ArtifactId, DocumentId, Owner, RunId, Segment, Step, Token, WorkerId
from penstock.model.states import DocumentStatus
from penstock.runtime import Runtime

T = TypeVar("T")

ANNA, BERT = Owner("anna"), Owner("bert")
KEY = "index:anna/default/1"
LEASE_S = 60.0
EXPIRED_S = -1.0
"""A lease of this length is over when it is given."""
TABLES = (
    "upload_parts", "uploads", "action_items", "actions", "vector_stores", "file_batches",
    "collections", "documents", "generations", "runs", "steps", "ranks", "artifacts", "segments", "artifact_refs",
    "locks", "dead_letters", "purges", "workers", "idempotency_keys", "paces", "lock_releases", "groups", "events",
    "deliveries", "index_checksums", "histories", "targets", "limits", "limit_slots",
    "answer_segments", "answers", "operations",
    "index_versions", "placements", "small_blobs", "forgotten", "run_settings",
    "usage", "run_usage", "reindexes", "api_keys", "audit_log", "requests", "webhooks", "numbers", "batches",
    "sync_states", "webhook_deliveries", "intake_pauses", "quotas", "holdings",
    "step_samples", "queue_samples",
)  # fmt: skip


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Desk:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.runtime = ledger.database.runtime

    def token(self) -> Token:
        return Token(self.runtime.token())

    def document(
        self, source: str, content: str = "v1", key: str | None = None, stored: bool = True
    ) -> submissions.NewDocument:
        document, run = self.runtime.ulids(2)
        raw = f"anna/raw/{document}" if stored else None
        return submissions.NewDocument(
            DocumentId(document), RunId(run), source, source.strip("/"), sha(content), len(content), raw, {}, key
        )

    def submission(
        self, *documents: submissions.NewDocument, owner: Owner = ANNA, **changes: Any
    ) -> submissions.Submission:
        values: dict[str, Any] = {"settings": "today", "first": submissions.FirstStep("one", "extract"), **changes}
        body = '{"id":"short","name":"short","steps":[{"name":"one","kind":"extract"}]}'
        return submissions.Submission(owner, "default", documents, "snapshot", body, **values)

    async def submit(self, *sources: str, content: str = "v1", owner: Owner = ANNA, **changes: Any) -> Any:
        """One answer for each source; just the answer for one."""
        documents = [self.document(source, content) for source in sources]
        answers = await self.ledger.write(submits.SUBMIT, self.submission(*documents, owner=owner, **changes))
        return answers[0] if len(sources) == 1 else answers

    async def claim(self, count: int = 1, *kinds: str, worker: str = "w1", lease_s: float = LEASE_S) -> list[Step]:
        request = claims.ClaimRequest(WorkerId(worker), kinds or ("extract",), count, self.token(), lease_s)
        return [claimed.step for claimed in await self.ledger.write(claims.CLAIM, request)]

    async def claim_keyed(self, count: int = 64, worker: str = "w1", lease_s: float = LEASE_S) -> list[Step]:
        request = claims.KeyedClaim(WorkerId(worker), "index", count, self.token(), lease_s)
        return await self.ledger.write(claims.CLAIM_KEYED, request)

    async def started(
        self, source: str = "/a", *, lease_s: float = LEASE_S, worker: str = "w1", **changes: Any
    ) -> Step:
        """A document's first step, claimed."""
        await self.submit(source, **changes)
        [step] = await self.claim(lease_s=lease_s, worker=worker)
        return step

    def completion(
        self,
        step: Step,
        kind: str = "chunk",
        *,
        chain: bool = False,
        key: str | None = None,
        output: checkpoints.Output | None = None,
        fingerprint: str | None = None,
        media_type: str | None = None,
    ) -> completions.Completion:
        token = self.token() if chain else None
        following = completions.NextStep(step.position + 1, f"step{step.position + 1}", kind, key, token, fingerprint)
        return completions.Completion(step, WorkerId("w1"), LEASE_S, '{"n":1}', following, output, media_type)

    async def complete(self, step: Step, kind: str = "chunk", **options: Any) -> completions.Completed:
        return await self.ledger.write(completions.COMPLETE, self.completion(step, kind, **options))

    async def to_index(self, *sources: str, content: str = "v1", owner: Owner = ANNA) -> None:
        """Documents whose index step waits behind the lock of their table."""
        await self.submit(*sources, content=content, owner=owner)
        key = f"index:{owner}/default/1"
        for step in await self.claim(len(sources)):
            assert (await self.complete(step, "index", key=key)).took

    async def indexing(self, source: str = "/a", content: str = "v1", lease_s: float = LEASE_S) -> Step:
        """A document whose index step is claimed together with the lock."""
        await self.to_index(source, content=content)
        [step] = await self.claim_keyed(lease_s=lease_s)
        return step

    async def flip(
        self, step: Step, status: DocumentStatus = DocumentStatus.COMPLETED, output: checkpoints.Output | None = None
    ) -> bool:
        return await self.ledger.write(flips.FLIP, flips.Flip(step, status, 2, 3, "{}", output))

    async def placed(self, source: str = "/a", content: str = "v1") -> Step:
        """An index step whose rows are in the index."""
        step = await self.indexing(source, content)
        writing = generations.Writing(step.lease.step_id, step.lease.token, step.generation_id)
        assert await self.ledger.write(generations.WRITE, writing) is False
        return step

    async def flipped(self, source: str = "/a", content: str = "v1") -> Step:
        """A searchable document."""
        step = await self.placed(source, content)
        assert await self.flip(step)
        assert await self.ledger.write(locks.RELEASE, (KEY, step.lease.token))
        return step

    async def open(self, step: Step, fingerprint: str = "fp") -> checkpoints.Opened:
        return await self.ledger.write(checkpoints.OPEN, checkpoints.Open(step, fingerprint))

    async def progress(self, step: Step, artifact: ArtifactId, ordinal: int, items: int = 2) -> bool:
        """A checkpoint with one more segment."""
        flush = self.flush(step, artifact, ordinal, items)
        return await self.ledger.write(checkpoints.CHECKPOINT, flush)

    def flush(self, step: Step, artifact: ArtifactId, ordinal: int, items: int = 2) -> checkpoints.Progress:
        total = (ordinal + 1) * items
        cursor = f'{{"page":{ordinal + 1}}}'
        return checkpoints.Progress(step, artifact, cursor, total, (segment(artifact, ordinal, items),), LEASE_S)

    async def fail(self, step: Step, retry_in: float | None = None, reason: str = "bad") -> bool:
        failure = failures.StepFailure(step, reason, "it broke", "the trace", 7, retry_in)
        return await self.ledger.write(failures.ERROR, failure)

    async def reap(self, *dead: str, held: Sequence[Step] = (), crashes: int = 5) -> int:
        names = tuple(WorkerId(worker) for worker in dead)
        own = frozenset(step.lease.step_id for step in held)
        return (await self.ledger.write(leasing.REAP, leasing.Reap(own, names, crashes))).steps

    async def cancel(self, *documents: DocumentId, owner: Owner = ANNA) -> set[DocumentId]:
        return await self.ledger.write(cancellations.CANCEL, runs.Selected(owner, documents))

    async def delete(self, *documents: DocumentId, owner: Owner = ANNA) -> set[DocumentId]:
        return await self.ledger.write(deletions.DELETE, runs.Selected(owner, documents))

    async def retry(self, *documents: DocumentId, owner: Owner = ANNA, **changes: Any) -> set[DocumentId]:
        news = [msgspec.structs.replace(self.document("/unused", stored=False), id=document) for document in documents]
        return await self.ledger.write(restarts.RETRY, restarts.Retry(self.submission(*news, owner=owner, **changes)))

    async def rows(self, text: str) -> list[Row]:
        """What a query answers; a change that no verb makes, too."""
        return await self.ledger.read(lambda connection: connection.script(text))

    async def one(self, text: str) -> Any:
        """The only row, or the only value of it."""
        [row] = await self.rows(text)
        return row[0] if len(row) == 1 else row

    async def step(self, step: Step, columns: str) -> Any:
        return await self.one(f"SELECT {columns} FROM steps WHERE id = {step.lease.step_id}")

    async def status(self, document: DocumentId) -> str:
        return str(await self.one(f"SELECT status FROM documents WHERE id = '{document}'"))

    async def everything(self) -> dict[str, list[Row]]:
        """The whole ledger: two looks are equal if nothing was changed."""

        def read(connection: Connection) -> dict[str, list[Row]]:
            return {table: sorted(connection.script(f"SELECT * FROM {table}"), key=repr) for table in TABLES}

        return await self.ledger.read(read)


def segment(artifact: ArtifactId, ordinal: int, items: int = 2) -> Segment:
    key = f"anna/segments/{artifact}-{ordinal}"
    return Segment(ordinal, key, sha(key), 10, items, ordinal * items, {"page": ordinal} if ordinal else {})


def output(artifact: ArtifactId, count: int, last: bool = True) -> checkpoints.Output:
    """Completes an artifact of `count` segments; the last of them is named along."""
    segments = (segment(artifact, count - 1),) if last and count else ()
    return checkpoints.Output(artifact, '{"end":true}', 2 * count, count, '{"pages":9}', segments)


class Bench:
    """A ledger for tests that are not asynchronous; all examples of a test use it in turn."""

    def __init__(self, url: str, kind: type[Database] = Database) -> None:
        self.runtime = Runtime()
        self.ledger = Ledger(kind(url, self.runtime))
        self.desk = Desk(self.ledger)
        self.runner = asyncio.Runner()
        self.run(self.ledger.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def wipe(self) -> None:
        if self.ledger.database.dialect == "postgres":
            self.run(self.desk.rows(f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY CASCADE"))
            return
        first = ("artifact_refs", "segments", "dead_letters", "purges", "idempotency_keys", "runs", "generations")
        for table in (*first, *(table for table in reversed(TABLES) if table not in first)):
            self.run(self.desk.rows(f"DELETE FROM {table}"))

    def close(self) -> None:
        self.run(self.ledger.close())
        self.runner.close()
        self.runtime.close()
