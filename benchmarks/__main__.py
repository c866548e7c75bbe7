"""`make bench`: every figure beside what it is held against, measured in the same run. `make bench ARGS="documents"`
measures a part; with --json the answer is one JSON object."""

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import (
    documents,
    extract,
    flat,
    grams,
    latency,
    lists,
    load,
    memory,
    queue,
    resume,
    retrieval,
    service,
    size,
    small,
    unchanged,
)
from benchmarks.table import Row

PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "queue": queue.rows,
    "flat": flat.rows,
    "unchanged": unchanged.rows,
    "recall": retrieval.rows,
    "latency": latency.rows,
    "grams": grams.rows,
    "documents": documents.rows,
    "memory": memory.rows,
    "small": small.rows,
    "extract": extract.rows,
    "size": size.rows,
    "service": service.rows,
    "load": load.rows,
    "resume": resume.rows,
    "lists": lists.rows,
}
LONG: dict[str, Callable[[], Iterator[Row]]] = {"million": size.million, "large": service.many_large}
"""Only if they are named."""


def main() -> None:
    parser = argparse.ArgumentParser("make bench", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"of {', '.join((*PARTS, *LONG))}; all but {', '.join(LONG)}, if none is named",
    )
    parser.add_argument("--json", action="store_true", help="answer with one JSON object")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - {*PARTS, *LONG}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    rows: list[dict[str, Any]] = []
    for part in arguments.parts or PARTS:
        before = len(rows)
        for row in {**PARTS, **LONG}[part]():
            rows.append({"part": part, **row.data()})
            if not arguments.json:
                print(row.line(), flush=True)
        if len(rows) == before and not arguments.json:
            print(f"{part}: not measured, as ../shared is not here")
    if arguments.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
