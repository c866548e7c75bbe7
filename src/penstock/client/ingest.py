"""`ingest`: upload files and folders, and follow them to their ends. Unchanged files are found by their hashes."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

from penstock.client.connection import Connection
from penstock.client.errors import Conflict, InvalidRequest, ServerDiskFull
from penstock.client.files import Files, Given, Hashed
from penstock.client.following import AT_ONCE, SWEEP_S, Followed
from penstock.client.summaries import explain
from penstock.client.uploads import CHANGED, CHANGING_TRIES, File, Order, upload, upload_json
from penstock.errors import SourceChanged, SourceError
from penstock.model.states import ENDS, TEXTLESS, DocumentStatus
from penstock.sources.base import Found
from penstock.verbs.jobs import Progress
from penstock.verbs.receipts import UploadReceipt
from penstock.verbs.summary import Summary
from penstock.worker.counters import DocumentInProgress

OFFERED = 200
"""Files whose hashes are sent in one request."""
OFFER_S = 0.3
"""How long the first of them waits for others."""
WAITING = 64
"""Files that wait for the next stage, at most."""
FETCH_S = 300.0
PROGRESS_S = 0.25
FULL = "not accepted, because the disk of the server is full"
AGAIN = (DocumentStatus.FAILED, DocumentStatus.CANCELLED, *TEXTLESS)
MEGABYTE = 1 << 20
Report = Callable[[Progress], None]
OnReceipt = Callable[[UploadReceipt], None]


class FolderUpload:
    """One ingest. Memory stays flat: queues between the stages are bounded."""

    def __init__(
        self,
        connection: Connection,
        given: Given,
        order: Order,
        *,
        wait: bool,
        report: Report | None,
        on_receipt: OnReceipt | None,
        stopped: asyncio.Event,
    ) -> None:
        self._connection = connection
        self._runtime = connection.runtime
        self._given = given
        self._order = order
        self._files = Files(given, order, self._runtime)
        self._report, self._on_receipt = report, on_receipt
        self._stopped = stopped
        self._began = self._runtime.clock()
        self._found: asyncio.Queue[Found | None] = asyncio.Queue(WAITING)
        self._hashed: asyncio.Queue[Hashed | None] = asyncio.Queue(WAITING)
        self._needed: asyncio.Queue[Hashed | None] = asyncio.Queue(WAITING)
        self._sending: dict[str, DocumentInProgress] = {}
        self._submitting = True
        self._silent = False
        self.summary = Summary()
        self.followed = Followed(connection, order.collection) if wait and not order.hold else None

    async def run(self) -> Summary:
        self._connection.waiting = self._wait
        tasks: list[asyncio.Task[Any]] = [] if self._report is None else [asyncio.create_task(self._tick())]
        try:
            if self.followed is not None:
                await self.followed.begin()
            stop = asyncio.create_task(self._stopped.wait())
            work = asyncio.create_task(self._work())
            tasks += [stop, work]
            await asyncio.wait({stop, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
            else:
                self.summary.interrupted = True
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._connection.waiting = None
        return await self._finished()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self.followed is None:
                await self._submit()
                return
            following = group.create_task(self.followed.follow())
            await self._submit()
            while self.followed.open or self.summary.submitted:
                await self._until_ended(self.followed)
                # The documents inside ours, and what the feed may have left out.
                await self.followed.sweep()
                if not self.followed.open:
                    break
            following.cancel()

    async def _until_ended(self, followed: Followed) -> None:
        due = self._runtime.clock() + SWEEP_S
        while followed.open and not followed.is_due and self._runtime.clock() < due:
            followed.news.clear()
            await self._runtime.wait(followed.news, 1.0)
            if followed.news.is_set():
                self._silent = False
                due = self._runtime.clock() + SWEEP_S

    async def _submit(self) -> None:
        if self.followed is not None:
            # Before the first document is accepted, so that nothing of it is missed.
            await self.followed.opened.wait()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._discover())
                group.create_task(self._hash())
                group.create_task(self._offer())
                for _ in range(AT_ONCE):
                    group.create_task(self._upload())
        finally:
            self._submitting = False

    async def _discover(self) -> None:
        async with aclosing(self._files.found()) as found:
            async for one in found:
                await self._found.put(one)
        for problem in self._files.problems:
            self._refuse_line(problem)
        for url in self._given.paths:
            if isinstance(url, str):
                await self._fetch(url)
        await self._found.put(None)

    async def _fetch(self, url: str) -> None:
        """Let the server fetch a web page."""
        try:
            data = {"url": url, "metadata": dict(self._given.metadata)}
            self._count(await upload_json(self._connection, data, self._order, FETCH_S))
        except InvalidRequest as error:
            self._refuse(Found(url, url), str(error))

    async def _hash(self) -> None:
        while (found := await self._found.get()) is not None:
            try:
                await self._hashed.put(await self._files.hashed(found))
            except SourceError as error:
                self._refuse(found, str(error))
        await self._hashed.put(None)

    async def _offer(self) -> None:
        """Send hashes, and pass on the files whose bytes are needed."""
        over = False
        while not over:
            batch: list[Hashed] = []
            until = None
            while len(batch) < OFFERED:
                try:
                    async with asyncio.timeout_at(until):
                        one = await self._hashed.get()
                except TimeoutError:
                    break
                if one is None:
                    over = True
                    break
                until = until or asyncio.get_running_loop().time() + OFFER_S
                batch.append(one)
            await self._offered(batch)
        for _ in range(AT_ONCE):
            await self._needed.put(None)

    async def _offered(self, batch: Sequence[Hashed]) -> None:
        asked = [one for one in batch if one.digest]
        receipts = await offer(self._connection, self._order, asked) if asked else []
        known = dict(zip((one.found.uri for one in asked), receipts, strict=True))
        for one in batch:
            receipt = known.get(one.found.uri)
            if receipt is not None and receipt.outcome == "forgotten" and not self._given.again:
                self.summary.forgotten += 1
            elif receipt is not None and receipt.outcome not in ("needed", "forgotten"):
                self._count(receipt)
            else:
                await self._needed.put(one)

    async def _upload(self) -> None:
        while (one := await self._needed.get()) is not None:
            if self.summary.disk_full:
                self._refuse(one.found, FULL)
                continue
            try:
                self._count(await self._sent(one))
            except ServerDiskFull:
                self.summary.disk_full = True
                self._refuse(one.found, FULL)
            except (SourceError, InvalidRequest, Conflict) as error:
                self._refuse(one.found, str(error))
            finally:
                self._sending.pop(one.found.uri, None)

    async def _sent(self, one: Hashed) -> UploadReceipt:
        digest: bytes | None = one.digest or None
        for _ in range(CHANGING_TRIES):
            with suppress(SourceChanged):
                with await self._runtime.run_blocking("io", self._files.open, one.found) as file:
                    content = File(file)
                    try:
                        return await upload(self._connection, content, one.order, self._teller(one), digest)
                    except InvalidRequest:
                        # The file may have changed since it was hashed.
                        if digest is None or await content.hash(self._runtime) == digest:
                            raise
            digest = None
        raise SourceChanged(CHANGED)

    def _teller(self, one: Hashed) -> Callable[[int, int], None]:
        def tell(sent: int, size: int) -> None:
            self._silent = False
            if size > MEGABYTE:
                done = DocumentInProgress(one.found.name, "upload", sent // MEGABYTE, size // MEGABYTE)
                self._sending[one.found.uri] = done

        return tell

    def _count(self, receipt: UploadReceipt) -> None:
        self._silent = False
        s = self.summary
        is_known = receipt.outcome == "updated" and receipt.status in ENDS
        if receipt.id is None:
            self._refuse(Found(receipt.source, receipt.name), receipt.problem or "it was refused")
            return
        if receipt.outcome == "unchanged" or is_known:
            s.skipped += 1
            s.failed_before += receipt.status in AGAIN
        elif receipt.outcome == "held":
            s.held += 1
        else:
            s.submitted += 1
            if self.followed is not None:
                self.followed.add(receipt.id, receipt.source, receipt.name)
            else:
                s.pending += not self._order.hold
        if self._on_receipt is not None:
            self._on_receipt(receipt)

    def _refuse(self, found: Found, why: str) -> None:
        self._refuse_line(f"{found.uri}: {why}", found)

    def _refuse_line(self, problem: str, found: Found | None = None) -> None:
        self.summary.refused += 1
        self.summary.problems.append(problem)
        if self._on_receipt is not None:
            source = problem.rpartition(": ")[0] if found is None else found.uri
            name = source.rpartition("/")[2] if found is None else found.name
            self._on_receipt(UploadReceipt(None, source, name, "refused", None, problem=problem))

    def _wait(self, seconds: float) -> None:
        self._silent = seconds > 1

    async def _tick(self) -> None:
        while True:
            if self._report is not None:
                self._report(self._progress())
            await self._runtime.sleep(PROGRESS_S)

    def _progress(self) -> Progress:
        s, followed = self.summary, self.followed
        total = len(followed.status) if followed is not None else s.submitted
        ended = total - (len(followed.open) if followed is not None else 0)
        elapsed = self._runtime.clock() - self._began
        waiting = followed.waiting() if followed is not None else {}
        return Progress(
            self._submitting,
            s.submitted + s.skipped + s.refused,
            s.skipped,
            total,
            ended,
            elapsed,
            followed.counts[DocumentStatus.FAILED] if followed is not None else 0,
            followed.total() if followed is not None else {},
            left_s=elapsed / ended * (total - ended) if ended and not self._submitting else None,
            waiting=waiting | ({"server": 1} if self._silent else {}),
            in_hand=(*self._sending.values(), *(followed.in_hand() if followed is not None else ())),
        )

    async def _finished(self) -> Summary:
        s = self.summary
        if self.followed is not None:
            counts = self.followed.counts
            s.children = self.followed.children
            for status in ENDS:
                setattr(s, status.lower(), counts[status])
            s.pending = len(self.followed.open)
            made = self.followed.total()
            s.made = made | {"embedded": made["chunks"], "indexed": made["chunks"]}
            if not s.interrupted:
                await explain(self._connection, self.followed.status, s)
        s.elapsed_s = round(self._runtime.clock() - self._began, 3)
        return s


async def offer(
    connection: Connection, order: Order, documents: Sequence[Hashed], *, dry_run: bool = False
) -> list[UploadReceipt]:
    """Send the hashes of documents. The receipts come in the same order."""
    data = {
        "documents": [
            {
                "source": one.order.source, "name": one.order.name, "sha256": one.digest.hex(), "size": one.size,
                "metadata": one.order.metadata,
            }
            for one in documents
        ]
    }  # fmt: skip
    query = {**order.query, "dry_run": dry_run or None}
    answer = await connection.json("POST", "documents/offer", query=query, data=data)
    found: list[UploadReceipt] = connection.restored(answer.get("receipts"), list[UploadReceipt])
    return found


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one that ended the others."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
