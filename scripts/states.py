"""Generate docs/states.md from the tables in model/states.py: `python scripts/states.py`."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from penstock.model.states import DOCUMENT_TRANSITIONS, ENDS, SHOWN_AS, STEP_TRANSITIONS, DocumentStatus, StepStatus

State = TypeVar("State", bound=StrEnum)

PAGE = Path(__file__).parents[1] / "docs" / "states.md"

INTRODUCTION = """\
# States

`python scripts/states.py` generates this page from the tables in [`model/states.py`](../src/penstock/model/states.py);
a test verifies that it is up to date. Each arrow shows the verb that makes the change. SQL, code and docs use the
same verbs. Triggers in the ledger reject every change of status that has no arrow here.
"""

DOCUMENTS = """\
## Documents

A document starts as PENDING, then shows what its running step does, and ends in one of five statuses. A working status
can follow any other, because resumed and reused work skips stages, and a rewind goes back. NOT_INDEXABLE means that
the document contains no text, and UNSUPPORTED that no extractor reads its format; neither is an error. Both replace an
older version: it is no longer searchable, because its text is no longer in the file. A document that ended can return
to PENDING and keeps its progress. A COMPLETED document returns to PENDING only with a new generation: for changed
content, or to make dropped artifacts again.
"""

STEPS = """\
## Steps

The row of a step is inserted when its turn comes. A RUNNING step has a lease with a token, which every write of the
step must present. ERROR waits until the step is due; FAILED has a dead letter.
"""


def draw() -> str:
    shown = "\n".join(f"| `{kind}` | {status} |" for kind, status in SHOWN_AS.items())
    return (
        "\n".join(
            (
                INTRODUCTION,
                DOCUMENTS,
                _diagram(DocumentStatus.PENDING, DOCUMENT_TRANSITIONS, ENDS),
                f"The status of a document while a step of this kind runs:\n\n| kind | status |\n|---|---|\n{shown}\n",
                "Steps of other kinds do not change the status.\n",
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
