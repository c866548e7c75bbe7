"""`make bench`: every figure beside what it is held against, measured in the same run."""

import asyncio

from benchmarks import queue, retrieval, unchanged


def row(what: str, figure: str, wanted: str) -> None:
    print(f"{what:<58} {figure:>14}   {wanted}")


def main() -> None:
    for dialect, least in (("sqlite", 2.5), ("postgres", 1.2)):
        result = queue.measure(dialect)
        row(f"queue on {dialect}: steps/s (bare {result['bare']:.0f})", f"{result['drain']:.0f}", "")
        row(f"queue on {dialect}: against the bare claim loop", f"{result['ratio']:.2f} ×", f"≥ {least} ×")
        row(f"queue on {dialect}: commits a step", f"{result['commits_per_step']:.2f}", "≤ 1.3")
        row(f"queue on {dialect}: documents submitted/s", f"{result['submit']:.0f}", "")
    again = unchanged.measure()
    row(f"{unchanged.FILES} text files: first ingest, s", f"{again['first_s']:.1f}", "")
    row("nothing changed: second ingest against the first", f"{again['ratio']:.3f} ×", "≤ 0.15 ×")
    if retrieval.SAMPLE.exists():
        recall = asyncio.run(retrieval.recall(retrieval.SAMPLE))
        row("300 SQuAD questions, hybrid R@5", f"{recall['hybrid_r@5']:.3f}", "≥ 0.92")
        row("300 SQuAD questions, hybrid R@10", f"{recall['hybrid_r@10']:.3f}", "≥ 0.96")
    else:
        print(f"recall was not measured: {retrieval.SAMPLE.name} is not here")


if __name__ == "__main__":
    main()
