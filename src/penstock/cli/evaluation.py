"""`eval`: how well search answers questions, with the present settings and with others."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import completion
from penstock.cli.call import Call, body
from penstock.cli.output import Answer, as_data, count, cut, drawable, duration, note, table, visible, width
from penstock.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from penstock.evaluation.report import Evaluation, EvaluationProgress, Plan, Result

EXAMPLES = 5
DRAW_EVERY = 10


@click.command("eval")
@click.argument("questions", metavar="QUESTIONS", shell_complete=completion.files)
@click.option("--collection", metavar="NAME", shell_complete=completion.collections, help="The collection to search.")
@click.option("-k", "depths", metavar="N,N", default="1,5,10", help="Numbers of hits for recall.", show_default=True)
@click.option("--try", "tries", metavar="NAME=VALUE,VALUE", multiple=True, help="Compare these values of a setting.")
@click.option("--plot", metavar="FILE.svg", help="Write the results as a picture.")
@click.option("--dry-run", is_flag=True, help="Only show what would be built.")
@click.option("--yes", is_flag=True, help="Use a paid embedder without asking.")
@click.option("--keep", is_flag=True, help="Keep the trials, so that the next eval need not build them.")
@body
async def evaluate(
    call: Call,
    questions: str,
    collection: str | None,
    depths: str,
    tries: tuple[str, ...],
    plot: str | None,
    **options: Any,
) -> Answer:
    """Measure how well search answers questions.

    QUESTIONS is a file of JSON lines, as in {"question": "…", "answer": "…"}, or a CSV file with these columns. A hit
    is right if it contains the `answer` (or one of the `answers`), is of the `document` (id, name or path), and covers
    the `page`, as far as these are given.

    --try compares other settings, in all combinations: mode, embedder, and values of steps as in
    chunk.size=500,1000,2000. Trials are built beside the collection, which is not changed; text that was extracted is
    used again. After an interruption, the same command continues.
    """
    from penstock.evaluation.plot import svg

    target = _writable(plot)
    async with call.working_app() as app:
        display = _Display()
        try:
            found = await call.scoped(app).evaluate(
                questions,
                collection=collection,
                k=_numbers(depths),
                tries=_tries(tries),
                on_plan=_announce,
                report=display.building,
                progress=display,
                **options,
            )
        finally:
            display.close()
    if target is not None and found.results:
        target.write_text(svg(found.results, found.k, found.collection, found.questions), encoding="utf-8")
    hints = [f"plot: {visible(target)}"] if target is not None and found.results else []
    if found.interrupted:
        hints.append("interrupted: the same command continues")
    return Answer(as_data(found), _text(found), call.signals.code if found.interrupted else 0, hints=hints)


def _numbers(text: str) -> list[int]:
    from penstock.errors import UsageError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"-k {text}: write numbers separated by commas, as in 1,5,10") from None


def _tries(given: tuple[str, ...]) -> dict[str, list[Any]]:
    from penstock.evaluation.combinations import parse_try

    found: dict[str, list[Any]] = {}
    for text in given:
        name, values = parse_try(text)
        found.setdefault(name, []).extend(value for value in values if value not in found.get(name, []))
    return found


def _writable(plot: str | None) -> Path | None:
    """The file of the plot. Raises UsageError now rather than after an hour of work."""
    from penstock.errors import UsageError

    if plot is None:
        return None
    path = Path(plot)
    if path.suffix.lower() != ".svg":
        raise UsageError(f"--plot {plot}: the name must end in .svg")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {plot}: no such folder, or it is one itself")
    return path


def _announce(plan: "Plan") -> None:
    from penstock.evaluation.combinations import label

    note(f"{count(plan.questions, 'question')}, {count(plan.combinations, 'combination')} of settings")
    for trial in plan.trials:
        again = f"extract {count(trial.extracted, 'document')} again" if trial.extracted else "extract nothing again"
        paid = f" with a paid embedder (${trial.price:g} per million tokens)" if trial.paid else ""
        note(
            f"trial {label(trial.settings)}: {count(trial.documents, 'document')}, {again}, "
            f"embed about {count(trial.chunks, 'chunk')}{paid}"
        )


class _Display:
    """Shows the progress on standard error."""

    def __init__(self) -> None:
        self._terminal = drawable(sys.stderr)
        self._building: ProgressDisplay | None = None
        self._drawn = False

    def building(self, progress: Any) -> None:
        if self._building is None:
            self.close()
            self._building = ProgressDisplay()
        self._building(progress)

    def __call__(self, progress: "EvaluationProgress") -> None:
        from penstock.evaluation.combinations import label

        if self._building is not None:
            self.close()
        if self._terminal and (progress.done % DRAW_EVERY == 0 or progress.done == progress.of):
            what = "questions" if progress.what == "searching" else "documents scanned for answers"
            of = f"{progress.done:,} of {progress.of:,}" if progress.what == "searching" else f"{progress.done:,}"
            line = cut(visible(f"{label(progress.settings)}: {of} {what}"), width() - 1)
            self._drawn = self._write(f"\r\x1b[K{line}")

    def close(self) -> None:
        if self._building is not None:
            self._building.close()
            self._building = None
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _write(self, text: str) -> bool:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._terminal = False
        return self._terminal


def _text(found: "Evaluation") -> str:
    from penstock.evaluation.metrics import margin
    from penstock.evaluation.plot import bars, title

    if not found.results:
        return ""
    rows: list[list[object]] = [
        ["settings", *(f"R@{k}" for k in found.k), "MRR", "p50 ms", "p95 ms", "chunks", "absent"]
    ]
    for r in found.results:
        shares = [f"{r.recall[str(k)]:.3f}" for k in found.k]
        times = [f"{r.latency_ms.p50:.1f}", f"{r.latency_ms.p95:.1f}"]
        rows.append([title(r), *shares, f"{r.mrr:.3f}", *times, f"{r.chunks:,}", f"{len(r.absent):,}"])
    lines = [*table(rows), "", *bars(found.results, found.k, width()), ""]
    lines += _missing(found)
    for name, r in _by_index(found).items():
        if r.built is not None:
            failed = f", {count(r.built.failed, 'document')} failed" if r.built.failed else ""
            lines.append(
                f"{name}: built in {duration(r.built.elapsed_s)}, {count(r.built.pages, 'page')} extracted, "
                f"{count(r.built.embedded, 'chunk')} embedded{failed}"
            )
    share = max(margin(r.recall[str(found.k[0])], found.questions) for r in found.results)
    lines.append(
        f"{count(found.questions, 'question')}: a recall is accurate to about ±{share:.2f}; {duration(found.elapsed_s)}"
    )
    return "\n".join(lines)


def _by_index(found: "Evaluation") -> "dict[str, Result]":
    """One result for each index that was searched, by its settings without the mode."""
    from penstock.evaluation.combinations import label

    return {label({n: v for n, v in r.settings.items() if n != "mode"}): r for r in found.results}


def _missing(found: "Evaluation") -> list[str]:
    """The questions for which no chunk is right: these are no fault of search."""
    lines, shown = [], set[int]()
    for name, r in _by_index(found).items():
        if not r.absent:
            continue
        unread = f" ({count(r.unread, 'document')} could not be read)" if r.unread else ""
        lines.append(f"{name}: {len(r.absent):,} of {found.questions:,} answers are not in any chunk{unread}")
        fresh = [one for one in r.absent if one.line not in shown]
        lines += [f"  line {one.line}: {cut(visible(one.question), 90)}" for one in fresh[:EXAMPLES]]
        if len(fresh) > EXAMPLES:
            lines.append(f"  and {len(fresh) - EXAMPLES:,} more (--json lists all)")
        shown.update(one.line for one in r.absent)
    return lines
