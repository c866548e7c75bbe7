"""Draw docs/states.md from the tables in model/states.py: `python scripts/states.py`."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from penstock.model.states import DOCUMENT_TRANSITIONS, ENDS, SHOWN_AS, STEP_TRANSITIONS, DocumentStatus, StepStatus

State = TypeVar("State", bound=StrEnum)

PAGE = Path(__file__).parents[1] / "docs" / "states.md"

INTRODUCTION = """\
# States

Drawn from the tables in [`model/states.py`](../src/penstock/model/states.py) by `python scripts/states.py`; a test
holds them together. Each arrow carries the verb that makes the change: one verb per transition, the same word in SQL,
code, events and docs. The ledger's triggers refuse every change of status that has no arrow here.
"""

DOCUMENTS = """\
## Documents

PENDING, then what its running step does, then one of four ends. A working status may follow any other, because resume
and re-use skip stages and a rewind goes back. NOT_INDEXABLE means that there is no text in it: not an error. What ended
may come back to PENDING with all progress kept; COMPLETED only with a new generation, for changed
content or where its artifacts were dropped and are wanted again.
"""

STEPS = """\
## Steps

A step's row is inserted when its turn comes. RUNNING is a lease: it has a token, which every write of the step must
show. ERROR waits until it is due; FAILED has a dead letter.
"""


def draw() -> str:
    shown = "\n".join(f"| `{kind}` | {status} |" for kind, status in SHOWN_AS.items())
    return (
        "\n".join(
            (
                INTRODUCTION,
                DOCUMENTS,
                _diagram(DocumentStatus.PENDING, DOCUMENT_TRANSITIONS, ENDS),
                f"While a step of this kind runs, its document shows:\n\n| kind | status |\n|---|---|\n{shown}\n",
                "Other kinds do not change it.\n",
                STEPS,
                _diagram(StepStatus.PENDING, STEP_TRANSITIONS, (StepStatus.COMPLETED,)),
            )
        ).rstrip("\n")
        + "\n"
    )


def _diagram(start: State, transitions: Mapping[tuple[State, State], str], ends: tuple[State, ...]) -> str:
    arrows = [f"    {old} --> {new}: {verb}" for (old, new), verb in transitions.items()]
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}: submit", *arrows]
    return "\n".join([*lines, *(f"    {end} --> [*]" for end in ends), "```", ""])


if __name__ == "__main__":
    PAGE.write_text(draw(), encoding="utf-8")
