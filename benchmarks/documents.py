"""Whole ingests of real documents, everything durable, beside the plain script; each a process from exec to exit."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import corpus
from benchmarks.processes import PLAIN, Ended, middle, penstock, run, warm_up
from benchmarks.table import Row

REPEAT = 5
CHANGES = {"text": (".txt", b"\nOne more line.\n"), "pdf": (".pdf", b"\n% One more line.\n")}
"""What is appended so that a document of that kind has changed and can still be read."""


class Measured(NamedTuple):
    plain: list[Ended]
    first: list[Ended]
    unchanged: list[Ended]
    changed: dict[str, list[Ended]]
    """By kind of the document that changed."""
    listed: list[dict[str, Any]]


def measure(folder: Path, work: Path, repeat: int = REPEAT) -> Measured:
    """In turn, so that a busy moment of the machine meets all."""
    found = Measured([], [], [], {kind: [] for kind in CHANGES}, [])
    for turn in range(repeat):
        home = work / f"home-{turn}"
        found.plain.append(run([*PLAIN, folder, work / f"plain-{turn}.lance"]))
        found.first.append(penstock(home, "ingest", folder))
        if not found.listed:
            found.listed.extend(penstock(home, "list", "--limit", "100000").answer["documents"])
        found.unchanged.append(penstock(home, "ingest", folder))
        for kind, (suffix, addition) in CHANGES.items():
            with _a_small_one(folder, suffix).open("ab") as file:
                file.write(addition)
            found.changed[kind].append(penstock(home, "ingest", folder))
    _compare(found)
    return found


def rows(repeat: int = REPEAT) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as temporary:
        folder, work = Path(temporary) / "documents", Path(temporary)
        what = corpus.gather(folder)
        warm_up(folder, work)
        found = measure(folder, work, repeat)
    plain = middle(found.plain)
    seen = found.plain[0].answer
    yield Row(f"{what}: documents ({seen['pages']} pages)", seen["documents"])
    yield Row("plain script", plain, "s", 2)
    yield Row("ingest", middle(found.first), "s", 2)
    yield Row("ingest: speed against the plain script", plain / middle(found.first), "×", 2, least=1.7)
    yield Row("nothing changed: against the plain script", middle(found.unchanged) / plain, "×", 2, most=0.25)
    for kind, ended in found.changed.items():
        yield Row(f"one {kind} changed: against the plain script", middle(ended) / plain, "×", 2, most=0.4)


def _a_small_one(folder: Path, suffix: str) -> Path:
    """The same in every turn. Damaged files are small or large, so the middle is taken."""
    paths = sorted(folder.rglob(f"*{suffix}"), key=lambda path: (path.stat().st_size, path.name))
    return paths[len(paths) // 2]


def _compare(found: Measured) -> None:
    """A figure counts only if the work was done: all that the plain script read, read here too."""
    plain, first = found.plain[0].answer, found.first[0].answer
    assert first["completed"] + first["not_indexable"] >= plain["documents"], (first, plain)
    assert sum(d["pages"] or 0 for d in found.listed) >= plain["pages"], plain
    for ended in found.unchanged:
        assert ended.answer["submitted"] == 0, ended.answer
    for kind, several in found.changed.items():
        for ended in several:
            assert ended.answer["completed"] == 1, (kind, ended.answer)
