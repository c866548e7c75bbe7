"""`evaluate`: measure how well search answers questions, with the present settings and with others."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import NotFound, UsageError
from penstock.evaluation import metrics
from penstock.evaluation.combinations import Settings, combinations
from penstock.evaluation.questions import Passage, Question, make_question, normalise, read_questions
from penstock.evaluation.report import (
    Built,
    Evaluation,
    EvaluationProgress,
    Latency,
    Missed,
    Plan,
    Result,
    TrialPlan,
)
from penstock.ledger.engine import index_versions
from penstock.ledger.reads.searchable import Searchable
from penstock.upkeep.trials import Trials
from penstock.verbs import arguments, remade, views
from penstock.verbs.jobs import Report
from penstock.verbs.scope import Scope, chosen_collection
from penstock.verbs.search import search
from penstock.verbs.trials import Trial, build, is_made_with, make_trial, searchable_documents

if TYPE_CHECKING:
    from penstock.search.results import Hit, SearchResult

MOST_HITS = 1_000
DEFAULT_K = (1, 5, 10)
EXTRACTS = ("validate", "extract")
"""Steps whose values decide what is read of a file."""


@dataclass
class _Combination:
    settings: Settings
    trial: Trial | None
    """None: the collection itself is searched."""
    mode: Any
    ranks: list[int | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def key(self) -> str:
        return self.trial.key if self.trial is not None else ""


async def evaluate(
    scope: Scope,
    questions: str | Path | Sequence[Mapping[str, Any]],
    *,
    collection: str | None = None,
    k: Sequence[int] = DEFAULT_K,
    tries: Mapping[str, Sequence[Any]] | None = None,
    yes: bool = False,
    dry_run: bool = False,
    keep: bool = False,
    on_plan: Callable[[Plan], None] | None = None,
    report: Report | None = None,
    progress: Callable[[EvaluationProgress], None] | None = None,
) -> Evaluation:
    """Measure recall at each `k`, mean reciprocal rank and latency of search. `questions` is a file (JSON lines or
    CSV), or a list of mappings with `question` and `answer`, `answers`, `document` or `page`. `tries` maps names of
    settings to values; all combinations are compared. An index that a combination needs is built in a trial, which is
    removed at the end unless `keep` is set, and which an interrupted call continues the next time. The collection is
    never changed. Raises UsageError if a paid embedder would be used and `yes` is not set. `dry_run`: only plan."""
    began, where = scope.runtime.clock(), chosen_collection(scope, collection)
    asked = _questions(questions)
    depths = sorted({arguments.number("k", one, 1, MOST_HITS) for one in arguments.numbers("k", k) or []})
    if not depths:
        raise UsageError("k: no number is given")
    chosen = [_combination(scope, where, settings) for settings in combinations(_tries(tries))]
    documents = [document async for page in searchable_documents(scope, where) for document in page]
    if not documents:
        raise await _nothing(scope, where)
    chosen = _distinct(chosen, documents)
    plan = _plan(scope, where, asked, chosen, documents)
    answer = Evaluation(where, len(asked), depths, plan)
    if on_plan is not None:
        on_plan(plan)
    if dry_run:
        return answer
    if not yes and (paid := [trial for trial in plan.trials if trial.paid]):
        chunks = sum(trial.chunks for trial in paid)
        raise UsageError(f"a paid embedder would embed about {chunks:,} chunks: run it again with --yes")
    run = _Run(scope, where, asked, depths, answer, report, progress)
    await run.all(chosen, len(documents), sum(document.chunks for document in documents), keep=keep)
    answer.interrupted = scope.resources.stopping
    answer.elapsed_s = round(scope.runtime.clock() - began, 3)
    return answer


def _questions(given: object) -> list[Question]:
    if isinstance(given, str | Path):
        return read_questions(Path(given))
    if not isinstance(given, Sequence):
        raise UsageError("questions: expected a file, or a list of mappings")
    found = [make_question(row, i, f"question {i}") for i, row in enumerate(given, 1)]
    if not found:
        raise UsageError("questions: the list is empty")
    return found


def _tries(given: object) -> dict[str, list[Any]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) and isinstance(values, list | tuple) for name, values in given.items()
    ):
        raise UsageError('tries: expected lists of values by name, as in {"chunk.size": [500, 1000]}')
    return {name: list(values) for name, values in given.items()}


async def _nothing(scope: Scope, collection: str) -> Exception:
    known = await scope.ledger.read(partial(index_versions.current, scope.owner), collection)
    if known is None:
        return NotFound(f"no collection {collection!r}: no documents were ingested into it")
    return NotFound(f"collection {collection!r} has no searchable document")


def _combination(scope: Scope, collection: str, settings: Settings) -> _Combination:
    affecting = {name: value for name, value in settings.items() if name != "mode"}
    trial = make_trial(scope, collection, affecting) if affecting else None
    return _Combination(settings, trial, settings.get("mode", "hybrid"))


def _distinct(chosen: list[_Combination], documents: list[Searchable]) -> list[_Combination]:
    """Leave out trials that would make what the collection has, and combinations that are there twice."""
    found: dict[tuple[str, str], _Combination] = {}
    for one in chosen:
        if one.trial is not None and all(is_made_with(document, one.trial) for document in documents):
            one.trial = None
        there = found.get((one.key, one.mode))
        if there is None:
            found[one.key, one.mode] = one
        elif not there.settings:
            # The present settings are among those to try: name them.
            there.settings = one.settings
    return list(found.values())


def _plan(
    scope: Scope, collection: str, asked: list[Question], chosen: list[_Combination], documents: list[Searchable]
) -> Plan:
    trials: dict[str, TrialPlan] = {}
    present = scope.config.chunk_parameters(collection)
    total = sum(document.chunks for document in documents)
    for one in chosen:
        if one.trial is None or one.trial.key in trials:
            continue
        if scope.config.index_path is None:
            raise UsageError("settings that need another index can be tried only where the index is kept in a folder")
        own, model = one.trial.config.chunk_parameters(collection), one.trial.ports.embedder.model
        ratio = 1.0
        if own["unit"] == present["unit"]:
            ratio = (present["size"] - present["overlap"]) / (own["size"] - own["overlap"])
        again = any(name.partition(".")[0] in EXTRACTS for name in one.settings)
        dropped = sum(document.dropped for document in documents)
        settings = {name: value for name, value in one.settings.items() if name != "mode"}
        trials[one.trial.key] = TrialPlan(
            settings,
            len(documents),
            len(documents) if again else dropped,
            max(len(documents), round(total * ratio)),
            model.paid,
            model.price or 0.0,
            one.trial.key,
        )
    return Plan(len(asked), len(chosen), list(trials.values()))


class _Run:
    """One evaluation."""

    def __init__(
        self,
        scope: Scope,
        collection: str,
        questions: list[Question],
        depths: list[int],
        answer: Evaluation,
        report: Report | None,
        progress: Callable[[EvaluationProgress], None] | None,
    ) -> None:
        self._scope = scope
        self._collection = collection
        self._questions = questions
        self._depths = depths
        self._answer = answer
        self._report = report
        self._progress = progress

    async def all(self, chosen: list[_Combination], documents: int, chunks: int, *, keep: bool) -> None:
        """Measure all combinations, those of one index together, and remove the trials. Trials of other settings, which
        no process uses, are removed first."""
        trials, keys = Trials(self._scope.config.home_path), [one.key for one in chosen]
        io = partial(self._scope.runtime.run_blocking, "io")
        for key in await io(trials.leftovers):
            if key not in keys:
                self._answer.removed_trials += await io(trials.remove, key)
        for key in dict.fromkeys(keys):
            group = [one for one in chosen if one.key == key]
            trial = group[0].trial
            if self._scope.resources.stopping:
                return
            if trial is None:
                self._answer.results += await self._measure(self._scope, group, documents, chunks, None)
                continue
            with trials.hold(key) as folder:
                async with self._opened(trial, folder) as inner:
                    summary = await build(self._scope, inner, trial, self._report)
                    made = summary.made
                    built = Built(made["pages"], made["chunks"], made["embedded"], summary.failed, summary.elapsed_s)
                    if not self._scope.resources.stopping:
                        there = [d async for page in searchable_documents(inner, self._collection) for d in page]
                        count = sum(document.chunks for document in there)
                        self._answer.results += await self._measure(inner, group, len(there), count, built)
        if not self._scope.resources.stopping:
            for key in dict.fromkeys(key for key in keys if key):
                await io(trials.keep if keep else trials.remove, key)

    @asynccontextmanager
    async def _opened(self, trial: Trial, folder: Path) -> AsyncIterator[Scope]:
        resources = self._scope.resources
        async with resources.open_trial(trial.config, folder) as inner:
            resources.trial = inner
            try:
                if resources.stopping:
                    inner.stop()
                yield Scope(inner, self._scope.owner)
            finally:
                resources.trial = None

    async def _measure(
        self, scope: Scope, group: list[_Combination], documents: int, chunks: int, built: Built | None
    ) -> list[Result]:
        done = []
        for one in group:
            if await self._search(scope, one):
                done.append(one)
        nowhere, unread = await self._absent(scope, done)
        return [self._result(one, documents, chunks, built, nowhere, unread) for one in done]

    async def _search(self, scope: Scope, one: _Combination) -> bool:
        """Ask all questions. Return False if the app was stopped."""
        clock, most = self._scope.runtime.clock, self._depths[-1]
        # The first search loads models and opens the index.
        await _hits(scope, self._questions[0].question, most, self._collection, one.mode)
        for i, question in enumerate(self._questions):
            if self._scope.resources.stopping:
                return False
            began = clock()
            hits = await _hits(scope, question.question, most, self._collection, one.mode)
            one.times.append(1000 * (clock() - began))
            one.ranks.append(next((i for i, hit in enumerate(hits, 1) if question.accepts(_passage(hit))), None))
            self._tell("searching", one, i + 1, len(self._questions))
        return True

    async def _absent(self, scope: Scope, done: list[_Combination]) -> tuple[set[int], int]:
        """Return the questions for which no chunk is right, among those that some combination did not answer, and the
        number of documents whose chunks cannot be read."""
        open_: dict[int, Question] = {
            question.line: question
            for one in done
            for question, rank in zip(self._questions, one.ranks, strict=True)
            if rank is None
        }
        answered = {
            question.line
            for one in done
            for question, rank in zip(self._questions, one.ranks, strict=True)
            if rank is not None
        }
        open_ = {line: question for line, question in open_.items() if line not in answered}
        unread = seen = 0
        async for page in searchable_documents(scope, self._collection):
            if not open_ or self._scope.resources.stopping:
                break
            for document in page:
                unread += not await self._scan(scope, document, open_)
            seen += len(page)
            self._tell("scanning", done[0], seen, seen)
        return set(open_), unread

    async def _scan(self, scope: Scope, document: Searchable, open_: dict[int, Question]) -> bool:
        """Remove the questions that a chunk of the document answers. Return False if its chunks cannot be read."""
        from penstock.worker.context import reader

        d = document
        wanted = [question for question in open_.values() if question.is_of(d.id, d.name, d.source)]
        if not wanted:
            return True

        def judge(batch: Sequence[Any]) -> list[int]:
            passages = [Passage(d.id, d.name, d.source, c.page, c.page_end, normalise(c.text)) for c in batch]
            return [question.line for question in wanted if any(question.accepts(passage) for passage in passages)]

        try:
            read, dropped = reader(scope.ledger, scope.blobs), await remade.find_dropped(scope, d.id)
            stored = views.items(scope.owner, scope.ledger, read, d.id, "chunk")
            async for batch in stored if dropped is None else remade.chunks(scope, dropped):
                for line in await self._scope.runtime.run_blocking("cpu", judge, batch):
                    open_.pop(line, None)
        except NotFound:
            return False
        return True

    def _result(
        self,
        one: _Combination,
        documents: int,
        chunks: int,
        built: Built | None,
        nowhere: set[int],
        unread: int,
    ) -> Result:
        failed = [question for question, rank in zip(self._questions, one.ranks, strict=True) if rank is None]
        return Result(
            one.settings,
            one.trial is None and one.mode == "hybrid",
            one.mode,
            documents,
            chunks,
            {str(k): round(metrics.recall(one.ranks, k), 4) for k in self._depths},
            round(metrics.mean_reciprocal_rank(one.ranks), 4),
            Latency(round(metrics.percentile(one.times, 0.5), 2), round(metrics.percentile(one.times, 0.95), 2)),
            [Missed(question.line, question.question) for question in failed if question.line not in nowhere],
            [Missed(question.line, question.question) for question in failed if question.line in nowhere],
            unread,
            built,
        )

    def _tell(self, what: str, one: _Combination, done: int, of: int) -> None:
        if self._progress is not None:
            self._progress(EvaluationProgress(what, one.settings, done, of))


async def _hits(scope: Scope, question: str, k: int, collection: str, mode: Any) -> "SearchResult":
    """Search. No other function of an evaluation does this."""
    return await search(scope, question, k, collection=collection, mode=mode)


def _passage(hit: "Hit") -> Passage:
    return Passage(hit.document_id, hit.name, hit.source, hit.page, hit.page_end, normalise(hit.text))
